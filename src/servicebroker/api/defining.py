# Made from aio/defining.py by tools/make_sync.py: change that file, then run `make sync`.
"""A whole application as one value: looked at, compared, and applied in one transaction."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servicebroker.engine.catalog.current_application import find_application
from servicebroker.operations.application import Application, Change, changes, not_defined, read

if TYPE_CHECKING:
    from servicebroker.api.database import Database


def present(database: Database) -> Application:
    """Return the application that the database has."""
    return database._do(find_application(database.database_id, database.name))


def differences(
    database: Database, definition: Application | Mapping[str, Any] | str | Path
) -> tuple[list[Change], list[str]]:
    """Return the changes that `define` would make, and the objects that the definition does not name."""
    wanted, there = read(definition), present(database)
    return changes(wanted, there), not_defined(wanted, there)


def define(database: Database, definition: Application | Mapping[str, Any] | str | Path) -> list[str]:
    """See `Database.define`."""
    wanted = read(definition)
    with database.defining() as inside:
        done = changes(wanted, present(inside))
        for change in done:
            inside.run(change.operation)
    return [change.words for change in done]
