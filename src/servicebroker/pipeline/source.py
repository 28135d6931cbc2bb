"""The Spark format `servicebroker`: a source that reads queues exactly once and in order, and a sink that sends rows.

Spark starts several processes for each query that need only this class. So everything that reads or writes is imported
where it is used.
"""

from __future__ import annotations

from collections.abc import MutableMapping
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource
from pyspark.sql.types import StructType

from servicebroker.model.errors import InstanceError
from servicebroker.overriding import override
from servicebroker.pipeline.message_columns import COLUMNS, PART_COLUMNS
from servicebroker.pipeline.options import source_options, writer_options

if TYPE_CHECKING:
    from servicebroker.pipeline.stream.reader import QueueReader, QueueStreamReader
    from servicebroker.pipeline.writer import MessageBatchWriter, MessageStreamWriter


class ServiceBrokerSource(DataSource):
    """`spark.readStream.format("servicebroker")`, and `spark.read` to look at a queue without consuming it.

    As a sink, `writeStream` and `write` with the same format, see `writer.py` and `WriterOptions`.

    Options: instance, database, queue or queuePattern; startingOffsets, maxMessagesPerTrigger, maxBytesPerTrigger,
    minMessagesPerTrigger, minBytesPerTrigger, maxTriggerDelay, minPartitions, partitioning, failOnDataLoss,
    includeSystemMessages, ack, deliver, endOfStream, claimTimeout. `SourceOptions` explains them.

    Raises:
        InstanceError: an unknown option, or an invalid value.
    """

    def __init__(self, options: MutableMapping[str, str]) -> None:
        super().__init__(options)
        self._options = dict(options)

    @override
    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "servicebroker"

    @override
    def schema(self) -> str:
        """Return the columns of a row. Only readers call this, so that invalid options are reported here first."""
        return PART_COLUMNS if source_options(self._options).delivers_parts else COLUMNS

    @override
    def reader(self, schema: StructType) -> QueueReader:
        """Return a reader of the present messages, which consumes nothing."""
        from servicebroker.pipeline.stream.reader import QueueReader

        return QueueReader(source_options(self._options))

    @override
    def streamReader(self, schema: StructType) -> QueueStreamReader:
        """Return the reader of a stream, which consumes the queue."""
        from servicebroker.pipeline.stream.reader import QueueStreamReader

        return QueueStreamReader(source_options(self._options))

    @override
    def writer(self, schema: StructType, overwrite: bool) -> MessageBatchWriter:
        """Return a writer that sends the rows of a batch job."""
        if overwrite:
            raise InstanceError("The servicebroker writer only sends: use mode('append').")
        from servicebroker.pipeline.writer import MessageBatchWriter

        return MessageBatchWriter(writer_options(self._options), schema)

    @override
    def streamWriter(self, schema: StructType, overwrite: bool) -> MessageStreamWriter:
        """Return a writer that sends the rows of a streaming query."""
        if overwrite:
            raise InstanceError("The servicebroker writer only sends: use outputMode('append').")
        from servicebroker.pipeline.writer import MessageStreamWriter

        return MessageStreamWriter(writer_options(self._options), schema)
