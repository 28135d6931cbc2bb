"""Rebuilds a table from bronze by its present rule: a new version of the table, which keeps its recorded batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import uuid4

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.sinks.landing import Target, fold_by_key, newest_by_key, target
from servicebroker.pipeline.sinks.maintenance import messages_of, replay
from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sinks.row_replacement import carry_columns, read_columns
from servicebroker.pipeline.sinks.row_selection import exclude_rows
from servicebroker.pipeline.sinks.tables import (
    TableLocation,
    TableVersion,
    check_partitions,
    commit_with_retry,
    foreign_columns,
    mark_own_columns,
)
from servicebroker.pipeline.sinks.warehouse import MAX_BUFFERED_BYTES
from servicebroker.pipeline.sorting import Sorter, landing_time

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_ATTEMPTS = 5  # each attempt reads bronze and writes the table
_MESSAGE_KEY = ["_conversation_handle", "_message_sequence_number"]
_ORDER = "_queuing_order"


class Rebuilt(NamedTuple):
    """A rebuilt table: its rows, and the messages in quarantine that the present rule cannot read."""

    table: str
    rows: int
    quarantined: int


def rebuild(pipeline: Pipeline, table: str) -> Rebuilt:
    """Decode the messages in bronze again into their table, then readable messages in quarantine.

    A rebuild may run beside a pipeline that lands batches: if a batch intervenes, the rebuild is repeated. It needs
    memory for the keys of all messages, and for the rows of a table with a key.

    Raises:
        InstanceError: no rule has such a table, there is no bronze table, bronze lacks messages of the table, or other
            writers change the table all the time. The table is then unchanged.
    """
    rule = next((rule for rule in pipeline.messages if rule.table == table), None)
    if rule is None:
        raise InstanceError(f"No rule of the pipeline '{pipeline.name}' has a table '{table}'.")
    if pipeline.format == "parquet" or not pipeline.bronze:
        raise InstanceError("A table can be rebuilt only from a bronze table of Delta or Iceberg.")
    table_target, bronze = target(pipeline, table), target(pipeline, pipeline.bronze).table
    location = table_target.table
    if not bronze.is_there():
        raise InstanceError("There is no bronze table yet: 'pipeline run' creates it.")
    if not location.is_there():  # an existing table is replaced as a whole
        table_target.ensure()
    with location.raising_instance_errors():
        change = partial(_rebuild, pipeline, rule, table_target, location, bronze)
        quarantined = commit_with_retry(location, change, _MAX_ATTEMPTS)
    replay(pipeline, rule.message_type)
    return Rebuilt(table, sum(file.rows for file in location.open().files()), quarantined)


def _rebuild(
    pipeline: Pipeline, rule: MessageRule, table_target: Target, location: TableLocation, bronze: TableLocation
) -> int:
    """Write the new version, and return how many messages went to quarantine."""
    import pyarrow as pa

    table = location.open()  # opened before bronze, where a batch lands first: bronze then has all its messages
    check_partitions(location, table, table_target.partition_by)
    added_columns = foreign_columns(table, table_target.schema)
    quarantine = target(pipeline, pipeline.quarantine)
    source = bronze.open()
    duplicates = _find_duplicates(source, rule, table_target, location, table)
    refused: list[tuple[str, list[DataFile], int]] = []

    def rows() -> Iterator[pa.Table]:
        for label, part_rows, unread in decode_bronze(pipeline, rule, source, duplicates):
            refused.append((label, quarantine.write(unread), unread.num_rows))
            yield part_rows

    def parts() -> Iterator[pa.Table]:
        """Yield the table's rows. After the last, and before the commit, unreadable messages go to quarantine."""
        for part in newest_rows(table_target, rows()) if table_target.key else _in_file_sizes(rows()):
            yield carry_columns(table, part, _MESSAGE_KEY, added_columns) if added_columns else part
        for label in {label for label, unread, _ in refused if unread}:
            unread = [file for queue, part_rows, _ in refused for file in part_rows if queue == label]
            quarantine.land(unread, f"rebuild {uuid4()}", 0)

    columns = [*mark_own_columns(table_target.schema), *(table.columns.field(name) for name in added_columns)]
    table.replace_content(pa.schema(columns), parts())
    return sum(count for _, _, count in refused)


