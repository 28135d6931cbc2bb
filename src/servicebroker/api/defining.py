# Made from aio/defining.py by tools/make_sync.py: change that file, then run `make sync`.
"""`Database.define`: read the definition of an application, compare it with the database, apply the changes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servicebroker.engine.catalog.current_application import find_application
from servicebroker.operations.application import Application, Change, changes, not_defined, read

if TYPE_CHECKING:
    from servicebroker.api.database import Database


def current_definition(database: Database) -> Application:
    """Return the application as the database defines it now."""
    return database._do(find_application(database.database_id, database.name))


def differences(
    database: Database, definition: Application | Mapping[str, Any] | str | Path
) -> tuple[list[Change], list[str]]:
    """Return the changes that `define` would make, and the database's objects that the definition does not name."""
    wanted, current = read(definition), current_definition(database)
    return changes(wanted, current), not_defined(wanted, current)


def define(database: Database, definition: Application | Mapping[str, Any] | str | Path) -> list[str]:
    """Apply a definition and return its changes in words; see `Database.define`."""
    wanted = read(definition)
    with database.defining() as locked_database:
        needed = changes(wanted, current_definition(locked_database))
        for change in needed:
            locked_database.run(change.operation)
    return [change.words for change in needed]
