"""Maintenance of a pipeline's tables: status, replay of quarantined messages, and compaction."""

from __future__ import annotations

import json
import math
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import closing
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model.errors import BrokerError, InstanceError, Unreachable
from servicebroker.model.named_files import read_file
from servicebroker.pipeline.checkpoint import batch_numbers
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.open_database import OpenDatabase
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.queue_lease import QueueLease
from servicebroker.pipeline.sinks.row_replacement import OLD_INDEX, find_matching_files, rewrite_without
from servicebroker.pipeline.sinks.storage import Folder, filesystem_of, names_in, remove
from servicebroker.pipeline.sinks.tables import TableLocation, TableVersion, commit_with_retry, rows_of
from servicebroker.pipeline.sinks.target import target
from servicebroker.pipeline.sorting import Sorter
from servicebroker.pipeline.stream.frontier import Frontier
from servicebroker.store.running import execute

if TYPE_CHECKING:
    import pyarrow as pa

_MAX_ATTEMPTS = 5  # each attempt reads and writes the table; another commit may make it fail
_DAY_S = 86_400
_MIN_ORPHAN_AGE_H = 24  # hours after which no running commit can still name a file


class TableStatus(NamedTuple):
    """Rows, files and bytes of a table."""

    table: str
    rows: int
    files: int
    bytes: int


class QueueStatus(NamedTuple):
    """The last committed batch of a queue, -1 for none, and the lag of its query.

    Attributes:
        behind: the lag, as `QueueLease.progress` returns it.
        problem: the reason why the lag is unknown, such as an unreachable server.
    """

    queue: str
    batch: int
    behind: dict[str, Any]
    problem: str | None = None


class Status(NamedTuple):
    """The state of a pipeline. `quarantined` has counts by message type and reason."""

    tables: list[TableStatus]
    queues: list[QueueStatus]
    quarantined: dict[tuple[str, str], int]


class Compacted(NamedTuple):
    """Numbers of a table's files: merged, written in their place, and removed because no version needs them."""

    table: str
    merged: int
    written: int
    removed: int


class Replayed(NamedTuple):
    """Numbers of messages of a type: written into their table by this replay, and remaining in quarantine."""

    message_type: str
    written: int
    remaining: int


def status(pipeline: Pipeline) -> Status:
    """Return the pipeline's state, from the tables' logs, the checkpoints and the queues. Starts no query.

    Raises:
        InstanceError: a table cannot be read, an instance does not exist, or a checkpoint is damaged.
    """
    tables = [_table_status(pipeline, name) for name in pipeline.table_names()]
    queues = [_queue_status(pipeline, queue) for queue in pipeline.queues]
    return Status(tables, queues, _quarantined(pipeline))


def unknown_types(pipeline: Pipeline) -> list[str]:
    """Return the rules' message types that no database of the queues has: mistyped, or not created yet.

    Raises:
        InstanceError: an instance cannot be reached.
        BrokerError: a database does not exist.
    """
    known_types: set[str] = set()
    for instance, name in {(queue.instance, queue.database) for queue in pipeline.queues}:
        with closing(OpenDatabase.open(instance, name)) as database:
            text = "select name from servicebroker.message_types where database_id = $1"
            rows = execute(database.connection, "maintenance.unknown_types", text, database.database_id)
            known_types |= {message_type for (message_type,) in rows}
    return [rule.message_type for rule in pipeline.messages if rule.message_type not in known_types]


def last_committed_batch(checkpoint: Path) -> tuple[int, Frontier | None]:
    """Return the last batch that a checkpoint records as committed, and its end offset; -1 and None for none."""
    committed = batch_numbers(checkpoint / "commits")
    if not committed:
        return -1, None
    try:
        *_, offset = read_file(checkpoint / "offsets" / str(max(committed))).decode().splitlines()
        return max(committed), Frontier.from_json(json.loads(offset))
    except (OSError, ValueError, TypeError, RecursionError):  # TypeError: JSON that is not an object
        raise InstanceError(f"The checkpoint '{checkpoint}' is damaged.") from None


def replay(pipeline: Pipeline, message_type: str | None = None) -> list[Replayed]:
    """Decode quarantined messages with the current rules. Move the readable ones into their tables.

    A message that an interrupted replay has already written is not written again.

    Raises:
        InstanceError: the tables are plain Parquet files, or the message type has no rule.
    """
    quarantine = target(pipeline, pipeline.quarantine).location
    if quarantine is None:
        raise InstanceError("Quarantine can be replayed only if the pipeline writes Delta or Iceberg tables.")
    if message_type is not None and pipeline.rule(message_type) is None:
        raise InstanceError(f"The pipeline has no rule for '{message_type}'.")
    if not quarantine.exists():
        return []
    return [
        _replay(pipeline, rule, quarantine) for rule in pipeline.messages if message_type in (None, rule.message_type)
    ]


