"""The pipeline: a queue drained, read and written by Spark, against Spark without a broker on the same server.

Spark's own JDBC takes part where the jar of its driver is given; ADBC reads about as fast as it.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from dataclasses import replace
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from typing import TYPE_CHECKING, Any

from servicebroker.api.instance import Instance
from servicebroker.store.running import execute
from servicebroker_lab.benchmarks.jdbc import Jdbc
from servicebroker_lab.benchmarks.measure import Meter, Sample, figures
from servicebroker_lab.benchmarks.measured_system import Implementation, batches, text_body
from servicebroker_lab.benchmarks.processes import Memory
from servicebroker_lab.benchmarks.report import OURS, Line
from servicebroker_lab.benchmarks.runner import Field, Progress, with_ratios
from servicebroker_lab.benchmarks.scenarios import BASELINE, PIPELINE, Scenario
from servicebroker_lab.benchmarks.servicebroker_system import (
    CONTRACT,
    DATABASE,
    INITIATOR,
    QUEUE,
    TARGET,
    TYPE,
    ServiceBroker,
)
from servicebroker_lab.benchmarks.storage import fill_rows

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession
    from pyspark.sql.streaming.query import StreamingQuery

NEEDS_JAR = "give --jdbc-jar FILE"
NEEDS_SPARK = "pip install 'servicebroker[spark]'"
PACKAGES = ("pyspark", "pyarrow", "deltalake", "adbc_driver_postgresql")
CONVERSATION_COUNT = 64
DRAIN_BATCHES = 100  # batches of the drain of a deep queue
STEADY, STEADY_BATCHES = f"{PIPELINE}-steady", 4
WARM_UP = 20_000  # messages: the first queries of a Java process are slow, whatever they read


def compare_pipeline(
    name: str,
    scenario: Scenario,
    instance: Instance,
    field: Field,
    meter: Meter,
    folder: Path,
    messages: int,
    rounds: int,
    progress: Progress,
    jdbc: Jdbc | None = None,
) -> list[Line]:
    """Do what the scenario of that name says with so many messages, `rounds` times each way.

    Raises:
        InstanceError: there is no Java.
    """
    if any(find_spec(package) is None for package in PACKAGES):
        return [Line(name, system, reason=NEEDS_SPARK) for system in (OURS, *scenario.goals)]
    from pyspark.sql import SparkSession

    from servicebroker.pipeline.spark_session import spark_session

    broker = next(system for system in field.systems if isinstance(system, ServiceBroker))
    progress("pipeline: starting Spark")
    running = SparkSession.getActiveSession()
    config = {"spark.sql.streaming.numRecentProgressUpdates": str(2 * DRAIN_BATCHES)}
    spark = spark_session("servicebroker bench", config=config | ({"spark.jars": str(jdbc.jar)} if jdbc else {}))
    try:
        pipeline = Pipeline(spark, instance, broker, folder / "tables", jdbc)
        if name == f"{PIPELINE}-depth":
            return with_ratios(_first_and_last(name, pipeline, meter, messages, progress), scenario)
        if name == STEADY:
            lines = _of_a_running_query(name, pipeline, meter, messages, rounds, progress)
            return with_ratios(lines if jdbc else [*lines, Line(name, "jdbc", reason=NEEDS_JAR)], scenario)
        entrants = pipeline.entrants(name)
        for _, implementation in entrants:
            implementation.prepare(WARM_UP)
            implementation.work(WARM_UP)
        samples: dict[Implementation, list[Sample]] = {implementation: [] for _, implementation in entrants}
        for number in range(rounds):
            for _, implementation in entrants:
                progress(f"pipeline: round {number + 1} of {rounds}, {implementation.label}")
                implementation.prepare(messages)
                samples[implementation].append(meter.sample(implementation.work, messages))
    finally:
        if running is None:
            spark.stop()
    spark_version = f"{version('pyspark')}, ADBC {version('adbc-driver-postgresql')}"
    versions = {OURS: broker.version, "spark": spark_version, "parquet": f"pyspark {version('pyspark')}"}
    if jdbc:
        versions["jdbc"] = pipeline.jdbc_version
    lines = [
        Line(
            name,
            system,
            versions[system],
            implementation.label,
            implementation.settings,
            figures(samples[implementation]),
        )
        for system, implementation in entrants
    ]
    if "jdbc" in scenario.goals and jdbc is None:
        lines.append(Line(name, "jdbc", reason=NEEDS_JAR))
    return with_ratios(lines, scenario)


def _first_and_last(name: str, pipeline: Pipeline, meter: Meter, messages: int, progress: Progress) -> list[Line]:
    """Measure a drain in DRAIN_BATCHES batches of one size: cost and memory of its first and its last tenth."""
    page, tenth = max(1, messages // DRAIN_BATCHES), max(1, DRAIN_BATCHES // 10)
    pipeline.fill(WARM_UP)
    pipeline.drain(WARM_UP, WARM_UP // tenth)
    progress(f"{name}: {messages:,} messages into the queue")
    pipeline.fill_deep(messages)
    progress(f"{name}: out of it")
    with Memory() as memory:
        sample = meter.sample(lambda count: pipeline.drain(count, page), messages)
    first, last = pipeline.seconds[:tenth], pipeline.seconds[-tenth:]
    parts = ((OURS, "first", first, memory.peak(until=sum(first))), (BASELINE, "last", last, memory.peak(sum(last))))
    whole = figures([sample])
    return [
        Line(
            name,
            system,
            pipeline.version,
            "drained into Delta",
            f"the {part_name} {page * tenth:,}, {page:,} a batch; {memory_text}",
            replace(whole, per_second=page / median(seconds)),
        )
        for system, part_name, seconds, memory_text in parts
    ]


def _of_a_running_query(
    name: str, pipeline: Pipeline, meter: Meter, messages: int, rounds: int, progress: Progress
) -> list[Line]:
    """Batches of a stream once it has started, each beside a job of Spark's JDBC of as many rows."""
    jobs = [
        (system, implementation)
        for system, implementation in pipeline.entrants(f"{PIPELINE}-stream")
        if system == "jdbc"
    ]
    samples: dict[Implementation, list[Sample]] = {implementation: [] for _, implementation in jobs}
    streams: list[Sample] = []
    seconds: list[float] = []
    for number in range(rounds):
        progress(f"{name}: round {number + 1} of {rounds}")
        pipeline.fill(messages * STEADY_BATCHES)
        streams.append(meter.sample(lambda count: pipeline.stream(count, messages), messages * STEADY_BATCHES))
        seconds += pipeline.seconds[1:]
        for _, implementation in jobs:
            implementation.prepare(messages)
            samples[implementation].append(meter.sample(implementation.work, messages))
    whole = figures(streams)
    settings = (
        f"{STEADY_BATCHES} batches, without the first; with it and the start of the query {whole.per_second:,.0f}/s"
    )
    ours = replace(whole, per_second=messages / median(seconds))
    return [
        Line(name, OURS, pipeline.version, "a batch of spark.readStream, to Parquet", settings, ours),
        *(
            Line(
                name,
                system,
                pipeline.jdbc_version,
                implementation.label,
                implementation.settings,
                figures(samples[implementation]),
            )
            for system, implementation in jobs
        ),
    ]


