"""The Spark sink `servicebroker`: sends rows as messages, exactly once per batch of a query or per sendId of a job.

Import modules that work with the server where they are used: see `source.py`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING
from uuid import uuid4

from pyspark.sql.datasource import DataSourceArrowWriter, DataSourceStreamArrowWriter, WriterCommitMessage
from pyspark.sql.types import ArrayType, BinaryType, MapType, StringType, StructType

from servicebroker.model.errors import InstanceError
from servicebroker.overriding import override
from servicebroker.pipeline.options import WriterOptions
from servicebroker.pipeline.spark_task import partition_id, query_id
from servicebroker.pipeline.staging import BODY, TYPE, Checksum, Cutter, Digest, stage

if TYPE_CHECKING:
    import pyarrow as pa

    from servicebroker.pipeline.sending import Staged


@dataclass
class WriterTaskResult(WriterCommitMessage):
    """The result of one task, for the commit: the writer's name, the task's partition, and the staged rows."""

    writer: str
    partition: int
    staged: Staged


class MessageStreamWriter(DataSourceStreamArrowWriter):
    """Stages the rows of a streaming query in the tasks, and sends them at the end of each batch."""

    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        check_columns(options, schema)
        self._options = options

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterTaskResult:  # type: ignore[override] # as in pyspark's own
        """Copy the rows of one task into the stage."""
        return write_rows(self._options, query_id("servicebroker"), iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Send the batch, unless it was already sent."""
        commit_rows(self._options, messages, batchId, finish=False)

    @override
    def abort(self, messages: list[WriterCommitMessage | None], batchId: int) -> None:
        """Do nothing: the batch may be sent although Spark does not know it. The next batch deletes its staged rows."""


class MessageBatchWriter(DataSourceArrowWriter):
    """Stages and sends the rows of a batch job, which the option sendId names.

    The job ends its conversations when all rows are sent.
    """

    def __init__(self, options: WriterOptions, schema: StructType) -> None:
        check_columns(options, schema)
        if not options.send_id:
            raise InstanceError(
                "The servicebroker writer needs the option 'sendId' in a batch job: a name under which these rows are "
                "sent once, however often the job runs."
            )
        self._options = options

    @override
    def write(self, iterator: Iterator[pa.RecordBatch]) -> WriterTaskResult:  # type: ignore[override] # as in pyspark's own
        """Copy the rows of one task into the stage."""
        return write_rows(self._options, job_name(self._options), iterator)

    @override
    def commit(self, messages: list[WriterCommitMessage | None]) -> None:
        """Send all rows, unless they were already sent."""
        commit_rows(self._options, messages, 0, finish=True)

    @override
    def abort(self, messages: list[WriterCommitMessage | None]) -> None:
        """Do nothing, as `MessageStreamWriter.abort`."""


def check_columns(options: WriterOptions, schema: StructType) -> None:
    """Refuse rows that cannot become messages.

    Raises:
        InstanceError: the rows have no message_body of binary or string, no message type, or no column for the option
            key.
    """
    types = {field.name: field.dataType for field in schema.fields}
    if not isinstance(types.get(BODY), BinaryType | StringType):
        raise InstanceError(f"The servicebroker writer needs a column '{BODY}' of binary or string.")
    if TYPE in types and not isinstance(types[TYPE], StringType):
        raise InstanceError(f"The column '{TYPE}' must be of string.")
    if TYPE not in types and not options.message_type:
        raise InstanceError(f"The servicebroker writer needs the option 'messageType', or a column '{TYPE}'.")
    if options.key and options.key not in types:
        raise InstanceError(f"The rows have no column '{options.key}', which the option 'key' names.")
    if isinstance(types.get(options.key), ArrayType | MapType | StructType):
        raise InstanceError(f"The column '{options.key}', which the option 'key' names, must hold single values.")


def job_name(options: WriterOptions) -> str:
    """Return the name under which `servicebroker.writers` records a batch job."""
    return f"sendId {options.send_id}"


def write_rows(options: WriterOptions, writer: str, batches: Iterator[pa.RecordBatch]) -> WriterTaskResult:
    """Copy the rows of one task into the stage, divided into pieces."""
    from servicebroker.pipeline.open_database import OpenDatabase
    from servicebroker.pipeline.sending import Staged

    partition, attempt = partition_id(), uuid4()
    cutter = Cutter(options.conversations, options.message_type, options.key, partition)
    with closing(OpenDatabase.open(options.instance, options.database, in_task=True)) as database:
        digest = Digest() if options.send_id else Checksum()
        messages = stage(database.connection, writer, attempt, digest.observe(cutter.pieces(batches)))
    return WriterTaskResult(writer, partition, Staged(attempt, messages, digest.value))


def commit_rows(
    options: WriterOptions, messages: Sequence[WriterCommitMessage | None], batch: int, *, finish: bool
) -> bool:
    """Send the staged rows of all tasks, in the order of their partitions. `finish`: end the job's conversations.

    Returns False if the rows were already sent.
    """
    from servicebroker.engine.catalog.catalog import Catalog
    from servicebroker.model.security.permissions import DBO_ID
    from servicebroker.pipeline.open_database import OpenDatabase
    from servicebroker.pipeline.sending import Sender, send_staged
    from servicebroker.store.running import run
    from servicebroker.store.server_time import server_time

    results = [message for message in messages if isinstance(message, WriterTaskResult)]
    results.sort(key=lambda result: result.partition)
    if not finish and not any(result.staged.messages for result in results):
        return False
    writer = results[0].writer if results else job_name(options)
    with closing(OpenDatabase.open(options.instance, options.database)) as database:
        catalog = Catalog(None if database.user.principal_id == DBO_ID else database.user)
        sender = Sender(writer, database.database_id, options, catalog, finish)
        staged = [result.staged for result in results]
        with database.connection.transaction():
            now = server_time(database.connection)
            return run(database.connection, send_staged(sender, batch, staged, now))
