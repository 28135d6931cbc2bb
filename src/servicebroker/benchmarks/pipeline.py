"""The pipeline: a queue drained into a Delta table, against Spark reading the same rows once through ADBC."""

from __future__ import annotations

import shutil
from collections.abc import Callable
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from servicebroker.api.instance import Instance
from servicebroker.benchmarks.measure import Meter, Sample, figures
from servicebroker.benchmarks.ours import CONTRACT, DATABASE, INITIATOR, QUEUE, TARGET, TYPE, ServiceBroker
from servicebroker.benchmarks.report import OURS, Line
from servicebroker.benchmarks.runner import Field, Progress, with_ratios
from servicebroker.benchmarks.scenarios import PIPELINE, Scenario
from servicebroker.benchmarks.system import Way, batches, text_body
from servicebroker.store.running import execute

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

NEEDS_SPARK = "pip install 'servicebroker[spark]'"
PACKAGES = ("pyspark", "pyarrow", "deltalake", "adbc_driver_postgresql")
CONVERSATIONS = 64
WARM_UP = 20_000  # messages: the first queries of a Java process are slow, whatever they read


def compare_pipeline(
    scenario: Scenario,
    instance: Instance,
    field: Field,
    meter: Meter,
    place: Path,
    messages: int,
    rounds: int,
    progress: Progress,
) -> list[Line]:
    """Drain a queue of so many messages and read its rows, `rounds` times each.

    Raises:
        InstanceError: there is no Java.
    """
    if any(find_spec(name) is None for name in PACKAGES):
        return [Line(PIPELINE, name, reason=NEEDS_SPARK) for name in (OURS, "spark")]
    from pyspark.sql import SparkSession

    from servicebroker.pipeline.session import spark_session

    broker = next(system for system in field.systems if isinstance(system, ServiceBroker))
    progress("pipeline: starting Spark")
    running = SparkSession.getActiveSession()
    spark = spark_session("servicebroker bench")
    try:
        entrants = Pipeline(spark, instance, broker, place / "tables").entrants()
        for _, way in entrants:
            way.prepare(WARM_UP)
            way.work(WARM_UP)
        samples: dict[Way, list[Sample]] = {way: [] for _, way in entrants}
        for number in range(rounds):
            for _, way in entrants:
                progress(f"pipeline: round {number + 1} of {rounds}, {way.label}")
                way.prepare(messages)
                samples[way].append(meter.sample(way.work, messages))
    finally:
        if running is None:
            spark.stop()
    versions = {OURS: broker.version, "spark": f"{version('pyspark')}, ADBC {version('adbc-driver-postgresql')}"}
    lines = [
        Line(PIPELINE, system, versions[system], way.label, way.settings, figures(samples[way]))
        for system, way in entrants
    ]
    return with_ratios(lines, scenario)


class Pipeline:
    """One queue, filled anew before each measurement, and the ways to get its rows out with Spark."""

    def __init__(self, spark: SparkSession, instance: Instance, broker: ServiceBroker, folder: Path) -> None:
        from servicebroker.benchmarks.adbc import AdbcSource

        self._spark = spark
        self._instance = instance
        self._database = broker.database
        self._table = f"servicebroker.queue_{broker.queue_id}"
        self._folder = folder
        self._range = (0, 0)
        spark.dataSource.register(AdbcSource)

    def entrants(self) -> list[tuple[str, Way]]:
        """Ours first."""
        tasks = f"{self._spark.sparkContext.defaultParallelism} tasks, same rows"
        return [
            (
                OURS,
                Way("drained into Delta", "exactly once, AvailableNow, acknowledged", self.fill, self.drain),
            ),
            ("spark", Way("ADBC batch read", f"to noop, {tasks}", self.fill, self._timed_read(self.discard))),
            ("spark", Way("ADBC batch to Parquet", tasks, self.fill, self._timed_read(self.save))),
        ]

    def fill(self, messages: int) -> None:
        """So many messages in the queue, over CONVERSATIONS conversations in turn."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._instance.connection() as connection:
            execute(connection, f"truncate {self._table}")
        database, tail = self._database, text_body().encode()[10:]
        handles = [database.begin_dialog(INITIATOR, TARGET, contract=CONTRACT) for _ in range(CONVERSATIONS)]
        sent = 0
        for place, size in enumerate(batches(messages)):  # no two bodies alike: columnar files would shrink them
            bodies = [b"%010d%b" % (number, tail) for number in range(sent, sent + size)]
            database.send_batch(handles[place % CONVERSATIONS], TYPE, bodies)
            sent += size
        with self._instance.connection() as connection:  # this also sets the hint bits, which nobody shall pay for
            ((first, last),) = execute(connection, f"select min(queuing_order), max(queuing_order) from {self._table}")
            execute(connection, f"select sum(length(message_body)) from {self._table}")
        self._range = (first, last + 1)

    def drain(self, messages: int) -> int:
        """The streaming query, to the end of the queue; how many rows the Delta table has."""
        from deltalake import DeltaTable

        query = (
            self._spark.readStream.format("servicebroker")
            .option("instance", self._instance.url)
            .option("database", DATABASE)
            .option("queue", QUEUE)
            .load()
            .writeStream.format("servicebroker_delta")
            .option("path", str(self._folder / "delta"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        query.awaitTermination()
        return int(DeltaTable(str(self._folder / "delta")).count())

    def discard(self, rows: DataFrame) -> None:
        """Read, and write nothing."""
        rows.write.format("noop").mode("overwrite").save()

    def save(self, rows: DataFrame) -> None:
        """Into Parquet files of Spark's own."""
        rows.write.parquet(str(self._folder / "parquet"))

    def _timed_read(self, write: Callable[[DataFrame], None]) -> Callable[[int], int]:
        def work(messages: int) -> int:
            write(self._rows())
            return self._range[1] - self._range[0]

        return work

    def _rows(self) -> DataFrame:
        first, end = self._range
        return (
            self._spark.read.format("adbc")
            .option("url", self._instance.url)
            .option("table", self._table)
            .option("first", str(first))
            .option("end", str(end))
            .option("partitions", str(self._spark.sparkContext.defaultParallelism))
            .load()
        )