class Pipeline:
    """One queue, filled anew before each measurement, and the ways to get its rows out with Spark."""

    def __init__(
        self, spark: SparkSession, instance: Instance, broker: ServiceBroker, folder: Path, jdbc: Jdbc | None
    ) -> None:
        from servicebroker_lab.benchmarks.adbc import AdbcSource

        self._spark = spark
        self._instance = instance
        self._broker = broker
        self.version = broker.version
        self.seconds: list[float] = []  # the seconds of each batch of the last query
        self._database = broker.database
        self._table = f"servicebroker.queue_{broker.queue_id}"
        self._folder = folder
        self._jdbc = jdbc
        self._range = (0, 0)
        self._jobs = 0
        spark.dataSource.register(AdbcSource)

    def entrants(self, name: str) -> list[tuple[str, Implementation]]:
        """Ours first."""
        return {
            PIPELINE: self._drains,
            f"{PIPELINE}-batch": self._batches,
            f"{PIPELINE}-stream": self._streams,
            f"{PIPELINE}-write": self._writes,
        }[name]()

    def _batches(self) -> list[tuple[str, Implementation]]:
        read = self._spark.read.format("servicebroker").options(**self._source())
        return [
            (
                OURS,
                Implementation("spark.read, to Parquet", "by range", self.fill, self._write_rows(lambda: read.load())),
            ),
            *self._peers(),
        ]

    def _streams(self) -> list[tuple[str, Implementation]]:
        return [
            (OURS, Implementation("spark.readStream, to Parquet", "by range, AvailableNow", self.fill, self.stream)),
            *self._peers(),
        ]

    def _peers(self) -> list[tuple[str, Implementation]]:
        tasks = f"{self._spark.sparkContext.defaultParallelism} tasks, same rows"
        jdbc = Implementation("JDBC batch to Parquet", tasks, self.fill, self._write_rows(self._rows_by_jdbc))
        return [
            *([("jdbc", jdbc)] if self._jdbc else []),
            ("spark", Implementation("ADBC batch to Parquet", tasks, self.fill, self._write_rows(self._rows))),
            (
                "parquet",
                Implementation("Parquet to Parquet", tasks, self._fill_copy, self._write_rows(self._copied_rows)),
            ),
        ]

    def _writes(self) -> list[tuple[str, Implementation]]:
        jdbc = Implementation(
            "JDBC insert", "one bare table, no key, batches rewritten", self._prepare_rows, self.insert
        )
        return [
            (OURS, Implementation("df.write, by key", "exactly once, 4 conversations", self._prepare_rows, self.send)),
            *([("jdbc", jdbc)] if self._jdbc else []),
            ("spark", Implementation("COPY in the tasks", "one bare table, no key", self._prepare_rows, self.copy_in)),
        ]

    def _drains(self) -> list[tuple[str, Implementation]]:
        tasks = f"{self._spark.sparkContext.defaultParallelism} tasks, same rows"
        return [
            (
                OURS,
                Implementation(
                    "drained into Delta", "exactly once, AvailableNow, parts, acknowledged", self.fill, self.drain
                ),
            ),
            (
                "spark",
                Implementation(
                    "ADBC batch read", f"to noop, {tasks}", self.fill, self._write_rows(self._rows, self.discard)
                ),
            ),
            ("spark", Implementation("ADBC batch to Parquet", tasks, self.fill, self._write_rows(self._rows))),
        ]

    def fill(self, messages: int) -> None:
        """Put a number of messages into the queue, over CONVERSATION_COUNT conversations in turn."""
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._instance.connection() as connection:
            execute(connection, "pipeline.fill.truncate", f"truncate {self._table}")
        database, tail = self._database, text_body().encode()[10:]
        handles = [database.begin_dialog(INITIATOR, TARGET, contract=CONTRACT) for _ in range(CONVERSATION_COUNT)]
        sent = 0
        for index, size in enumerate(batches(messages)):  # no two bodies alike: columnar files would shrink them
            bodies = [b"%010d%b" % (number, tail) for number in range(sent, sent + size)]
            database.send_batch(handles[index % CONVERSATION_COUNT], TYPE, bodies)
            sent += size
        with self._instance.connection() as connection:  # this also sets the hint bits, which nobody shall pay for
            ((first, last),) = execute(
                connection,
                "pipeline.fill.find_range",
                f"select min(queuing_order), max(queuing_order) from {self._table}",
            )
            execute(connection, "pipeline.fill.read_all", f"select sum(length(message_body)) from {self._table}")
        self._range = (first, last + 1)

    def fill_deep(self, messages: int) -> None:
        """Put a number of rows into the queue at once, with the statistics and hint bits that no measured read shall
        pay for.
        """
        shutil.rmtree(self._folder, ignore_errors=True)
        with self._instance.connection() as connection:
            execute(connection, "pipeline.fill_deep.truncate", f"truncate {self._table}")
        fill_rows(self._broker, messages, CONVERSATION_COUNT, row=1000)
        with self._instance.connection() as connection:
            execute(connection, "pipeline.fill_deep.vacuum_analyze", f"vacuum (analyze) {self._table}")

    def drain(self, messages: int, page: int = 1_000_000) -> int:
        """Run the streaming query to the end of the queue. Returns the number of rows in the Delta table."""
        from deltalake import DeltaTable

        query = (
            self._spark.readStream.format("servicebroker")
            .option("instance", self._instance.url)
            .option("database", DATABASE)
            .option("queue", QUEUE)
            .option("deliver", "parts")
            .option("partitioning", "range")
            .option("maxMessagesPerTrigger", str(page))
            .load()
            .writeStream.format("servicebroker_delta")
            .option("path", str(self._folder / "delta"))
            .option("checkpointLocation", str(self._folder / "checkpoint"))
            .trigger(availableNow=True)
            .start()
        )
        self._await(query)
        return int(DeltaTable(str(self._folder / "delta")).count())

    def stream(self, messages: int, page: int | None = None) -> int:
        """Run the streaming query into Spark's Parquet files, in batches of `page` messages or in one batch."""
        limit = {} if page is None else {"maxMessagesPerTrigger": str(page)}
        source = self._spark.readStream.format("servicebroker").options(**self._source(), **limit).load()
        sink = source.writeStream.format("parquet").option("path", str(self._folder / "parquet"))
        query = sink.option("checkpointLocation", str(self._folder / "checkpoint")).trigger(availableNow=True).start()
        self._await(query)
        return self._range[1] - self._range[0]

    def _await(self, query: StreamingQuery) -> None:
        """Wait for the end of the query, and record the seconds of each batch."""
        query.awaitTermination()
        batches = [batch for batch in query.recentProgress if batch.numInputRows]
        self.seconds = [batch.durationMs["triggerExecution"] / 1000 for batch in batches]

    @property
    def jdbc_version(self) -> str:
        """The versions of Spark and the driver."""
        assert self._jdbc
        return f"pyspark {version('pyspark')}, driver {self._jdbc.version}"

    def send(self, messages: int) -> int:
        """Run a batch job of the writer."""
        self._jobs += 1
        options = {
            "instance": self._instance.url,
            "database": DATABASE,
            "fromService": INITIATOR,
            "toService": TARGET,
            "contract": CONTRACT,
            "messageType": TYPE,
            "endOfStream": TYPE,
            "key": "customer",
            "sendId": f"job {self._jobs}",
            "recycleAfter": str(10 * messages),
        }
        self._frame(messages).write.format("servicebroker").options(**options).mode("append").save()
        return messages

    def copy_in(self, messages: int) -> int:
        """Copy rows into a table in each task, as a user would write it by hand."""
        url = self._instance.url

        def copy(rows: Any) -> None:
            import psycopg

            into = "copy bench_bare (customer, message_body) from stdin (format binary)"
            with psycopg.connect(url) as connection, connection.cursor() as cursor, cursor.copy(into) as sink:
                sink.set_types(["int8", "bytea"])
                for row in rows:
                    sink.write_row((row.customer, row.message_body))

        self._frame(messages).foreachPartition(copy)
        return messages

    def insert(self, messages: int) -> int:
        """Spark's own way into a table."""
        assert self._jdbc
        self._jdbc.insert(self._frame(messages), "bench_bare")
        return messages

    def _prepare_rows(self, messages: int) -> None:
        with self._instance.connection() as connection:
            execute(connection, "pipeline.prepare_rows.truncate", f"truncate {self._table}")
            execute(connection, "pipeline.prepare_rows.drop_table", "drop table if exists bench_bare")
            execute(
                connection,
                "pipeline.prepare_rows.create_table",
                "create table bench_bare (customer bigint, message_body bytea)",
            )

    def _frame(self, messages: int) -> DataFrame:
        tail = text_body()[10:]
        body = f"cast(concat(lpad(id, 10, '0'), '{tail}') as binary) as message_body"
        return self._spark.range(messages).selectExpr("id % 1000 as customer", body)

    def _source(self) -> dict[str, str]:
        options = {"instance": self._instance.url, "database": DATABASE, "queue": QUEUE}
        return options | {"partitioning": "range"}

    def _fill_copy(self, messages: int) -> None:
        self.fill(messages)
        self._rows().write.parquet(str(self._folder / "copy"))

    def _copied_rows(self) -> DataFrame:
        return self._spark.read.parquet(str(self._folder / "copy"))

    def _write_rows(
        self, rows: Callable[[], DataFrame], write: Callable[[DataFrame], None] | None = None
    ) -> Callable[[int], int]:
        def work(messages: int) -> int:
            (write or self.save)(rows())
            return self._range[1] - self._range[0]

        return work

    def discard(self, rows: DataFrame) -> None:
        """Read, and write nothing."""
        rows.write.format("noop").mode("overwrite").save()

    def save(self, rows: DataFrame) -> None:
        """Into Parquet files of Spark's own."""
        rows.write.parquet(str(self._folder / "parquet"))

    def _rows_by_jdbc(self) -> DataFrame:
        from servicebroker_lab.benchmarks.adbc import AdbcSource

        assert self._jdbc
        return self._jdbc.rows(self._spark, self._table, AdbcSource.SQL, *self._range)

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
