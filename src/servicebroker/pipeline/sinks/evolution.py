"""How a table becomes what its rule says now: what is added, what is widened, and what is refused. Values in and out.

The rules: "When a file changes" in docs/reference/pipeline-file.md; why they are so: decision 212.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.sorting import kind_of

if TYPE_CHECKING:
    import pyarrow as pa

_ANEW = "make the table anew from bronze: servicebroker pipeline rebuild"
_WIDER = {("integer", "long"), ("float", "double")}


class Widened(NamedTuple):
    """A column that gets a type with room for more: the names of both."""

    column: str
    old: str
    new: str


@dataclass(frozen=True)
class Plan:
    """What a table lacks: columns, with their types, and room in others, for which its files are written anew."""

    added: tuple[tuple[str, str], ...] = ()
    widened: tuple[Widened, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)

    def sentences(self) -> list[str]:
        """What is to be done, for people: each goes on from the name of the table."""
        added = [f"gets the column {name} ({kind})" for name, kind in self.added]
        return [*added, *(f"gets its column {one.column} as {one.new}, which is {one.old}" for one in self.widened)]


def plan(name: str, table: pa.Schema, wanted: pa.Schema, optional: Container[str], *, has_rows: bool) -> Plan:
    """What the table `name` with the columns `table` lacks for rows with the columns `wanted`.

    Args:
        optional: columns of `wanted` that may be null.
        has_rows: whether the table does; else it takes any type.

    Raises:
        InstanceError: it cannot become that, by the name of the column.
    """
    added: list[tuple[str, str]] = []
    widened: list[Widened] = []
    spelled = {there.lower(): there for there in table.names}
    for field in wanted:
        new = kind_of(field.type)
        if field.name in table.names:
            old = kind_of(table.field(field.name).type)
            if old == new:
                continue
            if has_rows and not _holds(new, old):
                raise InstanceError(
                    f"The column '{field.name}' of the table '{name}' is {old} and cannot become {new}: say {old}, "
                    f"give the new column another name, or {_ANEW}."
                )
            widened.append(Widened(field.name, old, new))
        elif field.name.lower() in spelled:
            there = spelled[field.name.lower()]
            raise InstanceError(
                f"The table '{name}' has a column '{there}', which most readers do not tell from '{field.name}': "
                f"call the column '{there}', or give it another name."
            )
        elif has_rows and field.name not in optional:
            raise InstanceError(
                f"The column '{field.name}' is new in the table '{name}', whose rows have no value for it: make it "
                f'optional, "{new}?", or {_ANEW}.'
            )
        else:
            added.append((field.name, new))
    for field in table:
        if field.name not in wanted.names and not field.nullable:
            raise InstanceError(
                f"The column '{field.name}' of the table '{name}' must not be null, and nothing gives it a value: drop "
                "its NOT NULL, or name it in the rule."
            )
    return Plan(tuple(added), tuple(widened))


def _holds(new: str, old: str) -> bool:
    """Whether every value of one type is one of the other, exactly."""
    from servicebroker.pipeline.decoding.columns import digits

    more, less = digits(new), digits(old)
    if more and less:
        return more[1] >= less[1] and more[0] - more[1] >= less[0] - less[1]
    return (old, new) in _WIDER
