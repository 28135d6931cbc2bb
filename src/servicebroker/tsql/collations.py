"""Names of collations, and the collation of an expression. A `_CI_` collation ignores case; accents always count."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from servicebroker.tsql.statement_errors import TsqlError

DEFAULT_COLLATION = "Latin1_General_BIN2"  # the collation of a database that was created without COLLATE
_COLLATION = re.compile(
    r"\w+_(?:C[IS]_A[IS](?:_KS|_WS|_VSS|_SC|_UTF8)*|BIN2?(?:_UTF8)?)|(?:DATABASE|CATALOG)_DEFAULT", re.IGNORECASE
)
_DEFAULTS = frozenset({"database_default", "catalog_default"})
_IGNORES_CASE = re.compile(r"\w+_CI(?:_\w+)?", re.IGNORECASE)
_IGNORES_ACCENTS = re.compile(r"\w+_AI(?:_\w+)?", re.IGNORECASE)


class Collation(NamedTuple):
    """The collation of a string.

    Attributes:
        name: "" for that of the database.
        is_explicit: written as COLLATE in the expression, so that it wins over the collation of a column.
    """

    name: str
    is_explicit: bool = False


def check_collation(name: str, line: int = 0) -> str:
    """Return the name of a collation, "" for that of the database. `line` is that of an error.

    Raises:
        TsqlError: 448 no collation has such a name.
    """
    if not _COLLATION.fullmatch(name):
        raise TsqlError(448, f"Invalid collation '{name}'.", line=line)
    return "" if name.lower() in _DEFAULTS else name


def ignores_case(name: str) -> bool:
    """Check whether a collation compares letters without their case."""
    return _IGNORES_CASE.fullmatch(name) is not None


def ignores_accents(name: str) -> bool:
    """Check whether a collation of SQL Server compares letters without their accents, which count here."""
    return _IGNORES_ACCENTS.fullmatch(name) is not None


def common_collation(collations: Iterable[Collation | None], operation: str) -> Collation | None:
    """Return the collation of an operation on several strings; None if no string has one of its own.

    An explicit collation wins over that of a column.

    Raises:
        TsqlError: 468 two different collations have the same rank.
    """
    chosen: Collation | None = None
    for collation in collations:
        if collation is None or collation == chosen:
            continue
        if chosen is None or (collation.is_explicit and not chosen.is_explicit):
            chosen = collation
        elif collation.is_explicit == chosen.is_explicit and collation.name.lower() != chosen.name.lower():
            raise TsqlError(
                468, f'Cannot resolve the collation conflict between "{collation.name or "database_default"}" and '
                f'"{chosen.name or "database_default"}" in the {operation} operation.', state=9,
            )  # fmt: skip
    return chosen
