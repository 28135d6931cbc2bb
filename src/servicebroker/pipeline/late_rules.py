"""Late messages: messages that were written into bronze (the raw table) before their type had a rule.

`pipeline check` counts them, and `pipeline replay` writes them into the table of the rule.

If the table is empty, all messages of its type in bronze are late, except quarantined ones. If it has rows and no key,
the messages older than its first row are late. If it has rows and a key, late messages cannot be distinguished from
messages whose rows were replaced: use `pipeline rebuild`.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.pipeline.definition import MessageRule, Pipeline
from servicebroker.pipeline.rebuild import decode_bronze, newest_rows, read_keys, repeated_positions
from servicebroker.pipeline.sinks.maintenance import Replayed, messages_of
from servicebroker.pipeline.sinks.maintenance import replay as replay_quarantine
from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sinks.tables import TableVersion
from servicebroker.pipeline.sinks.target import target

if TYPE_CHECKING:
    import pyarrow as pa

_TIME, _ROW_TIME = "message_enqueue_time", "_message_enqueue_time"
_MESSAGE_KEY = ["conversation_handle", "queuing_order"]  # columns that identify a message in bronze and quarantine


class LateMessages(NamedTuple):
    """The number of late messages of a type, and the table of their rule."""

    message_type: str
    table: str
    messages: int


def find_late(pipeline: Pipeline) -> list[LateMessages]:
    """Return the number of late messages for each message type that has any.

    Raises:
        InstanceError: a table cannot be read.
    """
    late_messages = []
    for rule in pipeline.messages:
        if late := _find_late(pipeline, rule):
            late_messages.append(LateMessages(rule.message_type, rule.table, late.messages))
    return late_messages


def replay(pipeline: Pipeline, message_type: str | None = None) -> list[Replayed]:
    """Write late messages into their tables, then decode quarantined messages again.

    Raises:
        InstanceError: the tables are plain Parquet files, or the message type has no rule.
    """
    late = {
        rule.message_type: _write_late(pipeline, rule)
        for rule in pipeline.messages
        if message_type in (None, rule.message_type)
    }
    replayed = {result.message_type: result for result in replay_quarantine(pipeline, message_type)}
    results = []
    for kind, written in late.items():
        quarantined = replayed.get(kind, Replayed(kind, 0, 0))
        results.append(quarantined._replace(written=quarantined.written + written))
    return results


def _write_late(pipeline: Pipeline, rule: MessageRule) -> int:
    """Write the late messages of a rule into its table, or into quarantine if they are unreadable.

    Returns the number of readable messages.
    """
    late = _find_late(pipeline, rule)
    if late is None:
        return 0
    table, quarantine = target(pipeline, rule.table), target(pipeline, pipeline.quarantine)
    table.ensure()
    written = 0
    unreadable_files: list[DataFile] = []

    def readable() -> Iterator[pa.Table]:
        nonlocal written
        for _, rows, unreadable in decode_bronze(pipeline, rule, late.bronze, late.excluded):
            written += rows.num_rows
            unreadable_files.extend(quarantine.write(unreadable) if unreadable.num_rows else ())
            yield rows

    parts = (
        newest_rows(table, readable()) if rule.key else readable()
    )  # one key may come from several queues: keep its newest row
    files = [file for rows in parts if rows.num_rows for file in table.write(rows)]
    if unreadable_files:
        quarantine.commit(unreadable_files, f"replay {uuid.uuid4()}", 0)
    if files:
        table.commit(files, f"replay {uuid.uuid4()}", 0)
    return written


class _Late(NamedTuple):
    """The late messages of a rule.

    Attributes:
        bronze: the version of bronze that was read.
        excluded: positions in bronze of messages of the type that are not late.
        messages: number of late messages.
    """

    bronze: TableVersion
    excluded: pa.Array[Any]
    messages: int


def _find_late(pipeline: Pipeline, rule: MessageRule) -> _Late | None:
    """Return the late messages of a rule; None if there are none, or if they cannot be determined."""
    import pyarrow as pa
    from pyarrow import compute

    if pipeline.format == "parquet" or not pipeline.bronze:
        return None
    bronze = target(pipeline, pipeline.bronze).table
    table = target(pipeline, rule.table).table
    before: datetime | None = None
    if table.exists() and (files := table.open().files()) and any(file.rows for file in files):
        first_times = [file.range_of(_ROW_TIME)[0] for file in files if file.rows]
        if rule.key or None in first_times:
            return None
        before = min(first_times)
    if not bronze.exists():
        return None
    version = bronze.open()
    keys = read_keys(version, rule.message_type, (_TIME,))
    excluded = [repeated_positions(keys, "max" if rule.key else "min")]
    positions = pa.array(range(keys.num_rows), pa.int64())
    if before is not None:
        is_not_late: Any = compute.greater_equal(keys.column(_TIME), pa.scalar(before, keys.schema.field(_TIME).type))
        excluded.append(positions.filter(is_not_late.combine_chunks()))
    excluded.append(_quarantined_positions(pipeline, rule, keys))
    distinct: Any = compute.unique(pa.concat_arrays(excluded)).sort()
    messages = keys.num_rows - len(distinct)
    return _Late(version, distinct, messages) if messages else None


def _quarantined_positions(pipeline: Pipeline, rule: MessageRule, keys: pa.Table) -> pa.Array[Any]:
    """Return the positions in bronze of messages that are in quarantine."""
    import pyarrow as pa

    quarantine = target(pipeline, pipeline.quarantine).table
    if not quarantine.exists():
        return pa.array([], pa.int64())
    version = quarantine.open()
    schema = pa.schema([version.columns.field(name) for name in _MESSAGE_KEY])
    batches = [rows.select(_MESSAGE_KEY) for rows in messages_of(version, rule.message_type, _MESSAGE_KEY)]
    quarantined_keys = pa.Table.from_batches(batches, schema).rename_columns(["_conversation_handle", "_queuing_order"])
    quarantined_keys = quarantined_keys.group_by(quarantined_keys.schema.names).aggregate([])
    positions = pa.array(range(keys.num_rows), pa.int64())
    numbered = keys.select(quarantined_keys.schema.names).append_column("position", positions)
    matches: Any = numbered.join(quarantined_keys, keys=quarantined_keys.schema.names, join_type="left semi")
    quarantined: pa.Array[Any] = matches.column("position").combine_chunks()
    return quarantined
