"""Rebuilds a table from bronze (the raw table) with its current rule. The table keeps its recorded batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import uuid4

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.sinks.keyed_rows import Changes, fold
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
    mark_rule_columns,
)
from servicebroker.pipeline.sinks.target import Target, target
from servicebroker.pipeline.sinks.warehouse import MAX_BUFFERED_BYTES
from servicebroker.pipeline.sorting import Decoded, Sorter, write_time

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_ATTEMPTS = 5  # few, since each attempt reads all of bronze and writes the whole table
_MESSAGE_KEY = ["_conversation_handle", "_message_sequence_number"]
_ORDER = "_queuing_order"


class Rebuilt(NamedTuple):
    """A rebuilt table: its number of rows, and the number of messages that the rule cannot read, now in quarantine."""

    table: str
    rows: int
    quarantined: int


def rebuild(pipeline: Pipeline, table: str) -> Rebuilt:
    """Write all rows of a table again, from the messages in bronze. Then replay quarantined messages of the type.

    The pipeline may write batches meanwhile: if a batch intervenes, the rebuild is repeated. It needs memory for the
    keys of all messages, and, if the table has a key, for all its rows.

    Raises:
        InstanceError: no rule has the table, there is no bronze table, bronze lacks messages of the table, or another
            commit intervened in each attempt. The table is then unchanged.
    """
    table = pipeline.table_with_tombstones(table) or table  # both are rebuilt together
    rules = pipeline.rules_of(table)
    if not rules:
        raise InstanceError(f"No rule of the pipeline '{pipeline.name}' has a table '{table}'.")
    if pipeline.format == "parquet" or not pipeline.bronze:
        raise InstanceError("A table is rebuilt from the bronze table: the pipeline needs one, in Delta or Iceberg.")
    table_target, bronze = target(pipeline, table), target(pipeline, pipeline.bronze).table
    location = table_target.table
    if not bronze.exists():
        raise InstanceError("There is no bronze table yet: 'pipeline run' creates it.")
    if not location.exists():  # the columns of an existing table are replaced too
        table_target.create_or_extend()
    with location.raising_instance_errors():
        change = partial(_rebuild, pipeline, rules, table_target, location, bronze)
        quarantined = commit_with_retry(location, change, _MAX_ATTEMPTS)
    for rule in rules:
        replay(pipeline, rule.message_type)
    return Rebuilt(table, sum(file.rows for file in location.open().files()), quarantined)


class _Unreadable(NamedTuple):
    """Unreadable messages of a queue, and the files with their quarantine rows."""

    queue: str
    files: list[DataFile]
    messages: int


def _rebuild(
    pipeline: Pipeline, rules: list[MessageRule], table_target: Target, location: TableLocation, bronze: TableLocation
) -> int:
    """Write the new versions of the table and its tombstones. Returns the number of messages that went to quarantine.

    The tombstones are committed first: then no batch can add a row that a message of bronze has deleted.
    """
    import pyarrow as pa

    table = location.open()  # before bronze, which gets each batch first: so bronze has all messages of this version
    tombstones = _open_tombstones(table_target)
    check_partitions(location, table, table_target.partition_by)
    added_columns = foreign_columns(table, table_target.schema)
    quarantine = target(pipeline, pipeline.quarantine)
    source = bronze.open()
    duplicates = _find_duplicates(source, rules, table_target, location, table)
    if tombstones and table_target.tombstones:
        _check_tombstones(source, table_target.tombstones.table, tombstones)
    unreadable: list[_Unreadable] = []

    def changes() -> Iterator[Changes]:
        for label, part_changes, unreadable_rows in decode_bronze(pipeline, rules, source, duplicates):
            unreadable.append(_Unreadable(label, quarantine.write(unreadable_rows), unreadable_rows.num_rows))
            yield part_changes

    def parts() -> Iterator[pa.Table]:
        """Yield the table's rows. After the last one, and so before the commit, commit quarantine and tombstones."""
        newest = newest_rows(table_target, changes()) if table_target.key else None
        for part in _in_file_sizes(part.rows for part in changes()) if newest is None else [newest.rows]:
            yield carry_columns(table, part, _MESSAGE_KEY, added_columns) if added_columns else part
        for label in {part.queue for part in unreadable if part.files}:
            files = [file for part in unreadable for file in part.files if part.queue == label]
            quarantine.commit(files, f"rebuild {uuid4()}", 0)
        if tombstones and newest and newest.deletes is not None:
            tombstones.replace_content(mark_rule_columns(newest.deletes.schema), iter([newest.deletes]))

    columns = [*mark_rule_columns(table_target.schema), *(table.columns.field(name) for name in added_columns)]
    table.replace_content(pa.schema(columns), parts())
    return sum(part.messages for part in unreadable)