def _find_duplicates(
    bronze: TableVersion, rule: MessageRule, table_target: Target, location: TableLocation, table: TableVersion
) -> pa.Array[Any]:
    """Return the positions in bronze of repeated messages of the rule.

    Refuses a bronze that lacks messages of the table.
    """
    keys = read_keys(bronze, rule.message_type)
    _check_complete(location, table, keys.select(_MESSAGE_KEY))
    return repeated_positions(keys, "max" if table_target.key else "min")


def read_keys(bronze: TableVersion, message_type: str, more: tuple[str, ...] = ()) -> pa.Table:
    """Return the keys and queuing orders of the messages of a type, one row for each row of bronze.

    `more`: further columns of bronze.
    """
    import pyarrow as pa

    names = ["conversation_handle", "message_sequence_number", "queuing_order", *more]
    schema = pa.schema([bronze.columns.field(name) for name in names])
    batches = [rows.select(names) for rows in messages_of(bronze, message_type, names)]
    return pa.Table.from_batches(batches, schema).rename_columns([*_MESSAGE_KEY, _ORDER, *more])


def repeated_positions(keys: pa.Table, keeps: Literal["min", "max"]) -> pa.Array[Any]:
    """Return the positions of repeated messages, except the lowest (`min`) or highest (`max`) queuing_order of each.

    Bronze identifies a message by its queuing_order. MOVE CONVERSATION gives a message that has landed and is not yet
    acknowledged a new one, so it lands again. In a table with a key the last one counted, else the first.
    """
    import pyarrow as pa
    from pyarrow import compute

    rank: Any = compute.rank(keys.column(_ORDER), "ascending", tiebreaker="first")  # a queuing_order may occur twice
    large = keys.column(0).cast(pa.large_string())  # all handles together may exceed a plain text column
    grouped = pa.table([large, keys.column(1), rank], [*_MESSAGE_KEY, "rank"]).group_by(_MESSAGE_KEY)
    kept: Any = grouped.aggregate([("rank", keeps)]).column(f"rank_{keeps}")
    if len(kept) == keys.num_rows:
        return pa.array([], pa.int64())
    is_repeated: Any = compute.invert(compute.is_in(rank, value_set=kept))
    positions: pa.Array[Any] = compute.indices_nonzero(is_repeated).cast(pa.int64())
    return positions


def decode_bronze(
    pipeline: Pipeline, rule: MessageRule, bronze: TableVersion, duplicates: pa.Array[Any]
) -> Iterator[tuple[str, pa.Table, pa.Table]]:
    """Yield parts of bronze without the positions `duplicates`: queue, rows of the table, and quarantine rows."""
    import pyarrow as pa
    from pyarrow import compute

    count = 0
    for batch in messages_of(bronze, rule.message_type):
        rows = exclude_rows(pa.Table.from_batches([batch]), compute.subtract(duplicates, count))
        count += batch.num_rows
        queues: Any = rows.column("queue")
        labels: list[Any] = compute.unique(queues).to_pylist()
        for label in labels:
            messages = rows.filter(compute.equal(queues, label))
            sorter = Sorter(pipeline, QueueRule("", "", "", label))
            yield label, *sorter.decode_or_quarantine(rule, messages, landing_time())


def _in_file_sizes(rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows as tables that are large enough for a file."""
    import pyarrow as pa

    buffered: list[pa.Table] = []
    for part_rows in rows:
        buffered.append(part_rows)
        if sum(part.nbytes for part in buffered) > MAX_BUFFERED_BYTES:
            yield pa.concat_tables(buffered)
            buffered = []
    if buffered:
        yield pa.concat_tables(buffered)


def newest_rows(table_target: Target, rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Yield the row that counts for each key."""
    rows_by_key = table_target.schema.empty_table()
    for part_rows in rows:
        rows_by_key = fold_by_key(table_target, rows_by_key, newest_by_key(part_rows, table_target))
    yield rows_by_key


def _check_complete(location: TableLocation, table: TableVersion, bronze_keys: pa.Table) -> None:
    """Refuse to lose rows whose messages bronze lacks, as when bronze was added later than the table."""
    lost = 0
    for file in table.files():
        keys = read_columns(table, file, _MESSAGE_KEY)
        lost += keys.join(bronze_keys, keys=_MESSAGE_KEY, join_type="left anti").num_rows
    if lost:
        raise InstanceError(
            f"The table '{location}' has {lost} rows of messages that bronze does not hold, and a rebuild would "
            "lose them: bring them back into bronze, or give the rule a table of another name."
        )
