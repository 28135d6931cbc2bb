"""The Spark format `servicebroker`: a queue as a stream, exactly once, each conversation in its order; and a sink.

Spark starts several processes for each query that need this class and nothing of what it does: what reads and writes
is imported where it is used.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.message_columns import COLUMNS, PARTS
from servicebroker.pipeline.options import source_options, writer_options

if TYPE_CHECKING:
    from servicebroker.pipeline.stream.reader import QueueReader, QueueStreamReader
    from servicebroker.pipeline.writer import MessageBatchWriter, MessageStreamWriter


class ServiceBrokerSource(DataSource):
    """`spark.readStream.format("servicebroker")`, and `spark.read` to look at a queue without consuming it.

    As a sink, `writeStream` and `write` with the same format, it is `writer.py`, with the options of `WriterOptions`.

    Options: instance, database, queue or queuePattern; startingOffsets, maxMessagesPerTrigger, maxBytesPerTrigger,
    minMessagesPerTrigger, minBytesPerTrigger, maxTriggerDelay, minPartitions, partitioning, failOnDataLoss,
    includeSystemMessages, ack, deliver, endOfStream, claimTimeout: `SourceOptions` says what they mean.

    Raises:
        InstanceError: an unknown option, or a value that is not what it must be.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._given = dict(options)

    @classmethod
    def name(cls) -> str:
        """The name for `format`."""
        return "servicebroker"

    def schema(self) -> str:
        """The columns of a message; asked for by readers alone, so that wrong options show here first."""
        return PARTS if source_options(self._given).delivers_parts else COLUMNS

    def reader(self, schema: StructType) -> QueueReader:
        """A look at the queue as it is."""
        from servicebroker.pipeline.stream.reader import QueueReader

        return QueueReader(source_options(self._given))

    def streamReader(self, schema: StructType) -> QueueStreamReader:
        """The stream, which consumes the queue."""
        from servicebroker.pipeline.stream.reader import QueueStreamReader

        return QueueStreamReader(source_options(self._given))

    def writer(self, schema: StructType, overwrite: bool) -> MessageBatchWriter:
        """Sends rows in a batch job."""
        if overwrite:
            raise InstanceError("The servicebroker writer only sends: use mode('append').")
        from servicebroker.pipeline.writer import MessageBatchWriter

        return MessageBatchWriter(writer_options(self._given), schema)

    def streamWriter(self, schema: StructType, overwrite: bool) -> MessageStreamWriter:
        """Sends the rows of a streaming query."""
        if overwrite:
            raise InstanceError("The servicebroker writer only sends: use outputMode('append').")
        from servicebroker.pipeline.writer import MessageStreamWriter

        return MessageStreamWriter(writer_options(self._given), schema)