def _open_tombstones(table_target: Target) -> TableVersion | None:
    """Return the newest version of the tombstone table, which is created if it is missing; None without one."""
    if table_target.tombstones is None:
        return None
    location = table_target.tombstones.table
    if not location.exists():  # the columns of an existing table are replaced too
        table_target.tombstones.create_or_extend()
    return location.open()


def _find_duplicates(
    bronze: TableVersion, rules: list[MessageRule], table_target: Target, location: TableLocation, table: TableVersion
) -> pa.Array[Any]:
    """Return the positions in bronze of repeated messages of the rules' types.

    Raises:
        InstanceError: bronze lacks messages of the table.
    """
    keys = read_keys(bronze, [rule.message_type for rule in rules])
    _check_complete(location, table, keys.select(_MESSAGE_KEY))
    return repeated_positions(keys, "max" if table_target.key else "min")


def read_keys(bronze: TableVersion, message_types: Sequence[str] | None, more: tuple[str, ...] = ()) -> pa.Table:
    """Return the keys and queuing orders of the messages of some types in bronze, one row for each message.

    `message_types`: None for all. `more`: further columns of bronze.
    """
    import pyarrow as pa

    names = ["conversation_handle", "message_sequence_number", "queuing_order", *more]
    schema = pa.schema([bronze.columns.field(name) for name in names])
    batches = [rows.select(names) for rows in messages_of(bronze, message_types, names)]
    return pa.Table.from_batches(batches, schema).rename_columns([*_MESSAGE_KEY, _ORDER, *more])


def repeated_positions(keys: pa.Table, keeps: Literal["min", "max"]) -> pa.Array[Any]:
    """Return the positions of repetitions: all but the lowest (`min`) or highest (`max`) queuing_order of a message.

    Bronze identifies a message by its queuing_order. MOVE CONVERSATION may give a message a new queuing_order after it
    was written and before it is acknowledged. The message is then written again. Of its rows, a table with a key keeps
    the last one, any other table the first one.
    """
    import pyarrow as pa
    from pyarrow import compute

    # "first" ranks rows with equal queuing_order, which may occur twice.
    rank: Any = compute.rank(keys.column(_ORDER), "ascending", tiebreaker="first")
    large = keys.column(0).cast(pa.large_string())  # together, the handles may exceed the 2 GiB of a string column
    grouped = pa.table([large, keys.column(1), rank], [*_MESSAGE_KEY, "rank"]).group_by(_MESSAGE_KEY)
    kept_ranks: Any = grouped.aggregate([("rank", keeps)]).column(f"rank_{keeps}")
    if len(kept_ranks) == keys.num_rows:
        return pa.array([], pa.int64())
    is_repeated: Any = compute.invert(compute.is_in(rank, value_set=kept_ranks))
    positions: pa.Array[Any] = compute.indices_nonzero(is_repeated).cast(pa.int64())
    return positions


