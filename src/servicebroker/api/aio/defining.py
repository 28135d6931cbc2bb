"""A whole application as one value: looked at, compared, and applied in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servicebroker.engine.catalog.current_application import find_application
from servicebroker.operations.application import Application, Change, changes, not_defined, read

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase


async def present(database: AsyncDatabase) -> Application:
    """Return the application that the database has."""
    return await database._do(find_application(database.database_id, database.name))


async def differences(
    database: AsyncDatabase, definition: Application | Mapping[str, Any] | str | Path
) -> tuple[list[Change], list[str]]:
    """Return the changes that `define` would make, and the objects that the definition does not name."""
    wanted, there = read(definition), await present(database)
    return changes(wanted, there), not_defined(wanted, there)


async def define(database: AsyncDatabase, definition: Application | Mapping[str, Any] | str | Path) -> list[str]:
    """See `Database.define`."""
    wanted = read(definition)
    async with database.defining() as inside:
        done = changes(wanted, await present(inside))
        for change in done:
            await inside.run(change.operation)
    return [change.words for change in done]
