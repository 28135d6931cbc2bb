"""Types whose values cannot be compared or sorted: xml, text, ntext and image."""

from __future__ import annotations

from collections.abc import Iterable

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import Sql
from servicebroker.tsql.types import XML, SqlType

_LONG = frozenset({"text", "ntext", "image"})
_INCOMPARABLE = _LONG | {"xml"}
_NOT_TOTALED = {
    "sum": frozenset({"bit", "xml", "image"}),
    "avg": frozenset({"bit", "xml", "image"}),
    "min": _INCOMPARABLE | {"bit"},
    "max": _INCOMPARABLE | {"bit"},
}


def check_comparable(*values: Sql) -> None:
    """Require values that an operator may compare.

    Raises:
        TsqlError: 305 one of them is xml.
    """
    if any(value.type == XML for value in values):
        raise TsqlError(305, "The XML data type cannot be compared or sorted, except when using the IS NULL operator.")


def check_sortable(value: Sql) -> None:
    """Require a value by which rows may be sorted or grouped.

    Raises:
        TsqlError: 305 it is xml, 306 text, ntext or image.
    """
    check_comparable(value)
    if value.type is not None and value.type.name in _LONG:
        raise TsqlError(
            306,
            "The text, ntext, and image data types cannot be compared or sorted, except when using IS NULL or LIKE "
            "operator.",
        )


def check_distinct(types: Iterable[SqlType | None]) -> None:
    """Require columns of which DISTINCT can tell the rows apart.

    Raises:
        TsqlError: 421 a column of text, ntext, image or xml.
    """
    for name in _incomparable(types):
        raise TsqlError(421, f"The {name} data type cannot be selected as DISTINCT because it is not comparable.")


def check_combined(types: Iterable[SqlType | None]) -> None:
    """Require columns whose rows UNION, INTERSECT or EXCEPT can compare.

    Raises:
        TsqlError: 5335 a column of text, ntext, image or xml.
    """
    for name in _incomparable(types):
        raise TsqlError(
            5335,
            f"The data type {name} cannot be used as an operand to the UNION, INTERSECT or EXCEPT operators because it "
            "is not comparable.",
        )


def check_counted(value: Sql, *, is_distinct: bool) -> None:
    """Require a value that COUNT may count.

    Raises:
        TsqlError: 8117 a value of another type.
    """
    if value.type is not None and value.type.name in (_INCOMPARABLE if is_distinct else _LONG):
        raise TsqlError(8117, f"Operand data type {value.type.name} is invalid for count operator.")


def check_totaled(value: Sql, name: str) -> None:
    """Require a value that SUM, AVG, MIN or MAX takes.

    Raises:
        TsqlError: 8117 a value of another type.
    """
    if value.type is not None and value.type.name in _NOT_TOTALED[name]:
        raise TsqlError(8117, f"Operand data type {value.type.name} is invalid for {name} operator.")


def _incomparable(types: Iterable[SqlType | None]) -> Iterable[str]:
    return (sql_type.name for sql_type in types if sql_type is not None and sql_type.name in _INCOMPARABLE)
