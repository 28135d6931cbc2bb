"""CREATE, ALTER and DROP ENDPOINT."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateEndpoint(Definition[str | None]):
    """CREATE ENDPOINT name STATE = ... AS TCP (...) FOR SERVICE_BROKER (...): the address for other instances.

    `servicebroker serve` listens there.

    Args:
        name: of the endpoint; an instance has one at most.
        listener_port: the TCP port, 1024 to 32767.
        listener_ip: the address that it listens on; "ALL" for every one.
        state: STARTED, STOPPED (no connections, either way) or DISABLED (peers are answered with an error).
        authentication: CERTIFICATE, or CERTIFICATE and the name of one of this instance; WINDOWS, or WINDOWS and NTLM,
            KERBEROS or NEGOTIATE, which mean the same: the domain that this instance is in; or both, in the order in
            which they are tried. WINDOWS by default for an instance that is in a domain and has no certificate of its
            own.
        encryption: of connections: REQUIRED, SUPPORTED or DISABLED.
        message_forwarding: ENABLED carries messages that are for other instances, DISABLED refuses them.
        message_forward_size: MB of messages that are being forwarded.

    Returns:
        What to know of it: with SUPPORTED and DISABLED nothing proves who a peer is. Else None.

    Raises:
        BrokerError: 5837 port, 5838 authentication, 5839 forward size, 5840 forwarding, 7874 there is one already,
            15151 unknown certificate, 28055 one that cannot be used now, 402 anything else that a clause may not say.
    """

    name: str
    _: KW_ONLY
    listener_port: int
    listener_ip: str = "ALL"
    state: str = "STOPPED"
    authentication: str | None = None
    encryption: str = "REQUIRED"
    message_forwarding: str = "DISABLED"
    message_forward_size: int = 10


@dataclass(frozen=True, slots=True)
class AlterEndpoint(Definition[str | None]):
    """ALTER ENDPOINT name ...: change the given fields. The daemon applies them within a second.

    Args:
        name: of the endpoint, compared without case.
        listener_port: as for `create_endpoint`.
        listener_ip: as for `create_endpoint`.
        state: as for `create_endpoint`.
        authentication: as for `create_endpoint`.
        encryption: as for `create_endpoint`.
        message_forwarding: as for `create_endpoint`.
        message_forward_size: as for `create_endpoint`.

    Returns:
        As `create_endpoint`.

    Raises:
        BrokerError: as `create_endpoint`, and 15151 when there is none of that name.
    """

    name: str
    _: KW_ONLY
    listener_port: int | None = None
    listener_ip: str | None = None
    state: str | None = None
    authentication: str | None = None
    encryption: str | None = None
    message_forwarding: str | None = None
    message_forward_size: int | None = None


@dataclass(frozen=True, slots=True)
class DropEndpoint(Named, Definition[None]):
    """DROP ENDPOINT name: no connections any more; what is sent to other instances waits.

    Raises:
        BrokerError: 15151 when there is none of that name.
    """
