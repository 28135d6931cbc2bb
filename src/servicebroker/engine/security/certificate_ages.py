"""Expiry of the certificates in use: one list for doctor, status and the metrics.

In use are the endpoint's own certificate, the latest one of each peer, and the latest one of each user in
conversations. Those of a domain live for days and are renewed automatically: they are listed if that fails.
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


EXPIRY_WARNING = timedelta(days=30)  # time before the expiry at which everybody is warned
RENEWAL_OVERDUE = timedelta(days=1)  # the renewal of a domain's certificate happens long before this is left


class UsedCertificate(NamedTuple):
    """A certificate in use. `database` and `user` are '' for one of the transport.

    `problem` is the reason why a domain's certificate is not renewed; '' for all others.
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
    """Return those of the transport, those of users by database, and that of the domain if it is not renewed."""
    endpoint, certificates = (yield from find_endpoint()), (yield from all_certificates())
    takes_certificates = endpoint is None or Method.CERTIFICATE in endpoint.authentication.methods
    found = _of_the_transport(endpoint, certificates, now) if takes_certificates else []
    rows = yield SQL(
        # of several the broker takes the latest that is valid (model/security/dialog_security.py)
        "find_used_certificates",
        (now,),
    )
    found += [UsedCertificate(*row) for row in rows]
    membership = yield from find_membership()
    if membership is not None and membership.account is not None and membership.expiry_date is not None:
        problem = membership.problem
        if not problem and membership.expiry_date < now + RENEWAL_OVERDUE:
            problem = "Nobody has renewed its certificate: servicebroker serve does."
        if problem:
            found.append(UsedCertificate("", "", membership.account, True, membership.expiry_date, problem))
    return found


def _of_the_transport(
    endpoint: NetworkEndpoint | None, certificates: Sequence[TransportCertificate], now: datetime
) -> list[UsedCertificate]:
    """Return the certificate that is used, or would be if valid, and the latest of each peer's owner."""
    own = [one for one in certificates if one.is_own and not one.by_password]
    if endpoint is not None and endpoint.certificate_id is not None:
        own = [one for one in own if one.certificate_id == endpoint.certificate_id]
    chosen = choose_own(endpoint, certificates, now) or max(own, key=lambda one: one.facts.expiry_date, default=None)
    latest: dict[str, TransportCertificate] = {}
    for one in sorted(certificates, key=lambda one: one.facts.expiry_date):
        if not one.is_own:
            latest[one.proved.owner] = one
    used = [*([] if chosen is None else [chosen]), *latest.values()]
    return [UsedCertificate("", "", one.name, one.is_own, one.facts.expiry_date) for one in used]
