"""A table made anew from bronze, by its rule as it is now: a new version of the same table, which knows its batches."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import TYPE_CHECKING, Any, NamedTuple
from uuid import uuid4

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.delta import become, check_partitions, committed, others_columns, own_columns, said
from servicebroker.pipeline.delta_reader import files_of, open_table
from servicebroker.pipeline.landing import Target, folded, newest, target
from servicebroker.pipeline.maintenance import messages_of, replay
from servicebroker.pipeline.parquet import DataFile, write_divided
from servicebroker.pipeline.replacing import carried, read_columns
from servicebroker.pipeline.sorting import Sorter, now_in_utc
from servicebroker.pipeline.storage import has_table
from servicebroker.pipeline.warehouse import FULL

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_TRIES = 5  # each reads bronze and writes the table
_MESSAGE = ["_conversation_handle", "_message_sequence_number"]


class Rebuilt(NamedTuple):
    """A table that was made anew: its rows, and messages that went to quarantine: the rule cannot read them now."""

    table: str
    rows: int
    quarantined: int


def rebuild(pipeline: Pipeline, table: str) -> Rebuilt:
    """Decode the messages in bronze again into their table, and what lies in quarantine and can be read now.

    It may run beside a pipeline that lands: where a batch comes in between, it is tried again. Memory: what names each
    message, and of a table with a key its rows.

    Raises:
        InstanceError: no rule has such a table, there is no bronze in Delta, it lacks messages that the table has,
            or the table is changed by others all the time. Then nothing has changed.
    """
    rule = next((rule for rule in pipeline.messages if rule.table == table), None)
    if rule is None:
        raise InstanceError(f"No rule of the pipeline '{pipeline.name}' has a table '{table}'.")
    if pipeline.format != "delta" or not pipeline.bronze:
        raise InstanceError("A table can be made anew from a bronze table in Delta only.")
    into = target(pipeline, table)
    if not has_table(into.folder) or not has_table(pipeline.folder(pipeline.bronze)):
        raise InstanceError(f"There is no table '{table}' yet, or no bronze: 'pipeline run' makes them.")
    with said(into.folder):
        quarantined = committed(into.folder, partial(_rebuild, pipeline, rule, into), _TRIES)
    replay(pipeline, rule.message_type)
    return Rebuilt(table, int(open_table(into.folder).count()), quarantined)


def _rebuild(pipeline: Pipeline, rule: MessageRule, into: Target) -> int:
    """How many messages went to quarantine."""
    table = open_table(into.folder)  # before bronze, where a batch lands first: it has all that the table has
    check_partitions(into.folder, table, into.partition_by)
    others = others_columns(table, into.schema)
    quarantine = target(pipeline, pipeline.quarantine)
    known: list[pa.Table] = []
    refused: list[tuple[str, list[DataFile], int]] = []

    def rows() -> Iterator[pa.Table]:
        for label, some, unread, messages in _read_again(pipeline, rule):
            known.append(messages.rename_columns(_MESSAGE))
            refused.append((label, quarantine.write(unread), unread.num_rows))
            yield some

    written = _with_key(into, rows()) if into.key else _in_parts(rows())
    files: list[DataFile] = []
    for part in written:
        part = carried(into.folder, table, part, _MESSAGE, others) if others else part
        files += write_divided(part, into.folder, into.partition_by)
    _check_complete(into, table, known)
    for label in {label for label, unread, _ in refused if unread}:
        unread = [file for queue, some, _ in refused for file in some if queue == label]
        quarantine.land(unread, f"rebuild {uuid4()}", 0)
    theirs = [there for there in table.schema().fields if there.name in others]
    become(into.folder, table, [*own_columns(into.schema), *theirs], files)
    return sum(count for _, _, count in refused)


def _read_again(pipeline: Pipeline, rule: MessageRule) -> Iterator[tuple[str, pa.Table, pa.Table, pa.Table]]:
    """Parts of bronze: the queue, rows of the rule's table, of quarantine for the others, what names the messages."""
    import pyarrow as pa
    from pyarrow import compute

    bronze = pipeline.folder(pipeline.bronze)
    for batch in messages_of(bronze, open_table(bronze), rule.message_type):
        queues: Any = batch.column("queue")
        labels: list[Any] = compute.unique(queues).to_pylist()
        for label in labels:
            messages = pa.Table.from_batches([batch.filter(compute.equal(queues, label))])
            found = Sorter(pipeline, QueueRule("", "", "", label)).read_again(rule, messages, now_in_utc())
            yield label, *found, messages.select(["conversation_handle", "message_sequence_number"])


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


def _check_complete(into: Target, table: DeltaTable, known: list[pa.Table]) -> None:
    """Refuse to lose rows whose messages bronze does not hold, as when it was switched on later than the table."""
    import pyarrow as pa

    empty = pa.schema([into.schema.field(name) for name in _MESSAGE]).empty_table()
    there = pa.concat_tables([empty, *known])
    lost = 0
    for file in files_of(table):
        lost += (
            read_columns(into.folder, table, file, _MESSAGE).join(there, keys=_MESSAGE, join_type="left anti").num_rows
        )
    if lost:
        raise InstanceError(
            f"The table '{into.folder}' has {lost} rows of messages that bronze does not hold, and would lose them: "
            "bring them back into bronze, or give the rule a table of another name."
        )
