"""The interface of a table of any format: locations, versions, changes, and the commit that lands a batch once.

`delta.py` and `iceberg.py` implement it. Columns are Arrow's; those of a rule have metadata (`OWN`).
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.sinks.evolution import SchemaChange, plan_change
from servicebroker.pipeline.sinks.parquet import DataFile

if TYPE_CHECKING:
    import pyarrow as pa

OWN: dict[bytes | str, bytes | str] = {b"servicebroker.column": b"rule"}  # metadata of a column from a rule
MAX_UNEXPLAINED_CONFLICTS = 5  # attempts of a change that is refused though no other commit intervened
T = TypeVar("T")
Batch = tuple[str, int]  # query and number


class Conflict(Exception):
    """A refused commit. Most often another commit has come between reading the table and this one.

    `has_new_version`: the table has another version now. Else its store may have failed, or cannot do such a commit.
    """

    def __init__(self, text: str, *, has_new_version: bool = True) -> None:
        super().__init__(text)
        self.has_new_version = has_new_version


@dataclass(frozen=True)
class TableFile:
    """A file of a table version: its rows, its partition values, and statistics of other columns."""

    name: str
    size: int
    rows: int
    partition: dict[str, Any]
    statistics: dict[str, Any]

    def range_of(self, column: str) -> tuple[Any, Any]:
        """Return the minimum and maximum of a column; None if unknown."""
        if column in self.partition:
            return self.partition[column], self.partition[column]
        return self.statistics.get(f"min.{column}"), self.statistics.get(f"max.{column}")


class TableVersion(Protocol):
    """A version of a table. Methods that change the table raise Conflict if the version is not the newest any more."""

    @property
    def columns(self) -> pa.Schema:
        """All columns, those of rules with their mark."""

    @property
    def partition_by(self) -> list[str]:
        """The partition columns."""

    def files(self) -> list[TableFile]:
        """Return the files of the version."""

    def read(self, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file in some of the columns. A column that an older file lacks is null."""

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Write files with these rows, which count once a commit names them."""

    def last_batch(self, query: str) -> int | None:
        """Return the last recorded batch of a query; None without one."""

    def make_batch_durable(self, query: str) -> None:
        """Make the last batch of a query durable, since a writer that died may not have flushed it."""

    def add(self, files: list[DataFile], batch: Batch) -> None:
        """Add the files of a batch, and record the batch."""

    def replace_files(self, removed: list[TableFile], added: list[DataFile], batch: Batch | None = None) -> None:
        """Replace some files of the version by others."""

    def alter_columns(self, columns: pa.Schema) -> bool:
        """Change the columns in the schema alone. Returns False if the files would have to be rewritten for that."""

    def replace_content(self, columns: pa.Schema, parts: Iterator[pa.Table]) -> None:
        """Replace all columns and rows. Recorded batches stay."""


class TableLocation(Protocol):
    """The location of a present or future table. Its `str()` is the name that people read, after the table's `kind`."""

    @property
    def kind(self) -> str:
        """The name of the format."""

    def is_there(self) -> bool:
        """True if the table exists."""

    def open(self) -> TableVersion:
        """Return the present table; InstanceError if it does not exist."""

    def open_or_create(self, columns: pa.Schema, partition_by: Sequence[str]) -> TableVersion:
        """Return the present table, which is created if it is missing."""

    def raising_instance_errors(self) -> AbstractContextManager[None]:
        """Turn errors of the format's library into an InstanceError, for the block."""

    def overwrite(self, rows: pa.Table) -> None:
        """Make it a table of exactly these rows."""

    def merge_files(self) -> tuple[int, int]:
        """Merge small files, and return how many were merged and how many written."""

    def remove_files(self, keep_hours: float, *, left_over: bool) -> int:
        """Remove files that only old versions need, and files left by failed attempts. Returns their number."""


def commit_with_retry(location: TableLocation, change: Callable[[], T], attempts: int = 100) -> T:
    """Run `change`, which opens the table and commits, and return its result.

    It is repeated if another commit intervened.

    Raises:
        InstanceError: another commit intervened every time, or a commit was refused `MAX_UNEXPLAINED_CONFLICTS` times
            without one.
    """
    unexplained = 0
    for _ in range(attempts):
        try:
            return change()
        except Conflict as conflict:
            unexplained += not conflict.has_new_version
            if unexplained == min(MAX_UNEXPLAINED_CONFLICTS, attempts):
                text = f"A change of the {location.kind} table '{location}' is refused: {conflict}."
                raise InstanceError(text) from None
    raise InstanceError(f"The {location.kind} table '{location}' has too many concurrent writers: try again.")


