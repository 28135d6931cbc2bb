"""CREATE, ALTER and DROP ENDPOINT."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateEndpoint(Definition[str | None]):
    """CREATE ENDPOINT name STATE = ... AS TCP (...) FOR SERVICE_BROKER (...): the address for other instances.

    `servicebroker serve` listens at this address.

    Args:
        name: the name of the endpoint. An instance has at most one endpoint.
        listener_port: the TCP port, 1024 to 32767.
        listener_ip: the IP address to listen on; "ALL" for all addresses.
        state: STARTED, STOPPED (no connections in either direction) or DISABLED (peers get an error).
        authentication: CERTIFICATE, WINDOWS, or both; the first named is tried first. CERTIFICATE may name a
            certificate of this instance. WINDOWS may name NTLM, KERBEROS or NEGOTIATE: all use its domain. Default:
            CERTIFICATE; WINDOWS for an instance in a domain without a certificate of its own.
        encryption: the encryption of connections: REQUIRED, SUPPORTED or DISABLED.
        message_forwarding: ENABLED forwards messages for other instances, DISABLED refuses them.
        message_forward_size: the memory for messages in forwarding, in MB.

    Returns:
        A warning, or None: with SUPPORTED or DISABLED, peers do not prove their identity.

    Raises:
        BrokerError: 5837 port, 5838 authentication, 5839 forward size, 5840 forwarding, 7874 an endpoint exists,
            15151 unknown certificate, 28055 the certificate cannot be used now, 402 another invalid clause.
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
    """ALTER ENDPOINT name ...: change clauses. The daemon applies them within a second.

    Args:
        name: the name of the endpoint, case-insensitive.
        listener_port: as for `create_endpoint`.
        listener_ip: as for `create_endpoint`.
        state: as for `create_endpoint`.
        authentication: CERTIFICATE, WINDOWS, or both; the first named is tried first. CERTIFICATE may name a
            certificate of this instance. WINDOWS may name NTLM, KERBEROS or NEGOTIATE: all use its domain.
        encryption: as for `create_endpoint`.
        message_forwarding: as for `create_endpoint`.
        message_forward_size: as for `create_endpoint`.

    Returns:
        As `create_endpoint`.

    Raises:
        BrokerError: as `create_endpoint`, and 15151 no such endpoint.
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
    """DROP ENDPOINT name: close all connections. Messages to other instances wait in the transmission queue.

    Raises:
        BrokerError: 15151 no such endpoint.
    """