def decode_bronze(
    pipeline: Pipeline, rules: Sequence[MessageRule], bronze: TableVersion, duplicates: pa.Array[Any]
) -> Iterator[tuple[str, Changes, pa.Table]]:
    """Yield for each part of bronze: the queue's label, rows and deletes of a table, and rows for quarantine.

    Args:
        rules: the rules of one table.
        duplicates: positions to skip, among the messages of their types.
    """
    import pyarrow as pa
    from pyarrow import compute

    table_target = target(pipeline, rules[0].table)
    count = 0
    for batch in messages_of(bronze, [rule.message_type for rule in rules]):
        bronze_rows = exclude_rows(pa.Table.from_batches([batch]), compute.subtract(duplicates, count))
        count += batch.num_rows
        queues: Any = bronze_rows.column("queue")
        labels: list[Any] = compute.unique(queues).to_pylist()
        for label in labels:
            messages = bronze_rows.filter(compute.equal(queues, label))
            sorter = Sorter(pipeline, QueueRule("", "", "", label))
            parts = [_decode_type(sorter, rule, messages) for rule in rules]
            row_parts = [decoded.rows for decoded, _ in parts if decoded.rows is not None]
            rows = pa.concat_tables([table_target.schema.empty_table(), *row_parts])
            deletes = None
            if table_target.tombstones:
                deleted = [decoded.deletes for decoded, _ in parts if decoded.deletes is not None]
                deletes = pa.concat_tables([table_target.tombstones.schema.empty_table(), *deleted])
            yield label, Changes(rows, deletes), pa.concat_tables([unreadable for _, unreadable in parts])


def _decode_type(sorter: Sorter, rule: MessageRule, messages: pa.Table) -> tuple[Decoded, pa.Table]:
    """Return the decoded messages of the rule's type, and quarantine rows for the unreadable ones."""
    import pyarrow as pa
    from pyarrow import compute

    of_type = messages.filter(compute.equal(messages.column("message_type_name"), pa.scalar(rule.message_type)))
    return sorter.decode_or_quarantine(rule, of_type, write_time())


def _in_file_sizes(rows: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yield the rows in tables of more than `MAX_BUFFERED_BYTES`, each for a file; the last one may be smaller."""
    import pyarrow as pa

    buffered: list[pa.Table] = []
    for part_rows in rows:
        buffered.append(part_rows)
        if sum(part.nbytes for part in buffered) > MAX_BUFFERED_BYTES:
            yield pa.concat_tables(buffered)
            buffered = []
    if buffered:
        yield pa.concat_tables(buffered)


def newest_rows(table_target: Target, parts: Iterator[Changes]) -> Changes:
    """Return the newest row of each key that is not deleted, and the newest delete of each key."""
    tombstones = table_target.tombstones
    newest = Changes(table_target.schema.empty_table(), tombstones.schema.empty_table() if tombstones else None)
    for part in parts:
        newest = fold(table_target.key, newest, part)
    return newest


def _check_tombstones(bronze: TableVersion, location: TableLocation, tombstones: TableVersion) -> None:
    """Check that bronze has the message of each tombstone. Without it, older messages would bring back a deleted row.

    Raises:
        InstanceError: bronze lacks messages.
    """
    if sum(file.rows for file in tombstones.files()):
        _check_complete(location, tombstones, read_keys(bronze, None).select(_MESSAGE_KEY))


def _check_complete(location: TableLocation, table: TableVersion, bronze_keys: pa.Table) -> None:
    """Check that bronze has the message of each row. It lacks some if it was added later than the table.

    Raises:
        InstanceError: bronze lacks messages, so a rebuild would lose rows.
    """
    lost = 0
    for file in table.files():
        keys = read_columns(table, file, _MESSAGE_KEY)
        lost += keys.join(bronze_keys, keys=_MESSAGE_KEY, join_type="left anti").num_rows
    if lost:
        raise InstanceError(
            f"The table '{location}' has {lost} rows of messages that bronze does not hold, and a rebuild would "
            "lose them: bring them back into bronze, or give the rule a table of another name."
        )