def land(
    location: TableLocation,
    schema: pa.Schema,
    files: list[DataFile],
    batch: Batch,
    *,
    partition_by: Sequence[str] = (),
    optional: Container[str] | None = None,
    only_new: Callable[[TableVersion, list[DataFile]], list[DataFile]] = lambda table, files: files,
) -> bool:
    """Add `files` to a table, once per batch. Returns False if the batch has landed before.

    `only_new` leaves out rows that the table already has; it may return rewritten files. `optional` is as for
    `open_or_alter`.

    Raises:
        InstanceError: the table has other columns or a later batch, or too many writers at once.
    """

    def change() -> bool:
        table = open_or_alter(location, schema, partition_by, optional)
        if has_landed(location, table, batch):
            return False
        table.add(only_new(table, files), batch)
        return True

    return commit_with_retry(location, change)


def has_landed(location: TableLocation, table: TableVersion, batch: Batch) -> bool:
    """Return whether a table has a batch. If so, it is flushed to disk first.

    Raises:
        InstanceError: the table has a later batch of the query, which the checkpoint does not know.
    """
    query, number = batch
    last = table.last_batch(query)
    if last is None or last < number:
        return False
    if last > number:
        raise InstanceError(
            f"The {location.kind} table '{location}' has batch {last} of this query already, and its checkpoint goes "
            f"on with batch {number}: it is an old copy, or not the only one. Start the query with a new checkpoint "
            "location, after checking which messages of the queue the table holds."
        )
    table.make_batch_durable(query)
    return True


def open_or_alter(
    location: TableLocation, schema: pa.Schema, partition_by: Sequence[str] = (), optional: Container[str] | None = None
) -> TableVersion:
    """Return the present table. A missing table is created, and lacking columns are added if possible.

    `optional`: columns that may be null; None forbids any change of the table.

    Raises:
        InstanceError: the table does not fit these rows; the text names the column.
        Conflict: another writer has changed the table meanwhile.
    """
    table = location.open_or_create(mark_own_columns(schema), partition_by)
    change = plan_schema_change(location, table, schema, partition_by, optional)
    if change and optional is None:
        sentences = ", it ".join(change.sentences())
        raise InstanceError(
            f"The {location.kind} table '{location}' would have to change for the query (it {sentences}): give the "
            "query the columns that the table has, or write to another folder."
        )
    return _apply_change(location, table, schema, change) if change else table


def plan_schema_change(
    location: TableLocation,
    table: TableVersion,
    schema: pa.Schema,
    partition_by: Sequence[str],
    optional: Container[str] | None,
) -> SchemaChange:
    """Return the changes that the table needs for rows with these columns. `optional` is as for `open_or_alter`.

    Raises:
        InstanceError: the table does not fit these rows; the text names the column.
    """
    check_partitions(location, table, partition_by)
    columns = table.columns
    types = {field.name: field.type for field in columns}
    has_differences = any(field.name not in types or types[field.name] != field.type for field in schema)
    return plan_change(
        *(str(location), columns, schema, schema.names if optional is None else optional),
        has_rows=has_differences and bool(table.files()),
        is_of_pipeline=optional is not None,
    )


def check_partitions(location: TableLocation, table: TableVersion, partition_by: Sequence[str]) -> None:
    """Refuse a table with other partition columns.

    Raises:
        InstanceError: the table has others.
    """
    if table.partition_by != list(partition_by):
        partitions = ", ".join(table.partition_by) or "nothing"
        raise InstanceError(
            f"The {location.kind} table '{location}' is partitioned by {partitions}, not by "
            f"{', '.join(partition_by) or 'nothing'}."
        )


def _apply_change(
    location: TableLocation, table: TableVersion, schema: pa.Schema, change: SchemaChange
) -> TableVersion:
    """Return the table after the change. Readers see the state before or after it."""
    import pyarrow as pa

    wanted = {field.name: field for field in mark_own_columns(schema)}
    wider = {widened.column: widened.new_type for widened in change.widened}
    fields = [field.with_type(wider[field.name]) if field.name in wider else field for field in table.columns]
    columns = pa.schema([*fields, *(wanted[name] for name, _ in change.added)])
    if not table.alter_columns(columns):
        table.replace_content(
            columns, (pa.Table.from_batches(table.read(file, columns), columns) for file in table.files())
        )
    return location.open()


def mark_own_columns(schema: pa.Schema) -> pa.Schema:
    """Mark the columns of a rule, to tell them from those of other writers."""
    import pyarrow as pa

    return pa.schema([field.with_metadata(OWN) for field in schema])


def foreign_columns(table: TableVersion, schema: pa.Schema) -> list[str]:
    """Return columns of the table that other writers have added."""
    return [field.name for field in table.columns if field.name not in schema.names and not is_own_column(field)]


def is_own_column(field: pa.Field[Any]) -> bool:
    """True if a column carries the mark of a rule."""
    return OWN.items() <= dict[Any, Any](field.metadata or {}).items()


def rows_of(location: TableLocation, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table in some of its columns, file by file.

    Raises:
        InstanceError: there is no table, or it cannot be read.
    """
    import pyarrow as pa

    table = location.open()
    schema = pa.schema([table.columns.field(name) for name in names])
    for file in table.files():
        yield from table.read(file, schema)
