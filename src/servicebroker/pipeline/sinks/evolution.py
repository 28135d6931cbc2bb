"""Plans schema changes: the columns to add and the types to widen when a rule has changed. Does not touch the table.

The rules: "Changes of the file" in docs/reference/pipeline-file.md; the reasons: decision 533.
"""

from __future__ import annotations

from collections.abc import Container
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.sorting import kind_of

if TYPE_CHECKING:
    import pyarrow as pa

_REBUILD = "rebuild the table from bronze: servicebroker pipeline rebuild"
_OTHER_FOLDER = "write to another folder"
_WIDER = {("integer", "long"), ("float", "double")}


class Widened(NamedTuple):
    """A column that gets a wider type.

    Attributes:
        old, new: names of the types, as in a pipeline file.
        new_type: the new type in Arrow.
    """

    column: str
    old: str
    new: str
    new_type: pa.DataType


@dataclass(frozen=True)
class SchemaChange:
    """Changes that a table needs.

    Attributes:
        added: name and type of each new column.
        widened: columns that get a wider type; the table's files may have to be rewritten.
    """

    added: tuple[tuple[str, str], ...] = ()
    widened: tuple[Widened, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.widened)

    def sentences(self) -> list[str]:
        """Return each change in words, as a predicate after the name of the table: "gets the column note (string)"."""
        added = [f"gets the column {name} ({kind})" for name, kind in self.added]
        widened = [f"gets its column {wide.column} as {wide.new}, which is {wide.old}" for wide in self.widened]
        return [*added, *widened]


def plan_change(
    name: str,
    table: pa.Schema,
    wanted: pa.Schema,
    nullable: Container[str],
    *,
    has_rows: bool,
    is_of_pipeline: bool = True,
) -> SchemaChange:
    """Return the changes of a table with the columns `table` that rows with the columns `wanted` require.

    Args:
        name: the table's name, for errors.
        nullable: columns of `wanted` that may be null.
        has_rows: the table has rows. The columns of an empty table may get any type.
        is_of_pipeline: a pipeline writes the table, and can rebuild it. If False, a query of the user's own writes it.

    Raises:
        InstanceError: the change is impossible; the text names the column.
    """
    added: list[tuple[str, str]] = []
    widened: list[Widened] = []
    rebuild = _REBUILD if is_of_pipeline else _OTHER_FOLDER
    names_by_lower_case = {existing.lower(): existing for existing in table.names}
    for field in wanted:
        new = kind_of(field.type)
        if field.name in table.names:
            old_type = table.field(field.name).type
            old, merged = kind_of(old_type), merged_type(old_type, field.type)
            if merged == old_type:
                continue
            if has_rows and merged is None:
                raise InstanceError(
                    f"The column '{field.name}' of the table '{name}' is {old} and cannot become {new}: keep {old}, "
                    f"give the new column another name, or {rebuild}."
                )
            target_type = field.type if merged is None else merged
            widened.append(Widened(field.name, old, kind_of(target_type), target_type))
        elif field.name.lower() in names_by_lower_case:
            existing = names_by_lower_case[field.name.lower()]
            raise InstanceError(
                f"The table '{name}' has a column '{existing}', which differs from '{field.name}' only in case: "
                f"name the pipeline's column '{existing}', or give it another name."
            )
        elif has_rows and field.name not in nullable:
            raise InstanceError(
                f"The column '{field.name}' is new in the table '{name}', whose rows have no value for it: make it "
                f'optional, "{new}?", or {rebuild}.'
            )
        else:
            added.append((field.name, new))
    for field in table:
        if field.name not in wanted.names and not field.nullable:
            raise InstanceError(
                f"The column '{field.name}' of the table '{name}' must not be null, and nothing gives it a value: drop "
                "its NOT NULL, or name it in the rule."
            )
    return SchemaChange(tuple(added), tuple(widened))


def merged_type(old: pa.DataType, new: pa.DataType) -> pa.DataType | None:
    """Return the type that represents all values of both types exactly; None if there is none.

    A merged struct has the fields of both types. A field that only one type has is null in values of the other type.
    """
    import pyarrow as pa

    if old == new:
        return old
    if pa.types.is_struct(old) and pa.types.is_struct(new):
        return _merged_struct(old, new)
    if pa.types.is_map(old) and pa.types.is_map(new):
        value = merged_type(old.item_type, new.item_type)
        return None if value is None or old.key_type != new.key_type else pa.map_(old.key_type, value)
    if pa.types.is_list(old) and pa.types.is_list(new):
        item = merged_type(old.value_type, new.value_type)
        return None if item is None else pa.list_(pa.field("element", item))
    return new if _is_wider(kind_of(new), kind_of(old)) else None


def _merged_struct(old: Any, new: Any) -> pa.DataType | None:
    import pyarrow as pa

    fields = {field.name: field.type for field in old}
    lower_case_names = {name.lower() for name in fields}
    for field in new:
        if field.name not in fields and field.name.lower() in lower_case_names:
            return None
        merged = merged_type(fields[field.name], field.type) if field.name in fields else field.type
        if merged is None:
            return None
        fields[field.name] = merged
    return pa.struct(list(fields.items()))


def _is_wider(new: str, old: str) -> bool:
    """True if the new type represents every value of the old type exactly."""
    from servicebroker.pipeline.decoding.kinds import decimal_digits

    new_digits, old_digits = decimal_digits(new), decimal_digits(old)
    if new_digits and old_digits:
        return new_digits[1] >= old_digits[1] and new_digits[0] - new_digits[1] >= old_digits[0] - old_digits[1]
    return (old, new) in _WIDER
