"""The Spark sink `servicebroker_warehouse`: decodes batches of messages in tasks, and writes them into tables."""

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
from servicebroker.overriding import override
from servicebroker.pipeline.definition import Pipeline, QueueRule
from servicebroker.pipeline.quarantine_counts import Counts, count_quarantined, counts_path, write_counts
from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sinks.target import target
from servicebroker.pipeline.sorting import ConversationFailure, Sorter, write_time
from servicebroker.pipeline.spark_task import query_id

if TYPE_CHECKING:
    import pyarrow as pa

_ALREADY_ENDED = (8426, 8427)  # error numbers: unknown handle, already ended by this side
UNREADABLE_ERROR_CODE = 1  # error code of END CONVERSATION WITH ERROR after an unreadable message
MAX_BUFFERED_BYTES = 128 * 1024 * 1024  # rows that a task keeps in memory for one table before it writes a file


@dataclass
class WarehouseTaskResult(WriterCommitMessage):
    """The result of one task, for the commit.

    Attributes:
        query_id: the Spark query.
        files: written files by table.
        failures: conversations to end with an error.
        quarantined: counts of the messages in the quarantine files.
    """

    query_id: str
    files: dict[str, list[DataFile]]
    failures: list[ConversationFailure]
    quarantined: Counts = field(default_factory=Counter)


class WarehouseSink(DataSource):
    """`writeStream.format("servicebroker_warehouse")`. Options: pipeline (`Pipeline.to_text`), queue (its label)."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._pipeline_text, self._label = options.get("pipeline", ""), options.get("queue", "")

    @override
    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "servicebroker_warehouse"

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> WarehouseWriter:
        """Return the writer for a streaming query."""
        if overwrite or not self._pipeline_text:
            raise InstanceError(
                "The servicebroker_warehouse sink is only for pipelines of servicebroker, and only appends."
            )
        pipeline = Pipeline.from_text(self._pipeline_text)
        return WarehouseWriter(pipeline, pipeline.queue_labelled(self._label))


class WarehouseWriter(DataSourceStreamArrowWriter):
    """Decodes messages and writes files in the tasks. At the end of a batch, commits the files once in each table."""

    def __init__(self, pipeline: Pipeline, queue: QueueRule) -> None:
        self._pipeline = pipeline
        self._queue = queue

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WarehouseTaskResult:  # type: ignore[override] # as in pyspark's own
        """Decode the messages of one task, and write the rows into files for their tables."""
        from servicebroker.pipeline.stream.rows import messages_for_sink

        query = query_id("servicebroker_warehouse")
        return sort_rows(self._pipeline, self._queue, query, messages_for_sink(iterator))

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Commit the batch in every table that lacks it, then end the failed conversations."""
        results = [message for message in messages if isinstance(message, WarehouseTaskResult)]
        commit_results(self._pipeline, self._queue, results, batchId)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: no table names the files, or the batch was committed and Spark does not know it."""


def sort_rows(
    pipeline: Pipeline, queue: QueueRule, query: str, batches: Iterator[pa.RecordBatch]
) -> WarehouseTaskResult:
    """Decode messages, and write their rows into files for each table."""
    import pyarrow as pa

    sorter = Sorter(pipeline, queue)
    files: dict[str, list[DataFile]] = {}
    buffered: dict[str, list[pa.Table]] = {}
    failures: list[ConversationFailure] = []
    quarantined: Counts = Counter()

    def write(table: str) -> None:
        rows = pa.concat_tables(buffered.pop(table))
        files.setdefault(table, []).extend(target(pipeline, table).write(rows))

    for batch in batches:
        if not batch.num_rows:
            continue
        sorted_rows = sorter.sort(batch, write_time())
        failures += sorted_rows.failures
        for table, rows in sorted_rows.tables.items():
            if table == pipeline.quarantine:
                quarantined += count_quarantined(rows)
            buffered.setdefault(table, []).append(rows)
            if sum(part.nbytes for part in buffered[table]) > MAX_BUFFERED_BYTES:
                write(table)
    for table in list(buffered):
        write(table)
    return WarehouseTaskResult(query, files, failures, quarantined)


def commit_results(pipeline: Pipeline, queue: QueueRule, results: list[WarehouseTaskResult], batch_id: int) -> None:
    """Commit a batch in each table, once per table. Then end the failed conversations, which is idempotent.

    Quarantine is committed first. A rule may change between an interrupted batch and its repetition. If a message has
    become readable, it is then in quarantine and in its table, and not lost. If a message has become unreadable,
    quarantine gets it now even if it already has the batch, since the
    message's table may lack it.
    """

    def files_of(table: str) -> list[DataFile]:
        return [file for result in results for file in result.files.get(table, ())]

    for table in sorted(pipeline.table_names(), key=lambda table: table != pipeline.quarantine):
        if pipeline.table_with_tombstones(table):  # gets its files with those of its table
            continue
        files, deletes = files_of(table), files_of(pipeline.tombstones(table))
        if files or deletes:
            is_quarantine = table == pipeline.quarantine
            query = results[0].query_id
            target(pipeline, table).commit(files, query, batch_id, deletes=deletes, adds_missing=is_quarantine)
    quarantined: Counts = sum((result.quarantined for result in results), Counter())
    if quarantined:
        write_counts(counts_path(pipeline, queue), batch_id, quarantined)
    failures = {failure.conversation_handle: failure for result in results for failure in result.failures}
    if failures:
        _end(queue, list(failures.values()))


def _end(queue: QueueRule, failures: list[ConversationFailure]) -> None:
    from servicebroker.engine.conversation.end import end_conversation
    from servicebroker.operations.end import EndConversation
    from servicebroker.pipeline.open_database import OpenDatabase
    from servicebroker.pipeline.options import source_options
    from servicebroker.pipeline.stream.acknowledgement import archive_conversation
    from servicebroker.store.running import run
    from servicebroker.store.server_time import server_time

    archives = source_options(queue.source_options()).archives
    with closing(OpenDatabase.open(queue.instance, queue.database)) as database:
        for failure in sorted(failures):
            error = (UNREADABLE_ERROR_CODE, f"{failure.reason}: {failure.detail}"[:3000])
            handle = UUID(failure.conversation_handle)
            try:
                with database.connection.transaction():
                    if archives:
                        run(database.connection, archive_conversation(handle))
                    ending = EndConversation(handle, error=error)
                    run(database.connection, end_conversation(ending, now=server_time(database.connection)))
            except BrokerError as refused:
                if refused.number not in _ALREADY_ENDED:
                    raise
