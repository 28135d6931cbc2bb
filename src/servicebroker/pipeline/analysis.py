"""What a pipeline's bronze table says of its conversations: messages, bytes, latencies and errors, hour by hour."""

from __future__ import annotations

from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.definition import ANALYTICS, Pipeline
from servicebroker.pipeline.sinks.landing import place_of
from servicebroker.pipeline.sinks.tables import rows_of

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
    """What came in one hour from one queue, for one service under one contract.

    Attributes:
        hour: its beginning, UTC.
        bytes: of bodies.
        errors: Error messages among `messages`.
        unreadable: messages that went to quarantine.
        p50, p95, p99, slowest: seconds from a message's arrival in the queue to its landing.
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
    """Read the bronze table and write the table `analytics` anew; returns its rows, in order.

    Raises:
        InstanceError: there is no bronze table, or it is plain Parquet files.
    """
    if pipeline.format == "parquet" or not pipeline.bronze:
        raise InstanceError("The analysis needs a bronze table of Delta or Iceberg.")
    hours = _hours(pipeline)
    _write(pipeline, hours)
    return hours


def _hours(pipeline: Pipeline) -> list[Hour]:
    import pyarrow as pa
    from pyarrow import compute

    parts = list(_measured(pipeline, pipeline.bronze))
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
    found = []
    for row in rows:
        group = tuple(row[name] for name in _GROUP)
        p50, p95, p99 = (round(float(value), 6) for value in row["latency_tdigest"])
        counts = (row["latency_count"], row["bytes_sum"], row["error_sum"], unreadable.get(group, 0))
        found.append(Hour._make([*group, *counts, p50, p95, p99, round(row["latency_max"], 6)]))
    return sorted(found)


def _measured(pipeline: Pipeline, table: str) -> Any:
    """Batches of a table as what is to be counted, without their bodies."""
    import pyarrow as pa
    from pyarrow import compute

    place = place_of(pipeline, table)
    if place is None or not place.is_there():
        return
    batch: Any
    for batch in rows_of(place, _READ):
        if not batch.num_rows:
            continue
        enqueued = batch.column("message_enqueue_time")
        kinds: Any = batch.column("message_type_name")
        waited = compute.subtract(batch.column("landed_at").cast(pa.int64()), enqueued.cast(pa.int64()))
        yield pa.table(
            {
                "hour": compute.floor_temporal(enqueued, unit="hour"),
                **{name: compute.fill_null(batch.column(name), "") for name in _GROUP[1:]},
                "bytes": compute.fill_null(compute.binary_length(batch.column("message_body")), 0).cast(pa.int64()),
                "error": compute.fill_null(compute.equal(kinds, pa.scalar(names.ERROR)), False).cast(pa.int64()),
                "latency": compute.divide(waited.cast(pa.float64()), 1e6),
            }
        )


def _unreadable(pipeline: Pipeline) -> dict[tuple[Any, ...], int]:
    import pyarrow as pa

    parts = list(_measured(pipeline, pipeline.quarantine))
    if not parts:
        return {}
    grouped = pa.concat_tables(parts).group_by(list(_GROUP)).aggregate([("bytes", "count")])
    return {tuple(row[name] for name in _GROUP): row["bytes_count"] for row in grouped.to_pylist()}


def _write(pipeline: Pipeline, hours: list[Hour]) -> None:
    place = place_of(pipeline, ANALYTICS)
    if place is not None:
        place.overwrite(_table(hours))


def _table(hours: list[Hour]) -> pa.Table:
    import pyarrow as pa

    kinds: dict[str, pa.DataType] = {"hour": pa.timestamp("us", "UTC")}
    kinds |= {name: pa.string() for name in _GROUP[1:]}
    kinds |= {name: pa.int64() for name in ("messages", "bytes", "errors", "unreadable")}
    kinds |= {name: pa.float64() for name in ("p50", "p95", "p99", "slowest")}
    return pa.Table.from_pylist([hour._asdict() for hour in hours], schema=pa.schema(list(kinds.items())))
