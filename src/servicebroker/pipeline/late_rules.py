"""Messages that landed in bronze before their type had a rule: counts for `check`, and their landing by `replay`.

A table without rows lacks all of its messages that are neither there nor in quarantine. A table with rows and without
a key lacks those that are older than its first row. Of a table with a key nobody can tell, since newer rows have
replaced older ones: there `rebuild` is the way.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.pipeline.definition import MessageRule, Pipeline
from servicebroker.pipeline.rebuild import decode_bronze, newest_rows, read_keys, repeated_positions
from servicebroker.pipeline.sinks.landing import target
from servicebroker.pipeline.sinks.maintenance import Replayed, messages_of
from servicebroker.pipeline.sinks.maintenance import replay as replay_quarantine
from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sinks.tables import TableVersion

if TYPE_CHECKING:
    import pyarrow as pa

_TIME, _ROW_TIME = "message_enqueue_time", "_message_enqueue_time"
_PLACE = ["conversation_handle", "queuing_order"]  # of a message in bronze and quarantine


class LateMessages(NamedTuple):
    """Messages of a type that are in bronze and not in the table of their rule."""

    message_type: str
    table: str
    messages: int


def find_late(pipeline: Pipeline) -> list[LateMessages]:
    """Return the counts of messages that came before their rule, without types that have none.

    Raises:
        InstanceError: a table cannot be read.
    """
    found = []
    for rule in pipeline.messages:
        if late := _find_late(pipeline, rule):
            found.append(LateMessages(rule.message_type, rule.table, late.messages))
    return found


def replay(pipeline: Pipeline, message_type: str | None = None) -> list[Replayed]:
    """Land messages that came before their rule, then decode quarantined messages again.

    Raises:
        InstanceError: the tables are plain Parquet files, or the message type has no rule.
    """
    late = {
        rule.message_type: _land_late(pipeline, rule)
        for rule in pipeline.messages
        if message_type in (None, rule.message_type)
    }
    replayed = {result.message_type: result for result in replay_quarantine(pipeline, message_type)}
    results = []
    for kind, landed in late.items():
        quarantined = replayed.get(kind, Replayed(kind, 0, 0))
        results.append(quarantined._replace(landed=quarantined.landed + landed))
    return results


def _land_late(pipeline: Pipeline, rule: MessageRule) -> int:
    """Land the late messages of a rule, unreadable ones in quarantine. Returns the number of readable ones."""
    late = _find_late(pipeline, rule)
    if late is None:
        return 0
    table, quarantine = target(pipeline, rule.table), target(pipeline, pipeline.quarantine)
    table.ensure()
    landed = 0
    unread_files: list[DataFile] = []

    def readable() -> Iterator[pa.Table]:
        nonlocal landed
        for _, rows, unread in decode_bronze(pipeline, rule, late.bronze, late.excluded):
            landed += rows.num_rows
            unread_files.extend(quarantine.write(unread) if unread.num_rows else ())
            yield rows

    parts = newest_rows(table, readable()) if rule.key else readable()  # several queues have one key
    files = [file for rows in parts if rows.num_rows for file in table.write(rows)]
    if unread_files:
        quarantine.land(unread_files, f"replay {uuid.uuid4()}", 0)
    if files:
        table.land(files, f"replay {uuid.uuid4()}", 0)
    return landed


class _Late(NamedTuple):
    """Late messages of a rule: the version of bronze, and the positions there of its messages that are not late."""

    bronze: TableVersion
    excluded: pa.Array[Any]
    messages: int


def _find_late(pipeline: Pipeline, rule: MessageRule) -> _Late | None:
    """Return the late messages of a rule; None if there are none, or nobody can tell."""
    import pyarrow as pa
    from pyarrow import compute

    if pipeline.format == "parquet" or not pipeline.bronze:
        return None
    bronze = target(pipeline, pipeline.bronze).table
    table = target(pipeline, rule.table).table
    before: datetime | None = None
    if table.is_there() and (files := table.open().files()) and any(file.rows for file in files):
        first_times = [file.range_of(_ROW_TIME)[0] for file in files if file.rows]
        if rule.key or None in first_times:
            return None
        before = min(first_times)
    if not bronze.is_there():
        return None
    version = bronze.open()
    keys = read_keys(version, rule.message_type, (_TIME,))
    excluded = [repeated_positions(keys, "max" if rule.key else "min")]
    positions = pa.array(range(keys.num_rows), pa.int64())
    if before is not None:
        is_younger: Any = compute.greater_equal(keys.column(_TIME), pa.scalar(before, keys.schema.field(_TIME).type))
        excluded.append(positions.filter(is_younger.combine_chunks()))
    excluded.append(_quarantined_positions(pipeline, rule, keys))
    distinct: Any = compute.unique(pa.concat_arrays(excluded)).sort()
    messages = keys.num_rows - len(distinct)
    return _Late(version, distinct, messages) if messages else None


def _quarantined_positions(pipeline: Pipeline, rule: MessageRule, keys: pa.Table) -> pa.Array[Any]:
    """Return the positions in bronze of messages that are in quarantine."""
    import pyarrow as pa

    quarantine = target(pipeline, pipeline.quarantine).table
    if not quarantine.is_there():
        return pa.array([], pa.int64())
    version = quarantine.open()
    schema = pa.schema([version.columns.field(name) for name in _PLACE])
    batches = [rows.select(_PLACE) for rows in messages_of(version, rule.message_type, _PLACE)]
    places = pa.Table.from_batches(batches, schema).rename_columns(["_conversation_handle", "_queuing_order"])
    places = places.group_by(places.schema.names).aggregate([])
    numbered = keys.select(places.schema.names).append_column("position", pa.array(range(keys.num_rows), pa.int64()))
    matches: Any = numbered.join(places, keys=places.schema.names, join_type="left semi")
    found: pa.Array[Any] = matches.column("position").combine_chunks()
    return found
