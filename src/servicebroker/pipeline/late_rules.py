"""Late messages: messages that were written into bronze (the raw table) before their type had a rule.

`pipeline check` counts them, and `pipeline replay` writes them into the table of the rule.

If the table is empty, all messages of its types in bronze are late, except quarantined ones. If it has rows and no key,
the messages older than its first row are late. If it has rows or tombstones, and a key, late messages cannot be
distinguished from messages whose rows were replaced or deleted: use `pipeline rebuild`.
"""

from __future__ import annotations

import uuid
from collections import Counter
from collections.abc import Iterator
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.pipeline.definition import MessageRule, Pipeline
from servicebroker.pipeline.rebuild import decode_bronze, newest_rows, read_keys, repeated_positions
from servicebroker.pipeline.sinks.keyed_rows import Changes
from servicebroker.pipeline.sinks.maintenance import Replayed, messages_of
from servicebroker.pipeline.sinks.maintenance import replay as replay_quarantine
from servicebroker.pipeline.sinks.parquet import DataFile
from servicebroker.pipeline.sinks.row_selection import exclude_rows
from servicebroker.pipeline.sinks.tables import TableLocation, TableVersion
from servicebroker.pipeline.sinks.target import target

if TYPE_CHECKING:
    import pyarrow as pa

_TIME, _ROW_TIME, _TYPE = "message_enqueue_time", "_message_enqueue_time", "message_type_name"
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
    return [
        LateMessages(message_type, rules[0].table, count)
        for rules in _rules_by_table(pipeline)
        if (late := _find_late(pipeline, rules))
        for message_type, count in late.messages.items()
    ]


def replay(pipeline: Pipeline, message_type: str | None = None) -> list[Replayed]:
    """Write late messages into their tables, then decode quarantined messages again.

    With `message_type`, late messages of all rules with the same table are written: rows and deletes belong together.

    Raises:
        InstanceError: the tables are plain Parquet files, or the message type has no rule.
    """
    late: Counter[str] = Counter()
    for rules in _rules_by_table(pipeline):
        if message_type is None or any(rule.message_type == message_type for rule in rules):
            late += _write_late(pipeline, rules)
    replayed = {result.message_type: result for result in replay_quarantine(pipeline, message_type)}
    kinds = [rule.message_type for rule in pipeline.messages if message_type in (None, rule.message_type)]
    results = []
    for kind in kinds:
        quarantined = replayed.get(kind, Replayed(kind, 0, 0))
        results.append(quarantined._replace(written=quarantined.written + late[kind]))
    return results


def _rules_by_table(pipeline: Pipeline) -> list[list[MessageRule]]:
    return [pipeline.rules_of(rule.table) for rule in pipeline.messages if rule.has_rows]


def _write_late(pipeline: Pipeline, rules: list[MessageRule]) -> Counter[str]:
    """Write the late messages of a table's rules into the table, or into quarantine if they are unreadable.

    Returns the number of readable messages of each type.
    """
    late = _find_late(pipeline, rules)
    if late is None:
        return Counter()
    table, quarantine = target(pipeline, rules[0].table), target(pipeline, pipeline.quarantine)
    table.create_or_extend()
    readable = Counter(late.messages)
    unreadable_files: list[DataFile] = []

    def changes() -> Iterator[Changes]:
        for _, part, unreadable in decode_bronze(pipeline, rules, late.bronze, late.excluded):
            unreadable_types: Any = unreadable.column("message_type_name")
            readable.subtract(unreadable_types.to_pylist())
            unreadable_files.extend(quarantine.write(unreadable) if unreadable.num_rows else ())
            yield part

    # one key may come from several queues: keep its newest row
    parts = iter([newest_rows(table, changes())]) if table.key else changes()
    files: list[DataFile] = []
    deletes: list[DataFile] = []
    for part in parts:
        files += table.write(part.rows) if part.rows.num_rows else []
        if table.tombstones and part.deletes is not None:
            deletes += table.tombstones.write(part.deletes)
    if unreadable_files:
        quarantine.commit(unreadable_files, f"replay {uuid.uuid4()}", 0)
    if files or deletes:
        table.commit(files, f"replay {uuid.uuid4()}", 0, deletes=deletes)
    return +readable


class _Late(NamedTuple):
    """The late messages of a table's rules.

    Attributes:
        bronze: the version of bronze that was read.
        excluded: positions of messages that are not late, among the messages of the rules' types in bronze.
        messages: number of late messages of each type.
    """

    bronze: TableVersion
    excluded: pa.Array[Any]
    messages: Counter[str]


def _find_late(pipeline: Pipeline, rules: list[MessageRule]) -> _Late | None:
    """Return the late messages of a table's rules; None if there are none, or if they cannot be determined."""
    import pyarrow as pa
    from pyarrow import compute

    if pipeline.format == "parquet" or not pipeline.bronze:
        return None
    bronze = target(pipeline, pipeline.bronze).table
    table = target(pipeline, rules[0].table)
    if table.tombstones and _first_times(table.tombstones.table):
        return None
    first_times = _first_times(table.table)
    if first_times and (table.key or None in first_times):
        return None
    if not bronze.exists():
        return None
    version = bronze.open()
    types = [rule.message_type for rule in rules]
    keys = read_keys(version, types, (_TIME, _TYPE))
    excluded = [repeated_positions(keys, "max" if table.key else "min")]
    positions = pa.array(range(keys.num_rows), pa.int64())
    if first_times:
        before = pa.scalar(min(first_times), keys.schema.field(_TIME).type)
        is_not_late: Any = compute.greater_equal(keys.column(_TIME), before)
        excluded.append(positions.filter(is_not_late.combine_chunks()))
    excluded.append(_quarantined_positions(pipeline, types, keys))
    distinct: Any = compute.unique(pa.concat_arrays(excluded)).sort()
    late_types: Any = exclude_rows(keys, distinct).column(_TYPE)
    messages = Counter(late_types.to_pylist())
    return _Late(version, distinct, messages) if messages else None


def _first_times(location: TableLocation) -> list[datetime]:
    """Return the first enqueue time of each file with rows; None in its place if it is unknown."""
    files = location.open().files() if location.exists() else []
    return [file.range_of(_ROW_TIME)[0] for file in files if file.rows]


def _quarantined_positions(pipeline: Pipeline, types: list[str], keys: pa.Table) -> pa.Array[Any]:
    """Return the positions in bronze of messages that are in quarantine."""
    import pyarrow as pa

    quarantine = target(pipeline, pipeline.quarantine).table
    if not quarantine.exists():
        return pa.array([], pa.int64())
    version = quarantine.open()
    schema = pa.schema([version.columns.field(name) for name in _MESSAGE_KEY])
    batches = [rows.select(_MESSAGE_KEY) for rows in messages_of(version, types, _MESSAGE_KEY)]
    quarantined_keys = pa.Table.from_batches(batches, schema).rename_columns(["_conversation_handle", "_queuing_order"])
    quarantined_keys = quarantined_keys.group_by(quarantined_keys.schema.names).aggregate([])
    positions = pa.array(range(keys.num_rows), pa.int64())
    numbered = keys.select(quarantined_keys.schema.names).append_column("position", positions)
    matches: Any = numbered.join(quarantined_keys, keys=quarantined_keys.schema.names, join_type="left semi")
    quarantined: pa.Array[Any] = matches.column("position").combine_chunks()
    return quarantined
