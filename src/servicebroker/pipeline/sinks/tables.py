"""What is asked of a table, whatever its format is: how it is found, read, changed, and how a batch gets into it once.

`delta.py` and `iceberg.py` have the two formats. Columns are Arrow's; those of a rule carry a mark.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.sinks.evolution import Plan, plan
from servicebroker.pipeline.sinks.parquet import DataFile

if TYPE_CHECKING:
    import pyarrow as pa

OWN: dict[bytes | str, bytes | str] = {b"servicebroker.column": b"rule"}  # metadata of a column
UNSEEN = 5  # times that a change is tried which nobody else's has met
T = TypeVar("T")
Batch = tuple[str, int]  # query and number


class Conflict(Exception):
    """A commit was refused that follows from a look at a table: most often another one has come between the two.

    `is_seen`: the table has another version now. Else its store may have failed, or takes no such commit at all.
    """

    def __init__(self, text: str, *, is_seen: bool = True) -> None:
        super().__init__(text)
        self.is_seen = is_seen


@dataclass(frozen=True)
class TableFile:
    """A file of a version of a table: its rows, the values that divide the table, and what is told of the others."""

    name: str
    size: int
    rows: int
    partition: dict[str, Any]
    told: dict[str, Any]

    def range_of(self, column: str) -> tuple[Any, Any]:
        """The least and the greatest value of a column, None where nobody knows."""
        if column in self.partition:
            return self.partition[column], self.partition[column]
        return self.told.get(f"min.{column}"), self.told.get(f"max.{column}")


class Table(Protocol):
    """A version of a table. What changes it raises Conflict where it is not the newest any more."""

    @property
    def columns(self) -> pa.Schema:
        """All columns, those of rules with their mark."""

    @property
    def partition_by(self) -> list[str]:
        """The columns that divide it."""

    def files(self) -> list[TableFile]:
        """Its files."""

    def read(self, file: TableFile, schema: pa.Schema) -> Iterator[pa.RecordBatch]:
        """The rows of a file in some of the columns; what an older file lacks is null."""

    def write(self, rows: pa.Table) -> list[DataFile]:
        """Files with these rows, which count when a commit names them."""

    def last_batch(self, query: str) -> int | None:
        """The last batch of a query that it has."""

    def keep(self, query: str) -> None:
        """Make the last batch of a query durable, whose writer may have died before it could."""

    def add(self, files: list[DataFile], batch: Batch) -> None:
        """Add the files of a batch, which is known from then on."""

    def exchange(self, gone: list[TableFile], come: list[DataFile], batch: Batch | None = None) -> None:
        """Put files into the place of some that it has."""

    def gets(self, columns: pa.Schema) -> bool:
        """Give it columns by a change of its schema alone; False where its files have to be written anew for that."""

    def become(self, columns: pa.Schema, parts: Iterator[pa.Table]) -> None:
        """Give it other columns, and other rows in place of all that it has. Its batches stay known."""


class Place(Protocol):
    """Where a table is, or will be: as text its name for people, beside the `kind` of the table."""

    @property
    def kind(self) -> str:
        """The format's name."""

    def is_there(self) -> bool:
        """Whether there is a table."""

    def open(self) -> Table:
        """The table as it is now; InstanceError where there is none."""

    def made(self, columns: pa.Schema, partition_by: Sequence[str]) -> Table:
        """The table as it is now, made where there is none."""

    def said(self) -> AbstractContextManager[None]:
        """What the format's library refuses inside becomes an InstanceError."""

    def overwrite(self, rows: pa.Table) -> None:
        """Make it a table of these rows alone."""

    def merge_files(self) -> tuple[int, int]:
        """Merge small files: how many, and into how many."""

    def remove_files(self, keep_hours: float, *, left_over: bool) -> int:
        """Remove files that no version needs which is young enough, and what failed attempts have left. How many."""


def committed(place: Place, change: Callable[[], T], attempts: int = 100) -> T:
    """What `change` gives, which opens the table and commits: once more when another commit came between the two.

    Raises:
        InstanceError: another one always does, or it is refused `UNSEEN` times though there is none.
    """
    unseen = 0
    for _ in range(attempts):
        try:
            return change()
        except Conflict as conflict:
            unseen += not conflict.is_seen
            if unseen == min(UNSEEN, attempts):
                raise InstanceError(f"A change of the {place.kind} table '{place}' is refused: {conflict}.") from None
    raise InstanceError(f"The {place.kind} table '{place}' is written by too many others at once: try again.")


