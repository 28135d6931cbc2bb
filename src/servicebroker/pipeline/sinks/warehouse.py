"""The sink `servicebroker_warehouse`: a batch of messages is decoded in the tasks and lands in a pipeline's tables."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, MutableMapping
from contextlib import closing
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from uuid import UUID

from pyspark.sql.datasource import DataSource, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import StructType

from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.pipeline.definition import Pipeline, QueueRule
from servicebroker.pipeline.quarantine_counts import Counts, count, note, place
from servicebroker.pipeline.sinks.landing import target
from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sorting import Bad, Sorter, now_in_utc
from servicebroker.pipeline.spark_task import query_id

if TYPE_CHECKING:
    import pyarrow as pa

_ENDED = (8426, 8427)  # unknown handle, already ended by this side
UNREADABLE = 1  # the code of the error that a conversation with an unreadable message ends with
FULL = 128 * 1024 * 1024  # bytes of rows that a task keeps for one table before it writes a file


@dataclass
class Written(WriterCommitMessage):
    """What one task hands to the commit: for whom, the files of each table, and the conversations to end.

    `quarantined`: messages that are in the files of the quarantine.
    """

    query_id: str
    files: dict[str, list[DataFile]]
    bad: list[Bad]
    quarantined: Counts = field(default_factory=Counter)


class WarehouseSink(DataSource):
    """`writeStream.format("servicebroker_warehouse")` with the options pipeline (`Pipeline.to_text`) and queue."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._text, self._label = options.get("pipeline", ""), options.get("queue", "")

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "servicebroker_warehouse"

    def streamWriter(self, schema: StructType, overwrite: bool) -> WarehouseWriter:
        """The writer of a streaming query."""
        if overwrite or not self._text:
            raise InstanceError(
                "The servicebroker_warehouse sink is for the pipelines of servicebroker alone, and only appends."
            )
        pipeline = Pipeline.from_text(self._text)
        (queue,) = (rule for rule in pipeline.queues if rule.label == self._label)
        return WarehouseWriter(pipeline, queue)


class WarehouseWriter(DataSourceStreamArrowWriter):
    """Sorts and writes in the tasks; at the end of a batch the files count, in every table once."""

    def __init__(self, pipeline: Pipeline, queue: QueueRule) -> None:
        self._pipeline = pipeline
        self._queue = queue

    def write(self, iterator: Iterator[pa.RecordBatch]) -> Written:  # type: ignore[override] # as in pyspark's own
        """The rows of one task, in files of their tables."""
        from servicebroker.pipeline.stream.rows import delivered

        query = query_id("servicebroker_warehouse")
        return sort_rows(self._pipeline, self._queue, query, delivered(iterator))

    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Land the batch in every table that has not had it, then end the conversations that are to be ended."""
        written = [message for message in messages if isinstance(message, Written)]
        land_rows(self._pipeline, self._queue, written, batchId)

    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Nothing: the files stay unnamed, or the batch has landed and Spark does not know."""


def sort_rows(pipeline: Pipeline, queue: QueueRule, query: str, batches: Iterator[pa.RecordBatch]) -> Written:
    """Messages into files of their tables."""
    import pyarrow as pa

    sorter = Sorter(pipeline, queue)
    files: dict[str, list[DataFile]] = {}
    waiting: dict[str, list[pa.Table]] = {}
    bad: list[Bad] = []
    quarantined: Counts = Counter()

    def write(table: str) -> None:
        rows = pa.concat_tables(waiting.pop(table))
        files.setdefault(table, []).extend(target(pipeline, table).write(rows))

    for batch in batches:
        if not batch.num_rows:
            continue
        found = sorter.sort(batch, now_in_utc())
        bad += found.bad
        for table, rows in found.tables.items():
            if table == pipeline.quarantine:
                quarantined += count(rows)
            waiting.setdefault(table, []).append(rows)
            if sum(part.nbytes for part in waiting[table]) > FULL:
                write(table)
    for table in list(waiting):
        write(table)
    return Written(query, files, bad, quarantined)


def land_rows(pipeline: Pipeline, queue: QueueRule, written: list[Written], batch_id: int) -> None:
    """Make a batch count, table by table, each once; then end its conversations, which a second time does nothing.

    Quarantine is first: where a rule is mended between a batch that is cut off and the next try, a message that is
    readable now is in both tables, and not in none. Where one has become stricter instead, quarantine gets what it
    lacked at the first try: the message's own table may not have had the batch, and gets no row of it any more.
    """
    for table in sorted(pipeline.table_names(), key=lambda table: table != pipeline.quarantine):
        files = [file for one in written for file in one.files.get(table, ())]
        if files:
            fills = table == pipeline.quarantine
            target(pipeline, table).land(files, written[0].query_id, batch_id, fills=fills)
    quarantined: Counts = sum((one.quarantined for one in written), Counter())
    if quarantined:
        note(place(pipeline, queue), batch_id, quarantined)
    bad = {one.conversation_handle: one for part in written for one in part.bad}
    if bad:
        _end(queue, list(bad.values()))


def _end(queue: QueueRule, bad: list[Bad]) -> None:
    from servicebroker.engine.conversation.end import end_conversation
    from servicebroker.operations.end import EndConversation
    from servicebroker.pipeline.connecting import OpenDatabase
    from servicebroker.pipeline.options import source_options
    from servicebroker.pipeline.stream.acknowledge import archive_conversation
    from servicebroker.store.running import run
    from servicebroker.store.server_time import server_time

    archives = source_options(queue.source_options()).archives
    with closing(OpenDatabase.open(queue.instance, queue.database)) as database:
        for one in sorted(bad):
            error = (UNREADABLE, f"{one.reason}: {one.detail}"[:3000])
            handle = UUID(one.conversation_handle)
            try:
                with database.connection.transaction():
                    if archives:
                        run(database.connection, archive_conversation(handle))
                    ending = EndConversation(handle, error=error)
                    run(database.connection, end_conversation(ending, now=server_time(database.connection)))
            except BrokerError as refused:
                if refused.number not in _ENDED:
                    raise
