"""A table made anew from bronze, by its rule as it is now: a new version of the same table, which knows its batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from uuid import uuid4

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.sinks.landing import Target, folded, newest, target
from servicebroker.pipeline.sinks.maintenance import messages_of, replay
from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sinks.places import except_at
from servicebroker.pipeline.sinks.replacing import carried, read_columns
from servicebroker.pipeline.sinks.tables import Place, Table, check_partitions, committed, others_columns, own
from servicebroker.pipeline.sinks.warehouse import FULL
from servicebroker.pipeline.sorting import Sorter, now_in_utc

if TYPE_CHECKING:
    import pyarrow as pa

_TRIES = 5  # each reads bronze and writes the table
_MESSAGE = ["_conversation_handle", "_message_sequence_number"]
_PLACE = "_queuing_order"


class Rebuilt(NamedTuple):
    """A table that was made anew: its rows, and messages that went to quarantine: the rule cannot read them now."""

    table: str
    rows: int
    quarantined: int


def rebuild(pipeline: Pipeline, table: str) -> Rebuilt:
    """Decode the messages in bronze again into their table, and what lies in quarantine and can be read now.

    It may run beside a pipeline that lands: where a batch comes in between, it is tried again. Memory: for a moment
    what names each message, and of a table with a key its rows.

    Raises:
        InstanceError: no rule has such a table, there is no bronze table, it lacks messages that the table has,
            or the table is changed by others all the time. Then nothing has changed.
    """
    rule = next((rule for rule in pipeline.messages if rule.table == table), None)
    if rule is None:
        raise InstanceError(f"No rule of the pipeline '{pipeline.name}' has a table '{table}'.")
    if pipeline.format == "parquet" or not pipeline.bronze:
        raise InstanceError("A table can be made anew from a bronze table of Delta or Iceberg only.")
    into, bronze = target(pipeline, table), target(pipeline, pipeline.bronze).table
    place = into.table
    if not place.is_there() or not bronze.is_there():
        raise InstanceError(f"There is no table '{table}' yet, or no bronze: 'pipeline run' makes them.")
    with place.said():
        quarantined = committed(place, partial(_rebuild, pipeline, rule, into, place, bronze), _TRIES)
    replay(pipeline, rule.message_type)
    return Rebuilt(table, sum(file.rows for file in place.open().files()), quarantined)


def _rebuild(pipeline: Pipeline, rule: MessageRule, into: Target, place: Place, bronze: Place) -> int:
    """How many messages went to quarantine."""
    import pyarrow as pa

    table = place.open()  # before bronze, where a batch lands first: it has all that the table has
    check_partitions(place, table, into.partition_by)
    others = others_columns(table, into.schema)
    quarantine = target(pipeline, pipeline.quarantine)
    source = bronze.open()
    again = _looked_through(source, rule, into, place, table)
    refused: list[tuple[str, list[DataFile], int]] = []

    def rows() -> Iterator[pa.Table]:
        for label, some, unread in _read_again(pipeline, rule, source, again):
            refused.append((label, quarantine.write(unread), unread.num_rows))
            yield some

    def parts() -> Iterator[pa.Table]:
        """The table's rows. Behind the last one, and before they count, what cannot be read is in quarantine."""
        for part in _with_key(into, rows()) if into.key else _in_parts(rows()):
            yield carried(table, part, _MESSAGE, others) if others else part
        for label in {label for label, unread, _ in refused if unread}:
            unread = [file for queue, some, _ in refused for file in some if queue == label]
            quarantine.land(unread, f"rebuild {uuid4()}", 0)

    table.become(pa.schema([*own(into.schema), *(table.columns.field(name) for name in others)]), parts())
    return sum(count for _, _, count in refused)


def _looked_through(bronze: Table, rule: MessageRule, into: Target, place: Place, table: Table) -> pa.Array[Any]:
    """Where messages of the rule stand in bronze once more, all being there."""
    named = _named(bronze, rule.message_type)
    _check_complete(place, table, named.select(_MESSAGE))
    return _again(named, "max" if into.key else "min")


def _named(bronze: Table, message_type: str) -> pa.Table:
    """What names the messages of a type in bronze, each as often as bronze has it, and their places in the queue."""
    import pyarrow as pa

    names = ["conversation_handle", "message_sequence_number", "queuing_order"]
    schema = pa.schema([bronze.columns.field(name) for name in names])
    found = [rows.select(names) for rows in messages_of(bronze, message_type, names)]
    return pa.Table.from_batches(found, schema).rename_columns([*_MESSAGE, _PLACE])


def _again(named: pa.Table, keeps: Literal["min", "max"]) -> pa.Array[Any]:
    """Where messages stand that are there once more, with a lower place in the queue (`min`) or a higher one (`max`).

    Bronze knows a message by its place, and MOVE CONVERSATION gives what has landed and is not acknowledged
    another. Where they landed by a key, the last place counted, and else the first.
    """
    import pyarrow as pa
    from pyarrow import compute

    rank: Any = compute.rank(named.column(_PLACE), "ascending", tiebreaker="first")  # a place may be there twice
    large = named.column(0).cast(pa.large_string())  # all of them together may be too many bytes for one text column
    grouped = pa.table([large, named.column(1), rank], [*_MESSAGE, "rank"]).group_by(_MESSAGE)
    kept: Any = grouped.aggregate([("rank", keeps)]).column(f"rank_{keeps}")
    if len(kept) == named.num_rows:
        return pa.array([], pa.int64())
    again: Any = compute.invert(compute.is_in(rank, value_set=kept))
    found: pa.Array[Any] = compute.indices_nonzero(again).cast(pa.int64())
    return found


def _read_again(
    pipeline: Pipeline, rule: MessageRule, bronze: Table, again: pa.Array[Any]
) -> Iterator[tuple[str, pa.Table, pa.Table]]:
    """Parts of bronze without what stands at `again`: the queue, rows of the rule's table, of quarantine for others."""
    import pyarrow as pa
    from pyarrow import compute

    count = 0
    for batch in messages_of(bronze, rule.message_type):
        rows = except_at(pa.Table.from_batches([batch]), compute.subtract(again, count))
        count += batch.num_rows
        queues: Any = rows.column("queue")
        labels: list[Any] = compute.unique(queues).to_pylist()
        for label in labels:
            messages = rows.filter(compute.equal(queues, label))
            yield label, *Sorter(pipeline, QueueRule("", "", "", label)).read_again(rule, messages, now_in_utc())


def _in_parts(rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """The rows in tables that are large enough for a file."""
    import pyarrow as pa

    waiting: list[pa.Table] = []
    for some in rows:
        waiting.append(some)
        if sum(part.nbytes for part in waiting) > FULL:
            yield pa.concat_tables(waiting)
            waiting = []
    if waiting:
        yield pa.concat_tables(waiting)


def _with_key(into: Target, rows: Iterator[pa.Table]) -> Iterator[pa.Table]:
    """Of each key the row that counts."""
    found = into.schema.empty_table()
    for some in rows:
        found = folded(into, found, newest(some, into))
    yield found


def _check_complete(place: Place, table: Table, known: pa.Table) -> None:
    """Refuse to lose rows whose messages bronze does not hold, as when it was switched on later than the table."""
    lost = 0
    for file in table.files():
        lost += read_columns(table, file, _MESSAGE).join(known, keys=_MESSAGE, join_type="left anti").num_rows
    if lost:
        raise InstanceError(
            f"The table '{place}' has {lost} rows of messages that bronze does not hold, and would lose them: "
            "bring them back into bronze, or give the rule a table of another name."
        )
