"""`//demo/Warehouse`: the Spark query that writes the lines to a Delta table."""

from __future__ import annotations

import contextlib
import math
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Self

import pyarrow as pa
from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyarrow.parquet import ParquetFile
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from servicebroker.cli.commands.demo import shipper as names
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.failed_query import reason
from servicebroker.pipeline.sinks.delta import ensure_table
from servicebroker.pipeline.spark_session import spark_session

if TYPE_CHECKING:
    from pyspark.sql.streaming.query import StreamingQuery

TRIGGER = "100 milliseconds"
Row = tuple[str, int, bytes]  # conversation handle, sequence number, body


class Landing:
    """A Spark query that writes the messages of the warehouse's queue to a Delta table, exactly once.

    Spark starts in a thread. Java inherits the descriptor `lock`, and so holds the lock of the folder until it ends:
    two queries must never share a checkpoint.

    Attributes:
        begun_at: the monotonic time at which the query began; infinite before.
    """

    def __init__(self, url: str, table: Path, checkpoint: Path, lock: int) -> None:
        self._url, self._table, self._checkpoint = url, table, checkpoint
        self.begun_at = math.inf
        self._query: StreamingQuery | None = None
        self._starting = ThreadPoolExecutor(1)
        self._spark = self._starting.submit(spark_session, "servicebroker demo", inherited=[lock])

    @property
    def is_ready(self) -> bool:
        """True if Spark has started, or has failed to start. Then `begin` does not wait."""
        return self._spark.done()

    def begin(self) -> None:
        """Start the query, unless it was started already. Wait for Spark to start.

        Raises:
            InstanceError: Spark does not start, or the query is refused.
        """
        if self._query is None:  # in the thread that has started Spark: the session belongs to that thread
            self._query = self._starting.submit(self._start_query).result()
            self.begun_at = time.monotonic()

    def _start_query(self) -> StreamingQuery:
        lines = (
            self._spark.result()
            .readStream.format("servicebroker")
            .option("instance", self._url)
            .option("database", names.DATABASE)
            .option("queue", names.WAREHOUSE_QUEUE)
            .option("endOfStream", names.END_OF_STREAM)
            .load()
            .where(F.col("message_type_name") == names.LINE)
            # an empty body is NULL in the source; in the table it is an empty line
            .withColumn("message_body", F.coalesce("message_body", F.lit(bytearray())))
        )
        ensure_table(self._table, lines.schema)
        return (
            lines.writeStream.format("servicebroker_delta")
            .option("path", str(self._table))
            .option("checkpointLocation", str(self._checkpoint))
            .trigger(processingTime=TRIGGER)
            .start()
        )

    def check(self) -> None:
        """Raise an error if the query has failed.

        Raises:
            InstanceError: the query has failed or stopped; the text has the innermost reason.
        """
        if self._query is None:
            return
        problem = self._query.exception()
        if problem is not None:
            raise InstanceError(f"The Spark query failed: {reason(problem)}")
        if not self._query.isActive:
            raise InstanceError("The Spark query stopped by itself.")

    def rows(self) -> int:
        """Return the number of rows in the table."""
        return landed_rows(self._table)

    def first_rows(self, count: int) -> list[Row]:
        """Return the first rows of the table's oldest file."""
        return first_rows(self._table, count)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._query is not None:
            with contextlib.suppress(PySparkException, Py4JError):  # Ctrl-C may have broken the connection to Java
                self._query.stop()
        with contextlib.suppress(PySparkException, Py4JError, InstanceError):
            self._spark.result().stop()
        self._starting.shutdown()


def landed_rows(table: Path) -> int:
    """Return the number of rows of a Delta table, from its log; 0 if the table does not exist yet."""
    if not DeltaTable.is_deltatable(str(table)):
        return 0
    return int(DeltaTable(str(table)).count())


def first_rows(table: Path, count: int) -> list[Row]:
    """Return conversation handle, sequence number and body of the first rows of the table's oldest file."""
    files = pa.table(DeltaTable(str(table)).get_add_actions()).sort_by("modification_time").column("path").to_pylist()
    if not files:
        return []
    columns = ["conversation_handle", "message_sequence_number", "message_body"]
    # not through a dataset: its scan leaves threads behind that break the end of the process
    with ParquetFile(table / str(files[0])) as file:
        batch = next(file.iter_batches(batch_size=count, columns=columns, use_threads=False), None)
    return [tuple(row[column] for column in columns) for row in batch.to_pylist()] if batch else []
