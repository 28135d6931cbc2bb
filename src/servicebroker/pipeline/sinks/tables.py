"""The interface of a table of any format: its location, its versions, and the commit that adds a batch once.

`delta.py` and `iceberg.py` implement it. Columns are in Arrow. Columns that come from a rule have `RULE_METADATA`;
columns that other writers have added do not.
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

RULE_METADATA: dict[bytes | str, bytes | str] = {b"servicebroker.column": b"rule"}  # metadata of a column from a rule
MAX_UNEXPLAINED_CONFLICTS = 5  # attempts, if a change is refused although no other commit intervened
T = TypeVar("T")
Batch = tuple[str, int]  # query id and batch number


class Conflict(Exception):
    """A refused commit. Most often another writer has committed since this writer read the table.

    `has_new_version`: another writer has committed. If False, the store may have failed, or may not support the commit.
    """

    def __init__(self, text: str, *, has_new_version: bool = True) -> None:
        super().__init__(text)
        self.has_new_version = has_new_version


@dataclass(frozen=True)
class TableFile:
    """A file of a table version.

    Attributes:
        size: in bytes.
        rows: number of rows.
        partition: values of the partition columns.
        statistics: minimum and maximum of other columns, as `min.COLUMN` and `max.COLUMN`.
    """

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
    """A version of a table. A method that changes the table raises Conflict if there is a newer version."""

    @property
    def columns(self) -> pa.Schema:
        """All columns. Columns from a rule have `RULE_METADATA`."""

    @property
    def partition_by(self) -> list[str]:
        """The partition columns."""

    def files(self) -> list[TableFile]:
        """Return the files of the version."""

    def read(self, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a file, with the columns in `schema`. A column that an older file lacks is null."""

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Write these rows into files. They are not part of the table until a commit names them."""

    def last_batch(self, query: str) -> int | None:
        """Return the last batch of a query that the table has recorded; None if there is none."""

    def make_batch_durable(self, query: str) -> None:
        """Flush the last batch of a query to disk; a writer that died may not have done it."""

    def add(self, files: list[DataFile], batch: Batch) -> None:
        """Add the files of a batch, and record the batch."""

    def replace_files(self, removed: list[TableFile], added: list[DataFile], batch: Batch | None = None) -> None:
        """Replace the files `removed` by the files `added`. A `batch` is recorded in the same commit."""

    def alter_columns(self, columns: pa.Schema) -> bool:
        """Change the columns without rewriting files. Returns False, and changes nothing, if that is impossible."""

    def replace_content(self, columns: pa.Schema, parts: Iterator[pa.Table]) -> None:
        """Replace all columns and rows. The recorded batches stay."""


class TableLocation(Protocol):
    """The location of a table, which may not exist yet. `str()` returns its display name, without the `kind`."""

    @property
    def kind(self) -> str:
        """The name of the format, for messages: "Delta" or "Iceberg"."""

    def exists(self) -> bool:
        """True if the table exists."""

    def open(self) -> TableVersion:
        """Return the newest version of the table; InstanceError if the table does not exist."""

    def open_or_create(self, columns: pa.Schema, partition_by: Sequence[str]) -> TableVersion:
        """Return the newest version of the table. A missing table is created."""

    def raising_instance_errors(self) -> AbstractContextManager[None]:
        """Return a context manager that turns errors of the format's library into InstanceError."""

    def overwrite(self, rows: pa.Table) -> None:
        """Replace all rows of the table by `rows`."""

    def merge_files(self) -> tuple[int, int]:
        """Merge small files. Returns the number of files merged, and the number of files written."""

    def remove_files(self, keep_hours: float, *, with_orphans: bool) -> int:
        """Remove files that only versions older than `keep_hours` need. Returns the number of files.

        `with_orphans`: also remove files that failed attempts wrote and no version names.
        """


