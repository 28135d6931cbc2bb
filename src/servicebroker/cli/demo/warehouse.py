"""`//demo/Warehouse`: the Spark query that lands the lines, and the table it makes."""

from __future__ import annotations

import contextlib
from pathlib import Path
from types import TracebackType
from typing import Self

import pyarrow as pa
from deltalake import DeltaTable
from py4j.protocol import Py4JError
from pyarrow.parquet import ParquetFile
from pyspark.errors import PySparkException
from pyspark.sql import functions as F

from servicebroker.cli.demo import shipper as names
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.delta import ensure_table
from servicebroker.pipeline.run import reason
from servicebroker.pipeline.spark_session import spark_session

TRIGGER = "100 milliseconds"


class Landing:
    """A running query from the warehouse's queue into a Delta table, exactly once."""

    def __init__(self, url: str, table: Path, checkpoint: Path, lock: int) -> None:
        self._table = table
        # two queries must never share a checkpoint: the run's lock lasts as long as Java does
        self._spark = spark_session("servicebroker demo", held=[lock])
        try:
            lines = (
                self._spark.readStream.format("servicebroker")
                .option("instance", url)
                .option("database", names.DATABASE)
                .option("queue", names.WAREHOUSE_QUEUE)
                .option("endOfStream", names.END_OF_STREAM)
                .load()
                .where(F.col("message_type_name") == names.LINE)
                # an empty body travels as NULL; here it is a blank line again
                .withColumn("message_body", F.coalesce("message_body", F.lit(bytearray())))
            )
            ensure_table(table, lines.schema)
            self._query = (
                lines.writeStream.format("servicebroker_delta")
                .option("path", str(table))
                .option("checkpointLocation", str(checkpoint))
                .trigger(processingTime=TRIGGER)
                .start()
            )
        except BaseException:
            self._spark.stop()
            raise

    def check(self) -> None:
        """Raise what broke the query, if anything did.

        Raises:
            InstanceError: with the innermost reason.
        """
        problem = self._query.exception()
        if problem is not None:
            raise InstanceError(f"The Spark query failed: {reason(problem)}")
        if not self._query.isActive:
            raise InstanceError("The Spark query stopped by itself.")

    def rows(self) -> int:
        """Rows in the table now."""
        return landed_rows(self._table)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(PySparkException, Py4JError):  # Ctrl-C may have broken the connection to Java
            self._query.stop()
        with contextlib.suppress(PySparkException, Py4JError):
            self._spark.stop()


def landed_rows(table: Path) -> int:
    """Rows of a Delta table, read from its log; 0 when it does not exist yet."""
    if not DeltaTable.is_deltatable(str(table)):
        return 0
    return int(DeltaTable(str(table)).count())


def first_rows(table: Path, count: int) -> list[tuple[str, int, bytes]]:
    """Conversation handle, sequence number and body of the first rows of the table's oldest file."""
    files = pa.table(DeltaTable(str(table)).get_add_actions()).sort_by("modification_time").column("path").to_pylist()
    if not files:
        return []
    columns = ["conversation_handle", "message_sequence_number", "message_body"]
    # not through a dataset: its scan leaves threads behind that break the end of the process
    with ParquetFile(table / str(files[0])) as file:
        batch = next(file.iter_batches(batch_size=count, columns=columns, use_threads=False), None)
    return [tuple(row[column] for column in columns) for row in batch.to_pylist()] if batch else []
