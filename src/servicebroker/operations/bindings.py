"""CREATE, ALTER and DROP REMOTE SERVICE BINDING."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from servicebroker.operations.operation import Definition, Named


@dataclass(frozen=True, slots=True)
class CreateRemoteServiceBinding(Definition[None]):
    """CREATE REMOTE SERVICE BINDING: conversations with that service are secured for the owner of a certificate.

    Args:
        name: compared without case.
        to_service: the remote service, compared byte by byte.
        user: whose certificate the remote service has.
        anonymous: the remote side does not learn who begins the conversation, and works as public.
        authorization: the owner; the user that this object works as when it is not given.

    Raises:
        BrokerError: 9619 the service has one already, 2714 name taken, 28083 the user is a role, 15151 no such
            user, or one for whom this one may not act, 262, 402.
    """

    name: str
    _: KW_ONLY
    to_service: str
    user: str
    anonymous: bool = False
    authorization: str | None = None


@dataclass(frozen=True, slots=True)
class AlterRemoteServiceBinding(Definition[None]):
    """ALTER REMOTE SERVICE BINDING: change the given clauses, for conversations that begin from now on.

    Args:
        name: compared without case.
        user: as for `create_remote_service_binding`.
        anonymous: as for `create_remote_service_binding`.

    Raises:
        BrokerError: 15151 no such binding or user, 28083 the user is a role, 402.
    """

    name: str
    _: KW_ONLY
    user: str | None = None
    anonymous: bool | None = None


@dataclass(frozen=True, slots=True)
class DropRemoteServiceBinding(Named, Definition[None]):
    """DROP REMOTE SERVICE BINDING; conversations that have begun go on as they are.

    Raises:
        BrokerError: 15151 no such binding.
    """
