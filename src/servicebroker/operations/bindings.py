"""CREATE, ALTER and DROP REMOTE SERVICE BINDING."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateRemoteServiceBinding(Definition[None]):
    """CREATE REMOTE SERVICE BINDING: name the user whose certificate secures conversations with a remote service.

    Args:
        name: the name of the binding, case-insensitive.
        to_service: the remote service, compared byte by byte.
        user: the local user that owns the certificate of the remote service.
        anonymous: True to hide the initiator's identity; the remote side then treats it as public.
        authorization: the owner. Default: the current user.

    Raises:
        BrokerError: 9619 the service has a binding already, 2714 the name is taken, 28083 the user is a role, 15151 no
            such user, or no permission to act for that user, 262 no permission, 402 a wrong argument.
    """

    name: str
    _: KW_ONLY
    to_service: str
    user: str
    anonymous: bool = False
    authorization: str | None = None


@dataclass(frozen=True, slots=True)
class AlterRemoteServiceBinding(Definition[None]):
    """ALTER REMOTE SERVICE BINDING: change clauses, for conversations that begin afterwards.

    Args:
        name: the name of the binding, case-insensitive.
        user: as for `create_remote_service_binding`.
        anonymous: as for `create_remote_service_binding`.

    Raises:
        BrokerError: 15151 no such binding or user, 28083 the user is a role, 402 a wrong argument.
    """

    name: str
    _: KW_ONLY
    user: str | None = None
    anonymous: bool | None = None


@dataclass(frozen=True, slots=True)
class DropRemoteServiceBinding(Named, Definition[None]):
    """DROP REMOTE SERVICE BINDING. Existing conversations continue unchanged.

    Raises:
        BrokerError: 15151 no such binding.
    """
