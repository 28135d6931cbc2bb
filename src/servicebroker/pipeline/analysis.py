"""Computes hourly statistics of conversations from bronze (the raw table): messages, bytes, latencies and errors."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.definition import ANALYTICS, Pipeline
from servicebroker.pipeline.sinks.tables import rows_of
from servicebroker.pipeline.sinks.target import table_location

if TYPE_CHECKING:
    import pyarrow as pa

PERCENTILES = (0.5, 0.95, 0.99)
_GROUP = ("hour", "queue", "service_name", "service_contract_name")
_READ = [
    "queue",
    "service_name",
    "service_contract_name",
    "message_type_name",
    "message_body",
    "message_enqueue_time",
    "landed_at",
]


class Hour(NamedTuple):
    """Statistics of one hour, for one queue, service and contract.

    Attributes:
        hour: start of the hour, in UTC.
        messages: number of messages that arrived in the hour.
        bytes: bytes of their bodies.
        errors: number of Error messages among them.
        unreadable: number of these messages in quarantine.
        p50, p95, p99, slowest: seconds from a message's arrival in the queue until it was written.
    """

    hour: datetime
    queue: str
    service_name: str
    service_contract_name: str
    messages: int
    bytes: int
    errors: int
    unreadable: int
    p50: float
    p95: float
    p99: float
    slowest: float


def analyze(pipeline: Pipeline) -> list[Hour]:
    """Read the bronze table, replace the rows of the table `analytics`, and return these rows.

    Raises:
        InstanceError: the pipeline has no bronze table, or its tables are plain Parquet files.
    """
    if pipeline.format == "parquet" or not pipeline.bronze:
        raise InstanceError("The analysis needs a bronze table of Delta or Iceberg.")
    hours = _hours(pipeline)
    _write(pipeline, hours)
    return hours


def _hours(pipeline: Pipeline) -> list[Hour]:
    import pyarrow as pa
    from pyarrow import compute

    parts = list(_measure(pipeline, pipeline.bronze))
    if not parts:
        return []
    table = pa.concat_tables(parts)
    unreadable = _unreadable(pipeline)
    quantiles = compute.TDigestOptions(q=list(PERCENTILES))
    grouped = table.group_by(list(_GROUP)).aggregate(
        [
            ("latency", "count", compute.CountOptions(mode="all")),
            ("bytes", "sum"),
            ("error", "sum"),
            ("latency", "tdigest", quantiles),
            ("latency", "max"),
        ]
    )
    rows: list[Any] = grouped.to_pylist()
    hours = []
    for row in rows:
        group = tuple(row[name] for name in _GROUP)
        p50, p95, p99 = (round(float(value), 6) for value in row["latency_tdigest"])
        counts = (row["latency_count"], row["bytes_sum"], row["error_sum"], unreadable.get(group, 0))
        hours.append(Hour._make([*group, *counts, p50, p95, p99, round(row["latency_max"], 6)]))
    return sorted(hours)


def _measure(pipeline: Pipeline, table: str) -> Any:
    """Yield tables with a row for each message of a table: its group, bytes, latency in seconds, and 1 for an error."""
    import pyarrow as pa
    from pyarrow import compute

    location = table_location(pipeline, table)
    if location is None or not location.exists():
        return
    batch: Any
    for batch in rows_of(location, _READ):
        if not batch.num_rows:
            continue
        enqueued = batch.column("message_enqueue_time")
        message_types: Any = batch.column("message_type_name")
        latency_us = compute.subtract(batch.column("landed_at").cast(pa.int64()), enqueued.cast(pa.int64()))
        is_error: Any = compute.equal(message_types, pa.scalar(names.ERROR))
        yield pa.table(
            {
                "hour": compute.floor_temporal(enqueued, unit="hour"),
                **{name: compute.fill_null(batch.column(name), "") for name in _GROUP[1:]},
                "bytes": compute.fill_null(compute.binary_length(batch.column("message_body")), 0).cast(pa.int64()),
                "error": compute.fill_null(is_error, False).cast(pa.int64()),
                "latency": compute.divide(latency_us.cast(pa.float64()), 1e6),
            }
        )


def _unreadable(pipeline: Pipeline) -> dict[tuple[Any, ...], int]:
    import pyarrow as pa

    parts = list(_measure(pipeline, pipeline.quarantine))
    if not parts:
        return {}
    grouped = pa.concat_tables(parts).group_by(list(_GROUP)).aggregate([("bytes", "count")])
    return {tuple(row[name] for name in _GROUP): row["bytes_count"] for row in grouped.to_pylist()}


def _write(pipeline: Pipeline, hours: list[Hour]) -> None:
    location = table_location(pipeline, ANALYTICS)
    if location is not None:
        location.overwrite(_table(hours))


def _table(hours: list[Hour]) -> pa.Table:
    import pyarrow as pa

    types: dict[str, pa.DataType] = {"hour": pa.timestamp("us", "UTC")}
    types |= {name: pa.string() for name in _GROUP[1:]}
    types |= {name: pa.int64() for name in ("messages", "bytes", "errors", "unreadable")}
    types |= {name: pa.float64() for name in ("p50", "p95", "p99", "slowest")}
    return pa.Table.from_pylist([hour._asdict() for hour in hours], schema=pa.schema(list(types.items())))