def compact(pipeline: Pipeline, keep_hours: float) -> list[Compacted]:
    """Merge small files, and remove files that no version younger than `keep_hours` needs.

    With at least 24 hours, files of failed attempts are removed too.

    Raises:
        InstanceError: the tables are plain Parquet files; `keep_hours` is invalid; or some tables could not be changed.
            In the last case the other tables are compacted.
    """
    if not 0 <= keep_hours < math.inf:
        raise InstanceError(f"The hours that versions are kept must be at least 0, not {keep_hours:g}.")
    if pipeline.format == "parquet":
        raise InstanceError("Only tables of Delta or Iceberg can be compacted.")
    results, errors = [], []
    for name in pipeline.table_names():
        table_target = target(pipeline, name)
        location = table_target.table
        if not location.exists():
            continue
        remove_files = partial(location.remove_files, keep_hours, with_orphans=keep_hours >= _MIN_ORPHAN_AGE_H)
        try:
            with location.raising_instance_errors():
                merged, written = commit_with_retry(location, location.merge_files, _MAX_ATTEMPTS)
                removed = commit_with_retry(location, remove_files, _MAX_ATTEMPTS)
        except InstanceError as problem:
            errors.append(str(problem))
        else:
            results.append(Compacted(name, merged, written, removed + _remove_orphans(table_target.stage_folder)))
    if errors:
        raise InstanceError(" ".join([*errors, "The other tables are done."]))
    return results


def _queue_status(pipeline: Pipeline, queue: QueueRule) -> QueueStatus:
    batch = -1
    try:
        batch, offset = last_committed_batch(pipeline.checkpoint(queue))
        with closing(QueueLease.open(source_options(queue.source_options()))) as lease:
            return QueueStatus(queue.label, batch, lease.progress(offset or lease.initial))
    except (Unreachable, BrokerError) as problem:
        return QueueStatus(queue.label, batch, {}, str(problem))


def _table_status(pipeline: Pipeline, name: str) -> TableStatus:
    from pyarrow.parquet import read_metadata

    table_target = target(pipeline, name)
    if table_target.location is None:
        folder = table_target.folder
        rows = size = 0
        files = names_in(folder, ".parquet")
        for part in files:
            with filesystem_of(folder).open_input_file(part) as file:
                rows, size = rows + read_metadata(file).num_rows, size + file.size()
        return TableStatus(name, rows, len(files), size)
    table_files = table_target.location.open().files() if table_target.location.exists() else []
    rows, size = sum(file.rows for file in table_files), sum(file.size for file in table_files)
    return TableStatus(name, rows, len(table_files), size)


def _quarantined(pipeline: Pipeline) -> dict[tuple[str, str], int]:
    location = target(pipeline, pipeline.quarantine).location
    if location is None or not location.exists():
        return {}
    counts: Counter[tuple[str, str]] = Counter()
    for rows in rows_of(location, ["message_type_name", "reason"]):
        counts.update((row["message_type_name"], row["reason"]) for row in rows.to_pylist())
    return dict(counts.most_common())


def _replay(pipeline: Pipeline, rule: MessageRule, quarantine: TableLocation) -> Replayed:
    import pyarrow as pa
    from pyarrow import compute

    table = quarantine.open()
    quarantined: Any = pa.Table.from_batches(messages_of(table, [rule.message_type]), table.columns)
    written = 0
    for label in compute.unique(quarantined.column("queue")).to_pylist():
        messages = quarantined.filter(compute.equal(quarantined.column("queue"), label))
        sorter = Sorter(pipeline, QueueRule("", "", "", label))
        decoded = sorter.decode(rule, messages)
        if not decoded.indexes:
            continue
        table_target = target(pipeline, rule.table)
        table_target.create_or_extend()
        table_target.write_and_commit(decoded.rows, decoded.deletes, f"replay {uuid.uuid4()}", 0)
        keys = messages.select(["queue", "conversation_handle", "queuing_order"]).take(pa.array(decoded.indexes))
        with quarantine.raising_instance_errors():
            commit_with_retry(quarantine, partial(_remove_rows, quarantine, keys))
        written += len(decoded.indexes)
    return Replayed(rule.message_type, written, quarantined.num_rows - written)


def messages_of(
    table: TableVersion, message_types: Sequence[str] | None, names: Sequence[str] = ()
) -> Iterator[pa.RecordBatch]:
    """Yield the messages of some types in bronze or quarantine, roughly in the order in which they were written.

    The order is the same at each read of a table version.

    Args:
        message_types: None for all.
        names: columns to read besides the type; none reads all.
    """
    import pyarrow as pa
    from pyarrow import compute

    types = pa.array(list(message_types or ()), pa.string())
    columns = pa.schema([table.columns.field(name) for name in dict.fromkeys(("message_type_name", *names))])
    for file in sorted(table.files(), key=lambda file: (str(file.range_of("landed_at")[0]), file.name)):
        for rows in table.read(file, columns if names else table.columns):
            is_of_type: Any = compute.is_in(rows.column("message_type_name"), value_set=types)
            yield rows if message_types is None else rows.filter(is_of_type)


def _remove_rows(quarantine: TableLocation, rows: pa.Table) -> None:
    table = quarantine.open()
    removed, added = [], []
    for file, matches in find_matching_files(table, rows, rows.schema.names):
        removed.append(file)
        added += rewrite_without(table, file, matches.column(OLD_INDEX))
    table.replace_files(removed, added)


def _remove_orphans(staged: Folder) -> int:
    """Remove uncommitted files of failed attempts that are older than a day. Returns the number of files."""
    names = names_in(staged, ".parquet", before=time.time() - _DAY_S)
    for name in names:
        remove(staged, name)
    if isinstance(staged, Path) and staged.exists() and not any(staged.iterdir()):
        shutil.rmtree(staged, ignore_errors=True)
    return len(names)
