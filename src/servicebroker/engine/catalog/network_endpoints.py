"""CREATE, ALTER and DROP ENDPOINT ... FOR SERVICE_BROKER (docs/reference/rules.md#endpoints-and-logins).

An instance has at most one endpoint, and none at first. The daemon applies a change within a second.
"""

from __future__ import annotations

from dataclasses import replace
from datetime import datetime
from ipaddress import ip_address
from typing import NamedTuple

from servicebroker.engine.catalog.alter import renew_routes
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.authentication import CERTIFICATE, Authentication, parse_authentication
from servicebroker.model.security.peers import WITHOUT_PROOF
from servicebroker.model.wording import short_repr
from servicebroker.operations.endpoints import AlterEndpoint, CreateEndpoint, DropEndpoint
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


STARTED, STOPPED, DISABLED = "STARTED", "STOPPED", "DISABLED"
STATES = (STARTED, STOPPED, DISABLED)  # the states, in the order of their ids in sys.endpoints
SUPPORTED, REQUIRED = "SUPPORTED", "REQUIRED"
ALL = "ALL"
LOWEST_PORT, HIGHEST_PORT = 1024, 32767
LARGEST_FORWARD_SIZE = 2**31 - 1  # MB
FORWARD_SIZE = 10  # MB


class NetworkEndpoint(NamedTuple):
    """The stored endpoint.

    Attributes:
        state: one of `STATES`.
        host: the address to listen at; '' for all addresses.
        port: the port to listen at.
        encryption: DISABLED, SUPPORTED or REQUIRED.
        certificate_id: the certificate that the endpoint names; None for the oldest valid one.
        forwards: message forwarding is on.
        forward_size: the size limit of the forwarding store, in MB.
        authentication: how peers prove their identity.
    """

    state: str
    host: str
    port: int
    encryption: str
    certificate_id: int | None = None
    forwards: bool = False
    forward_size: int = FORWARD_SIZE
    authentication: Authentication = CERTIFICATE

    @property
    def warning(self) -> str | None:
        """The warning if the encryption setting lets unauthenticated peers connect; otherwise None."""
        return None if self.encryption == REQUIRED else WITHOUT_PROOF.format(self.encryption)


def create_endpoint(operation: CreateEndpoint, now: datetime, *, in_domain: bool) -> Steps[str | None]:
    """Insert the endpoint. Returns the warning if its encryption setting lets unauthenticated peers connect."""
    name = names.checked("endpoint", operation.name)
    if operation.listener_port is None:
        raise BrokerError(5837)
    if operation.authentication is None and in_domain:
        own = yield SQL("create_endpoint.find_certificates")
        operation = operation if own else replace(operation, authentication="WINDOWS")
    checked = yield from _checked(operation, NetworkEndpoint(STOPPED, "", 0, REQUIRED), now)
    rows = yield SQL("create_endpoint.insert_endpoints", (name, *_row(checked)))
    if not rows:
        raise BrokerError(7874, hint="An instance has at most one endpoint for the broker: alter it, or drop it first.")
    yield renew_routes()  # routes to the endpoint's address lead to this instance now
    return checked.warning


def alter_endpoint(operation: AlterEndpoint, now: datetime) -> Steps[str | None]:
    """Change the clauses that the statement names. Returns the warning as `create_endpoint`."""
    name = names.checked("endpoint", operation.name)
    if operation == AlterEndpoint(name):
        raise BrokerError(402, "ALTER ENDPOINT", "without a clause", "given at least one")
    rows = yield Statement(
        "network_endpoints.alter_endpoint.lock_endpoint", _SELECT + " where lower(name) = lower($1) for update", (name,)
    )
    if not rows:
        raise BrokerError(15151, "alter", "endpoint", name)
    checked = yield from _checked(operation, _endpoint(rows[0]), now)
    yield SQL("alter_endpoint.update_endpoints", (name, *_row(checked)))
    yield renew_routes()
    return checked.warning


