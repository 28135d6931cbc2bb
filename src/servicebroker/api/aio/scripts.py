"""T-SQL for asyncio: the same session, in a thread and on connections of its own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.model.arguments import check_script
from servicebroker.model.security.permissions import User
from servicebroker.store.aio.concurrency import in_thread

if TYPE_CHECKING:
    from servicebroker.api.aio.instance import AsyncInstance
    from servicebroker.tsql.results import Results


class AsyncScripts:
    """T-SQL on a database. There is no form inside a transaction: a script may wait, and would hold up the loop."""

    instance: AsyncInstance
    user: User

    async def execute_tsql(self, script: str, parameters: Mapping[str, object] | None = None) -> Results:
        """Run a T-SQL script in a thread, in a session of its own; see `Database.execute_tsql`."""
        check_script(script, parameters)
        return await in_thread(_run, self.instance, self.user, script, parameters)


class AsyncTransactionScripts:
    """Nothing: T-SQL inside a transaction has only the blocking form."""


def _run(instance: AsyncInstance, user: User, script: str, parameters: Mapping[str, object] | None) -> Results:
    return Database(_blocking(instance), user.database, user).execute_tsql(script, parameters)


def _blocking(instance: AsyncInstance) -> Instance:
    """The blocking form of the instance, on connections of its own; it is opened once, and closed with the other."""
    with instance.beside_lock:
        if instance.beside is None:
            keys = instance.keys.folder
            made = Instance(
                instance.url,
                clock=instance.clock,
                upkeep=None,
                maximum_body=instance.maximum_body,
                keys=None if keys is None else keys.path,
            )
            made.open()
            made.share(instance)
            instance.beside = made
        found: Instance = instance.beside
        return found
