"""Build values from rows of SQL: the columns of a statement are the fields of a NamedTuple, in their order."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from itertools import islice
from types import NoneType, UnionType
from typing import Any, NamedTuple, TypeVar, get_args, get_type_hints

T = TypeVar("T")


class _Part(NamedTuple):
    """A field with several columns. `is_optional`: the field is None if the first of these columns is NULL."""

    kind: type
    is_optional: bool


def build_row(kind: type[T], row: Sequence[Any]) -> T:
    """Build a NamedTuple from a row. A field that is a NamedTuple itself takes a column for each of its fields.

    Further columns are ignored.
    """
    value: T = _build_part(kind, iter(row))
    return value


def _build_part(kind: Any, columns: Iterator[Any]) -> Any:
    values: list[Any] = []
    for part in _parts(kind):
        if isinstance(part, int):
            values += islice(columns, part)
        else:
            value = _build_part(part.kind, columns)
            values.append(None if part.is_optional and value[0] is None else value)
    return kind._make(values)


@functools.cache
def _parts(kind: type) -> tuple[_Part | int, ...]:
    """Return the parts of a row, in order: a nested value, or a number of plain columns."""
    parts: list[_Part | int] = []
    for hint in get_type_hints(kind).values():
        part = _part(hint)
        if part is None and parts and isinstance(parts[-1], int):
            parts[-1] += 1
        else:
            parts.append(part or 1)
    return tuple(parts)


def _part(hint: Any) -> _Part | None:
    choices = get_args(hint) if isinstance(hint, UnionType) else (hint,)
    nested = [choice for choice in choices if hasattr(choice, "_make")]
    return _Part(nested[0], NoneType in choices) if nested else None
