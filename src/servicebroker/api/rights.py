# Made from aio/rights.py by tools/make_sync.py: change that file, then run `make sync`.
"""Methods of an instance that grant, revoke and show the rights of restricted PostgreSQL roles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any

from servicebroker import operations
from servicebroker.api.transaction import translate_errors
from servicebroker.api.wrappers import operation_method
from servicebroker.engine.security import role_rights
from servicebroker.engine.security.role_rights import RoleRights
from servicebroker.operations.operation import Operation
from servicebroker.operations.rights import RightsChange
from servicebroker.store.direct import DirectConnection
from servicebroker.store.running import in_transaction, run


class Rights(ABC):
    """Rights of PostgreSQL roles. Only the role that owns the schema, or a member of it, may change them."""

    @abstractmethod
    def connection(self) -> AbstractContextManager[DirectConnection]:
        """Lend a connection of the pool."""

    grant_rights = operation_method(operations.GrantRights)

    revoke_rights = operation_method(operations.RevokeRights)

    def show_rights(self, role: str | None = None) -> list[RoleRights]:
        """Return the effective rights of a role, or of all roles with rights, from PostgreSQL's catalogs.

        Raises:
            BrokerError: 15007 no such role.
        """
        with self.connection() as connection, translate_errors():
            return run(connection, role_rights.find_rights_of(role))


def _change(instance: Rights, operation: RightsChange) -> None:
    """Run the statements of a change of rights in one transaction."""
    with instance.connection() as connection, translate_errors():
        in_transaction(connection, role_rights.apply(operation))


RUNNERS: Mapping[type[Operation[Any]], Callable[[Any, Any], None]] = {
    operations.GrantRights: _change,
    operations.RevokeRights: _change,
}
