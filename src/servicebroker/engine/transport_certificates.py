"""The certificates of the transport: those of this instance, and those of the peers that it lets in.

They belong to the instance, not to a database. The tables hold no private key.
"""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.logins import find_login
from servicebroker.model import names
from servicebroker.model.certificates import Facts
from servicebroker.model.errors import BrokerError
from servicebroker.store.statements import Statement, Steps


class Certificate(NamedTuple):
    """A certificate of the instance; `is_own` when this instance has its private key.

    `login` is who a peer with it is, None for one that is let in without; `may_connect`: it has CONNECT there.
    """

    certificate_id: int
    name: str
    is_own: bool
    login: str | None
    may_connect: bool
    facts: Facts


_SELECT = (
    "select c.certificate_id, c.name, c.is_own, l.name, c.login_id is null or ("
    "exists (select from servicebroker.endpoint_permissions p where p.login_id in (c.login_id, 2) and p.state = 'G') "
    "and not exists (select from servicebroker.endpoint_permissions p "
    "  where p.login_id in (c.login_id, 2) and p.state = 'D')), "
    "c.certificate, c.thumbprint, c.subject, c.issuer_name, c.serial_number, c.start_date, c.expiry_date "
    "from servicebroker.transport_certificates c left join servicebroker.logins l using (login_id)"
)


def add_certificate(name: str, facts: Facts, *, is_own: bool, login: str | None = None) -> Steps[None]:
    """CREATE CERTIFICATE: keep one under a name. `login`: who a peer with it is, and then needs CONNECT.

    Raises:
        BrokerError: 15232 when the name is taken, or the same certificate is there already, 15151 no such login.
    """
    names.checked("certificate", name)
    login_id = None if login is None else (yield from find_login("find", login))
    rows = yield Statement(
        "insert into servicebroker.transport_certificates (name, is_own, login_id, certificate, thumbprint, subject, "
        "issuer_name, serial_number, start_date, expiry_date) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) "
        "on conflict do nothing returning certificate_id",
        (name, is_own, login_id, *facts),
    )
    if not rows:
        raise BrokerError(15232, name)


def drop_certificate(name: str) -> Steps[Certificate]:
    """DROP CERTIFICATE; returns what it was. Connections that rest on it are closed by the daemon.

    Raises:
        BrokerError: 15151 when there is none of that name, 3716 when the endpoint names it.
    """
    found = yield from find_certificate("drop", name)
    rows = yield Statement(
        "delete from servicebroker.transport_certificates c where certificate_id = $1 and not exists ("
        "select from servicebroker.network_endpoints e where e.certificate_id = c.certificate_id) returning name",
        (found.certificate_id,),
    )
    if not rows:
        raise BrokerError(3716, "certificate", name, "endpoints")
    return found


def find_certificate(action: str, name: str) -> Steps[Certificate]:
    """The certificate of that name, compared without case.

    Raises:
        BrokerError: 15151 when there is none.
    """
    rows = yield Statement(_SELECT + " where lower(c.name) = lower($1)", (names.checked("certificate", name),))
    if not rows:
        raise BrokerError(15151, action, "certificate", name)
    return _certificate(rows[0])


def all_certificates() -> Steps[list[Certificate]]:
    """Every certificate of the instance, by name."""
    rows = yield Statement(_SELECT + " order by c.name")
    return [_certificate(row) for row in rows]


def _certificate(row: tuple[object, ...]) -> Certificate:
    return Certificate._make([*row[:5], Facts._make(row[5:])])