def drop_endpoint(operation: DropEndpoint, now: datetime) -> Steps[None]:
    """Delete the endpoint."""
    name = operation.name
    rows = yield SQL("drop_endpoint", (names.checked("endpoint", name),))
    if not rows:
        raise BrokerError(15151, "drop", "endpoint", name)
    yield renew_routes()


def find_endpoint() -> Steps[NetworkEndpoint | None]:
    """Return the endpoint of the instance, None without one."""
    rows = yield Statement("network_endpoints.find_endpoint", _SELECT)
    return _endpoint(rows[0]) if rows else None


_SELECT = (
    "select state::int, ip_address, port, encryption, certificate_id, is_message_forwarding_enabled, "
    "message_forwarding_size, connection_auth from servicebroker.network_endpoints"
)


def _endpoint(row: tuple[object, ...]) -> NetworkEndpoint:
    state, host, *rest, number = row
    authentication = Authentication.numbered(int(str(number)))
    return NetworkEndpoint._make([STATES[int(str(state))], host or "", *rest, authentication])


def _row(endpoint: NetworkEndpoint) -> tuple[object, ...]:
    return (STATES.index(endpoint.state), endpoint.host or None, *endpoint[2:-1], endpoint.authentication.number)


def _checked(clauses: CreateEndpoint | AlterEndpoint, before: NetworkEndpoint, now: datetime) -> Steps[NetworkEndpoint]:
    """Return the endpoint `before` with the clauses of the statement applied.

    Raises:
        BrokerError: what the checks of the clauses refuse.
    """
    endpoint = before._replace(
        state=_one_of("STATE", clauses.state, STATES) or before.state,
        host=before.host if clauses.listener_ip is None else _host(clauses.listener_ip),
        port=before.port if clauses.listener_port is None else _port(clauses.listener_port),
        encryption=_one_of("ENCRYPTION", clauses.encryption, (DISABLED, SUPPORTED, REQUIRED)) or before.encryption,
        forwards=_forwards(clauses.message_forwarding, before.forwards),
        forward_size=_forward_size(clauses.message_forward_size, before.forward_size),
    )
    if clauses.authentication is None:
        return endpoint
    authentication, name = parse_authentication(clauses.authentication)
    if name is None:
        return endpoint._replace(authentication=authentication, certificate_id=None)
    rows = yield SQL("checked", (name, now))
    if not rows:
        raise BrokerError(15151, "find", "certificate", name)
    certificate_id, is_usable = rows[0]
    if not is_usable:
        raise BrokerError(28055, name)
    return endpoint._replace(authentication=authentication, certificate_id=certificate_id)


def _one_of(clause: str, value: object, words: tuple[str, ...]) -> str | None:
    if value is None:
        return None
    if not isinstance(value, str) or value.upper() not in words:
        raise BrokerError(402, clause, short_repr(value), " or ".join(words))
    return value.upper()


def _port(value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not LOWEST_PORT <= value <= HIGHEST_PORT:
        raise BrokerError(5837)
    return value


def _host(value: object) -> str:
    if isinstance(value, str) and value.upper() == ALL:
        return ""
    try:
        return str(ip_address(value.strip("()"))) if isinstance(value, str) else _not_an_address(value)
    except ValueError:
        return _not_an_address(value)


def _not_an_address(value: object) -> str:
    raise BrokerError(402, "LISTENER_IP", short_repr(value), "ALL or an IP address")


def _forwards(value: object, before: bool) -> bool:
    if value is None:
        return before
    if not isinstance(value, str) or value.upper() not in ("ENABLED", DISABLED):
        raise BrokerError(5840)
    return value.upper() == "ENABLED"


def _forward_size(value: object, before: int) -> int:
    if value is None:
        return before
    if not isinstance(value, int) or isinstance(value, bool):
        raise BrokerError(402, "MESSAGE_FORWARD_SIZE", type(value).__name__, "an int (megabytes)")
    if not 1 <= value <= LARGEST_FORWARD_SIZE:
        raise BrokerError(5839)
    return value