def commit_with_retry(location: TableLocation, change: Callable[[], T], attempts: int = 100) -> T:
    """Run `change`, which opens the table and commits, and return its result. After a Conflict, run it again.

    Raises:
        InstanceError: another commit intervened in each attempt, or commits were refused `MAX_UNEXPLAINED_CONFLICTS`
            times although no other commit intervened.
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


def commit_batch(
    location: TableLocation,
    schema: pa.Schema,
    files: list[DataFile],
    batch: Batch,
    *,
    partition_by: Sequence[str] = (),
    nullable: Container[str] | None = None,
    only_new: Callable[[TableVersion, list[DataFile]], list[DataFile]] = lambda table, files: files,
) -> bool:
    """Add `files` to a table, once per batch. Returns False if the table already has the batch.

    `only_new` filters out rows that the table already has; it may return rewritten files. `nullable` is as for
    `open_or_alter`.

    Raises:
        InstanceError: the table has other columns or a later batch, or too many writers at once.
    """

    def change() -> bool:
        table = open_or_alter(location, schema, partition_by, nullable)
        if has_batch(location, table, batch):
            return False
        table.add(only_new(table, files), batch)
        return True

    return commit_with_retry(location, change)


def has_batch(location: TableLocation, table: TableVersion, batch: Batch) -> bool:
    """Return whether a table has a batch. If it has, flush the batch to disk first.

    Raises:
        InstanceError: the table has a later batch of the query, so the checkpoint is an old copy.
    """
    query, number = batch
    last = table.last_batch(query)
    if last is None or last < number:
        return False
    if last > number:
        raise InstanceError(
            f"The {location.kind} table '{location}' has batch {last} of this query already, and its checkpoint goes "
            f"on with batch {number}. The checkpoint is an old copy, or two queries use it. Check which messages of "
            "the queue the table holds, then start the query with a new checkpoint location."
        )
    table.make_batch_durable(query)
    return True


def open_or_alter(
    location: TableLocation, schema: pa.Schema, partition_by: Sequence[str] = (), nullable: Container[str] | None = None
) -> TableVersion:
    """Return the newest version of the table. A missing table is created.

    A table of a pipeline gets the columns that it lacks; `nullable` are those that may be null. With `nullable` None, a
    query of the user's own writes the table, and its columns must not change.

    Raises:
        InstanceError: rows with the columns of `schema` do not fit the table; the text names the column.
        Conflict: another writer has changed the table meanwhile.
    """
    table = location.open_or_create(mark_rule_columns(schema), partition_by)
    change = plan_schema_change(location, table, schema, partition_by, nullable)
    if change and nullable is None:
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
    nullable: Container[str] | None,
) -> SchemaChange:
    """Return the changes that the table needs for rows with these columns. `nullable` is as for `open_or_alter`.

    Raises:
        InstanceError: rows with the columns of `schema` do not fit the table; the text names the column.
    """
    check_partitions(location, table, partition_by)
    columns = table.columns
    types = {field.name: field.type for field in columns}
    has_differences = any(field.name not in types or types[field.name] != field.type for field in schema)
    return plan_change(
        *(str(location), columns, schema, schema.names if nullable is None else nullable),
        has_rows=has_differences and bool(table.files()),
        is_of_pipeline=nullable is not None,
    )


def check_partitions(location: TableLocation, table: TableVersion, partition_by: Sequence[str]) -> None:
    """Refuse a table with other partition columns.

    Raises:
        InstanceError: the table is partitioned by other columns.
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
    """Change the columns of the table, and return its new version. The change is atomic for readers."""
    import pyarrow as pa

    wanted = {field.name: field for field in mark_rule_columns(schema)}
    wider = {widened.column: widened.new_type for widened in change.widened}
    fields = [field.with_type(wider[field.name]) if field.name in wider else field for field in table.columns]
    columns = pa.schema([*fields, *(wanted[name] for name, _ in change.added)])
    if not table.alter_columns(columns):
        table.replace_content(
            columns, (pa.Table.from_batches(table.read(file, columns), columns) for file in table.files())
        )
    return location.open()


def mark_rule_columns(schema: pa.Schema) -> pa.Schema:
    """Return the columns with `RULE_METADATA`, which distinguishes them from columns of other writers."""
    import pyarrow as pa

    return pa.schema([field.with_metadata(RULE_METADATA) for field in schema])


def foreign_columns(table: TableVersion, schema: pa.Schema) -> list[str]:
    """Return the names of columns that other writers have added to the table."""
    return [field.name for field in table.columns if field.name not in schema.names and not is_rule_column(field)]


def is_rule_column(field: pa.Field[Any]) -> bool:
    """True if a column comes from a rule."""
    return RULE_METADATA.items() <= dict[Any, Any](field.metadata or {}).items()


def rows_of(location: TableLocation, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a table, file by file, with the columns `names`.

    Raises:
        InstanceError: the table does not exist or cannot be read.
    """
    import pyarrow as pa

    table = location.open()
    schema = pa.schema([table.columns.field(name) for name in names])
    for file in table.files():
        yield from table.read(file, schema)