def land(
    place: Place,
    schema: pa.Schema,
    files: list[DataFile],
    batch: Batch,
    *,
    partition_by: Sequence[str] = (),
    optional: Container[str] | None = None,
    only_new: Callable[[Table, list[DataFile]], list[DataFile]] = lambda table, files: files,
) -> bool:
    """Add `files` to a table, once for a batch. False when it has landed before.

    `only_new` says which of the files, or which others in their place, the table as it is still lacks. `optional` is as
    for `opened`.

    Raises:
        InstanceError: the table has other columns or a later batch, or is written by too many at once.
    """

    def change() -> bool:
        table = opened(place, schema, partition_by, optional)
        if has_landed(place, table, batch):
            return False
        table.add(only_new(table, files), batch)
        return True

    return committed(place, change)


def has_landed(place: Place, table: Table, batch: Batch) -> bool:
    """Whether a table has a batch, durably.

    Raises:
        InstanceError: it has a later one of the query, whose checkpoint has forgotten what came in between.
    """
    query, number = batch
    last = table.last_batch(query)
    if last is None or last < number:
        return False
    if last > number:
        raise InstanceError(
            f"The {place.kind} table '{place}' has batch {last} of this query already, and its checkpoint goes on with "
            f"batch {number}: it is an old copy, or not the only one. Start the query with a new checkpoint location, "
            "after checking which messages of the queue the table holds."
        )
    table.keep(query)
    return True


def opened(
    place: Place, schema: pa.Schema, partition_by: Sequence[str] = (), optional: Container[str] | None = None
) -> Table:
    """The table as it is now: created when it is missing, and changed to hold these columns where it can be.

    `optional`: columns that may be null, where the table may be changed; None where it may not.

    Raises:
        InstanceError: it is another kind of table than these rows need, by the name of the column.
        Conflict: somebody else has changed it in between.
    """
    table = place.made(own(schema), partition_by)
    lacking = lacks(place, table, schema, partition_by, schema.names if optional is None else optional)
    if lacking and optional is None:
        needs = ", it ".join(lacking.sentences())
        raise InstanceError(
            f"The {place.kind} table '{place}' would have to change for the query (it {needs}): give the query the "
            "columns that the table has, or write into another folder."
        )
    return _changed(place, table, schema, lacking) if lacking else table


def lacks(place: Place, table: Table, schema: pa.Schema, partition_by: Sequence[str], optional: Container[str]) -> Plan:
    """What the table lacks for rows with these columns.

    Raises:
        InstanceError: it is another kind of table than these rows need, by the name of the column.
    """
    check_partitions(place, table, partition_by)
    columns = table.columns
    differs = any(field.name not in columns.names or columns.field(field.name).type != field.type for field in schema)
    return plan(str(place), columns, schema, optional, has_rows=differs and bool(table.files()))


def check_partitions(place: Place, table: Table, partition_by: Sequence[str]) -> None:
    """Refuse a table that is divided by other columns.

    Raises:
        InstanceError: it is.
    """
    if table.partition_by != list(partition_by):
        by = ", ".join(table.partition_by) or "nothing"
        raise InstanceError(
            f"The {place.kind} table '{place}' is partitioned by {by}, not by {', '.join(partition_by) or 'nothing'}."
        )


def _changed(place: Place, table: Table, schema: pa.Schema, lacking: Plan) -> Table:
    """The table with what it lacks: readers see it before or after."""
    import pyarrow as pa

    wanted = {field.name: field for field in own(schema)}
    wider = {one.column for one in lacking.widened}
    there = [field.with_type(wanted[field.name].type) if field.name in wider else field for field in table.columns]
    columns = pa.schema([*there, *(wanted[name] for name, _ in lacking.added)])
    if not table.gets(columns):
        table.become(columns, (pa.Table.from_batches(table.read(file, columns), columns) for file in table.files()))
    return place.open()


def own(schema: pa.Schema) -> pa.Schema:
    """Columns of a rule, which their mark tells from those that others have added."""
    import pyarrow as pa

    return pa.schema([field.with_metadata(OWN) for field in schema])


def others_columns(table: Table, schema: pa.Schema) -> list[str]:
    """Columns of the table that others have added, beside those of `schema`."""
    return [field.name for field in table.columns if field.name not in schema.names and not is_own(field)]


def is_own(field: pa.Field[Any]) -> bool:
    """Whether a column carries the mark of a rule."""
    return OWN.items() <= dict[Any, Any](field.metadata or {}).items()


def rows_of(place: Place, names: Sequence[str]) -> Iterator[pa.RecordBatch]:
    """The rows of a table in some of its columns, file by file.

    Raises:
        InstanceError: there is none, or it cannot be read.
    """
    import pyarrow as pa

    table = place.open()
    schema = pa.schema([table.columns.field(name) for name in names])
    for file in table.files():
        yield from table.read(file, schema)
