"""Expiry of the certificates in use, for doctor, status and the metrics.

In use are the endpoint's own certificate, the latest one of each peer, and the latest one of each user in
conversations. A certificate of a domain is valid for days and renewed automatically. It is listed only if that fails.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from servicebroker.engine.catalog.network_endpoints import NetworkEndpoint, find_endpoint
from servicebroker.engine.remote.domain_state import find_membership
from servicebroker.engine.security.transport_certificates import TransportCertificate, all_certificates, choose_own
from servicebroker.model.security.authentication import Method
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


EXPIRY_WARNING = timedelta(days=30)  # certificates are reported from this time before their expiry on
RENEWAL_OVERDUE = timedelta(days=1)  # a domain's certificate that expires earlier should have been renewed


class UsedCertificate(NamedTuple):
    """A certificate in use. `database` and `user` are '' for a transport certificate.

    `problem` is the reason why a domain's certificate was not renewed; '' for all others.
    """

    database: str
    user: str
    name: str
    is_own: bool
    expires: datetime
    problem: str = ""

    def is_expiring(self, now: datetime) -> bool:
        """Check whether the certificate expires soon or has expired."""
        return self.expires <= now + EXPIRY_WARNING


def find_used_certificates(now: datetime) -> Steps[list[UsedCertificate]]:
    """Return the transport certificates in use, then those of users, then that of the domain if it was not renewed."""
    endpoint, certificates = (yield from find_endpoint()), (yield from all_certificates())
    takes_certificates = endpoint is None or Method.CERTIFICATE in endpoint.authentication.methods
    used = _of_the_transport(endpoint, certificates, now) if takes_certificates else []
    rows = yield SQL(
        # of a user's valid certificates the broker uses the latest (model/security/dialog_security.py)
        "find_used_certificates",
        (now,),
    )
    used += [UsedCertificate(*row) for row in rows]
    membership = yield from find_membership()
    if membership is not None and membership.account is not None and membership.expiry_date is not None:
        problem = membership.problem
        if not problem and membership.expiry_date < now + RENEWAL_OVERDUE:
            problem = "Start servicebroker serve, which renews it."
        if problem:
            used.append(UsedCertificate("", "", membership.account, True, membership.expiry_date, problem))
    return used


def _of_the_transport(
    endpoint: NetworkEndpoint | None, certificates: Sequence[TransportCertificate], now: datetime
) -> list[UsedCertificate]:
    """Return the instance's own certificate, even if it is not valid, and the latest one of each peer's owner."""
    own = [certificate for certificate in certificates if certificate.is_own and not certificate.by_password]
    if endpoint is not None and endpoint.certificate_id is not None:
        own = [certificate for certificate in own if certificate.certificate_id == endpoint.certificate_id]
    chosen = choose_own(endpoint, certificates, now) or max(
        own, key=lambda certificate: certificate.facts.expiry_date, default=None
    )
    latest: dict[str, TransportCertificate] = {}
    for certificate in sorted(certificates, key=lambda certificate: certificate.facts.expiry_date):
        if not certificate.is_own:
            latest[certificate.proved.owner] = certificate
    used = [*([] if chosen is None else [chosen]), *latest.values()]
    return [
        UsedCertificate("", "", certificate.name, certificate.is_own, certificate.facts.expiry_date)
        for certificate in used
    ]
