"""Transport certificates: those of this instance, and those of the peers that may connect.

They belong to the instance, not to a database. The tables have no private keys.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any, NamedTuple
from uuid import UUID

from servicebroker.engine.catalog.network_endpoints import NetworkEndpoint, find_endpoint
from servicebroker.engine.security.logins import PUBLIC_LOGIN_ID, find_login
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.certificates import Facts
from servicebroker.model.security.peers import Proved
from servicebroker.store.keys.x509_certificates import instance_of, succeeds
from servicebroker.store.rows import build_row
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


class TransportCertificate(NamedTuple):
    """A certificate that the instance stores: one of its own, or one of a peer.

    Attributes:
        is_own: the instance has its private key.
        login: the login of a peer that shows the certificate; None if the peer needs no login.
        may_connect: the login is enabled and has CONNECT. True without a login.
        proved: the identity that the certificate proves.
        accepted_instances: the instances that an administrator has accepted for the certificate's owner.
        accepted: the time of the last acceptance.
        by_password: a password encrypts the private key, so the endpoint cannot use the certificate.
    """

    certificate_id: int
    name: str
    is_own: bool
    login: str | None
    may_connect: bool
    facts: Facts
    proved: Proved
    accepted_instances: Sequence[UUID] = ()
    accepted: datetime | None = None
    by_password: bool = False

    def is_usable(self, now: datetime) -> bool:
        """Check whether the endpoint can use the certificate to connect."""
        return self.is_own and not self.by_password and self.facts.is_valid(now)


_LOGINS = f"(c.login_id, {PUBLIC_LOGIN_ID})"
_SELECT = (
    "select c.certificate_id, c.name, c.is_own, l.name, c.login_id is null or ("
    "not l.is_disabled and "
    f"exists (select from servicebroker.endpoint_permissions p where p.login_id in {_LOGINS} and p.state = 'G') "
    "and not exists (select from servicebroker.endpoint_permissions p "
    f"  where p.login_id in {_LOGINS} and p.state = 'D')), "
    "c.certificate, c.thumbprint, c.subject, c.issuer_name, c.serial_number, c.start_date, c.expiry_date, "
    "c.owner, c.instance_id, false, "
    "array(select a.instance_id from servicebroker.accepted_peers a where a.owner = c.owner order by 1), "
    "c.accepted, c.by_password "
    "from servicebroker.transport_certificates c left join servicebroker.logins l using (login_id)"
)


def add_certificate(
    name: str, facts: Facts, *, is_own: bool, login: str | None = None, by_password: bool = False
) -> Steps[None]:
    """CREATE CERTIFICATE: store a certificate under a name.

    `login` is the login of a peer that shows the certificate; the login then needs CONNECT. A certificate that is
    signed with the key of a peer's earlier certificate is its successor, and gets the same owner.

    Raises:
        BrokerError: 15232 the name is taken, or the same certificate is stored already, 15151 no such login.
    """
    names.checked("certificate", name)
    login_id = None if login is None else (yield from find_login("find", login))
    owner = f"certificate {name}"
    for certificate in (yield from all_certificates()):
        if not is_own and not certificate.is_own and succeeds(facts.der, certificate.facts.der):
            owner = certificate.proved.owner
    rows = yield SQL("add_certificate", (name, is_own, login_id, owner, by_password, instance_of(facts.der), *facts))
    if not rows:
        raise BrokerError(15232, name)


def set_by_password(certificate: TransportCertificate, by_password: bool) -> Steps[None]:
    """ALTER CERTIFICATE ... WITH PRIVATE KEY: store whether a password encrypts the certificate's private key."""
    yield SQL("set_by_password", (certificate.certificate_id, by_password))


def drop_certificate(name: str) -> Steps[TransportCertificate]:
    """DROP CERTIFICATE. Returns the dropped certificate. The daemon closes connections that use it.

    Raises:
        BrokerError: 15151 no such certificate, 3716 the endpoint names it.
    """
    certificate = yield from find_certificate("drop", name)
    rows = yield SQL("drop_certificate.delete_certificates", (certificate.certificate_id,))
    if not rows:
        raise BrokerError(3716, "certificate", name, "endpoints")
    for table in ("peers", "accepted_peers", "mistrusted", "peer_budgets"):  # rows of an owner without certificates
        yield Statement(
            "transport_certificates.drop_certificate.delete_known",
            f"delete from servicebroker.{table} t where t.owner = $1 and not exists (select from "
            "servicebroker.transport_certificates c where c.owner = t.owner and not c.is_own)",
            (certificate.proved.owner,),
        )
    return certificate


def find_certificate(action: str, name: str) -> Steps[TransportCertificate]:
    """Return the certificate of that name, compared without case. `action` is the verb for the error's text.

    Raises:
        BrokerError: 15151 no such certificate.
    """
    rows = yield Statement(
        "transport_certificates.find_certificate",
        _SELECT + " where lower(c.name) = lower($1)",
        (names.checked("certificate", name),),
    )
    if not rows:
        raise BrokerError(15151, action, "certificate", name)
    return _certificate(rows[0])


def all_certificates() -> Steps[list[TransportCertificate]]:
    """Return every certificate of the instance, by name."""
    rows = yield Statement("transport_certificates.all_certificates", _SELECT + " order by c.name")
    return [_certificate(row) for row in rows]


class OwnIdentity(NamedTuple):
    """The facts of this instance that its next own certificate depends on: its id, endpoint and certificates."""

    instance: UUID
    endpoint: NetworkEndpoint | None
    certificates: list[TransportCertificate]


def find_identity() -> Steps[OwnIdentity]:
    """Return the identity of this instance."""
    rows = yield SQL("find_identity")
    return OwnIdentity(rows[0][0], (yield from find_endpoint()), (yield from all_certificates()))


def choose_own(
    endpoint: NetworkEndpoint | None, certificates: Sequence[TransportCertificate], now: datetime
) -> TransportCertificate | None:
    """Return the own certificate that the endpoint uses: the one it names, else the oldest. None if none is usable."""
    usable = [certificate for certificate in certificates if certificate.is_usable(now)]
    if endpoint is not None and endpoint.certificate_id is not None:
        usable = [certificate for certificate in usable if certificate.certificate_id == endpoint.certificate_id]
    return min(usable, key=lambda certificate: certificate.certificate_id, default=None)


def _certificate(row: Sequence[Any]) -> TransportCertificate:
    return build_row(TransportCertificate, row)
