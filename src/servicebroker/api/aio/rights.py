"""Methods of an instance that grant, revoke and show the rights of restricted PostgreSQL roles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextlib import AbstractAsyncContextManager
from typing import Any

from servicebroker import operations
from servicebroker.api.aio.transaction import translate_errors
from servicebroker.api.aio.wrappers import operation_method
from servicebroker.engine.security import role_rights
from servicebroker.engine.security.role_rights import RoleRights
from servicebroker.operations.operation import Operation
from servicebroker.operations.rights import RightsChange
from servicebroker.store.aio.direct import AsyncDirectConnection
from servicebroker.store.aio.running import in_transaction, run


class AsyncRights(ABC):
    """Rights of PostgreSQL roles. Only the role that owns the schema, or a member of it, may change them."""

    @abstractmethod
    def connection(self) -> AbstractAsyncContextManager[AsyncDirectConnection]:
        """Lend a connection of the pool."""

    grant_rights = operation_method(operations.GrantRights)

    revoke_rights = operation_method(operations.RevokeRights)

    async def show_rights(self, role: str | None = None) -> list[RoleRights]:
        """Return the effective rights of a role, or of all roles with rights, from PostgreSQL's catalogs.

        Raises:
            BrokerError: 15007 no such role.
        """
        async with self.connection() as connection, translate_errors():
            return await run(connection, role_rights.find_rights_of(role))


async def _change(instance: AsyncRights, operation: RightsChange) -> None:
    """Run the statements of a change of rights in one transaction."""
    async with instance.connection() as connection, translate_errors():
        await in_transaction(connection, role_rights.apply(operation))


RUNNERS: Mapping[type[Operation[Any]], Callable[[Any, Any], Awaitable[None]]] = {
    operations.GrantRights: _change,
    operations.RevokeRights: _change,
}
