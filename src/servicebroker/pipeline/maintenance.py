"""What is done with a pipeline's tables beside landing: looking, reading quarantine again, compacting."""

from __future__ import annotations

import json
import shutil
import time
import uuid
from collections import Counter
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.attachment import Attachment
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.delta import committed, exchange, flush_changes, flush_log, said
from servicebroker.pipeline.delta_reader import File, arrow_columns, files_of, open_table, read_file, rows_of
from servicebroker.pipeline.frontier import Frontier
from servicebroker.pipeline.landing import STAGED, target
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.replacing import THERE, meetings, without
from servicebroker.pipeline.sorting import Sorter
from servicebroker.pipeline.storage import Folder, files_in, has_table, names_in, remove

if TYPE_CHECKING:
    import pyarrow as pa
    from deltalake import DeltaTable

_COMPACTIONS = 5  # of a table: each reads and writes it, and somebody else's commit may undo it
_DAY = 86_400  # seconds
_SAFE = 24  # hours, after which a file that no log names will not be named any more


class TableStatus(NamedTuple):
    """Rows, files and bytes of a table."""

    table: str
    rows: int
    files: int
    bytes: int


class QueueStatus(NamedTuple):
    """Which batch of a queue was the last to land, -1 for none, and how far behind its query is."""

    queue: str
    batch: int
    behind: dict[str, Any]


class Status(NamedTuple):
    """A pipeline as it stands: `quarantined` counts by message type and reason."""

    tables: list[TableStatus]
    queues: list[QueueStatus]
    quarantined: dict[tuple[str, str], int]


class Compacted(NamedTuple):
    """Files of a table that were merged, written instead, and removed because no version needs them any more."""

    table: str
    merged: int
    written: int
    removed: int


class Replayed(NamedTuple):
    """Messages of a type in quarantine: how many have landed now, and how many still cannot be read."""

    message_type: str
    landed: int
    left: int


def status(pipeline: Pipeline) -> Status:
    """How the pipeline stands. Reads the tables' logs, the checkpoints and the queues; starts nothing.

    Raises:
        InstanceError, BrokerError: an instance cannot be reached, or a queue not be found.
    """
    tables = [_table_status(pipeline, name) for name in pipeline.table_names()]
    queues = []
    for queue in pipeline.queues:
        batch, offset = last_landed(pipeline.checkpoint(queue))
        attached = Attachment.open(source_options(queue.source_options()))
        try:
            queues.append(QueueStatus(queue.label, batch, attached.progress(offset or attached.initial)))
        finally:
            attached.close()
    return Status(tables, queues, _quarantined(pipeline))


def last_landed(checkpoint: Path) -> tuple[int, Frontier | None]:
    """The last batch that Spark has noted as committed, and its end; -1 and None when there is none."""
    done = [int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdigit()]
    if not done:
        return -1, None
    try:
        *_, offset = (checkpoint / "offsets" / str(max(done))).read_text().splitlines()
        return max(done), Frontier.from_json(json.loads(offset))
    except (OSError, ValueError):
        raise InstanceError(f"The checkpoint '{checkpoint}' is damaged.") from None


def replay(pipeline: Pipeline, message_type: str | None = None) -> list[Replayed]:
    """Read what lies in quarantine again, by the rules as they are now: what can be read lands and leaves it.

    A message that has landed already, because an earlier replay was cut off, lands no second time.

    Raises:
        InstanceError: the tables are not Delta, or the message type has no rule.
    """
    if pipeline.format != "delta":
        raise InstanceError("Quarantine can be read again from Delta tables only.")
    if message_type is not None and pipeline.rule(message_type) is None:
        raise InstanceError(f"The pipeline has no rule for '{message_type}'.")
    if not has_table(target(pipeline, pipeline.quarantine).folder):
        return []
    return [_replay(pipeline, rule) for rule in pipeline.messages if message_type in (None, rule.message_type)]


def compact(pipeline: Pipeline, keep_hours: float) -> list[Compacted]:
    """Merge small files, and remove those that no version younger than `keep_hours` needs.

    From a day on, files that failed attempts have left go too.

    Raises:
        InstanceError: the tables are not Delta; or some could not be changed, and the others are done.
    """
    if pipeline.format != "delta":
        raise InstanceError("Only Delta tables can be compacted.")
    found, left = [], []
    for name in pipeline.table_names():
        folder = target(pipeline, name).folder
        if not has_table(folder):
            continue
        try:
            with said(folder):
                merged, written = committed(folder, partial(_merge_files, folder), _COMPACTIONS)
                removed = committed(folder, partial(_remove_files, folder, keep_hours), _COMPACTIONS)
        except InstanceError as problem:
            left.append(str(problem))
        else:
            found.append(Compacted(name, merged, written, removed + _remove_old(folder / STAGED)))
    if left:
        raise InstanceError(" ".join([*left, "The other tables are done."]))
    return found


def _merge_files(folder: Folder) -> tuple[int, int]:
    """How many small files were merged, and into how many."""
    table = open_table(folder)
    before = table.version()
    told = table.optimize.compact()
    flush_changes(folder, before)
    return told["numFilesRemoved"], told["numFilesAdded"]


def _remove_files(folder: Folder, keep_hours: float) -> int:
    """Remove files that no version needs which is young enough. Returns how many."""
    table = open_table(folder)
    before = table.version()
    removed = table.vacuum(
        retention_hours=round(keep_hours),
        dry_run=False,
        enforce_retention_duration=False,
        full=keep_hours >= _SAFE,  # files that no log names: left by failed attempts, or just being written
    )
    flush_log(folder, before)
    return len(removed)


def _table_status(pipeline: Pipeline, name: str) -> TableStatus:
    import pyarrow as pa
    from pyarrow import compute
    from pyarrow.parquet import read_metadata

    folder = target(pipeline, name).folder
    if pipeline.format == "parquet":
        rows = size = 0
        files = names_in(folder, ".parquet")
        for one in files:
            with files_in(folder).open_input_file(one) as file:
                rows, size = rows + read_metadata(file).num_rows, size + file.size()
        return TableStatus(name, rows, len(files), size)
    if not has_table(folder):
        return TableStatus(name, 0, 0, 0)
    table = open_table(folder)
    adds: Any = pa.table(table.get_add_actions(flatten=True))
    return TableStatus(name, int(table.count()), adds.num_rows, compute.sum(adds.column("size_bytes")).as_py() or 0)


def _quarantined(pipeline: Pipeline) -> dict[tuple[str, str], int]:
    folder = target(pipeline, pipeline.quarantine).folder
    if pipeline.format == "parquet" or not has_table(folder):
        return {}
    counts: Counter[tuple[str, str]] = Counter()
    for rows in rows_of(folder, ["message_type_name", "reason"]):
        counts.update((row["message_type_name"], row["reason"]) for row in rows.to_pylist())
    return dict(counts.most_common())


def _replay(pipeline: Pipeline, rule: MessageRule) -> Replayed:
    import pyarrow as pa
    from pyarrow import compute

    folder = target(pipeline, pipeline.quarantine).folder
    table = open_table(folder)
    waiting: Any = pa.Table.from_batches(messages_of(folder, table, rule.message_type), arrow_columns(table))
    landed = 0
    for label in compute.unique(waiting.column("queue")).to_pylist():
        theirs = waiting.filter(compute.equal(waiting.column("queue"), label))
        sorter = Sorter(pipeline, QueueRule("", "", "", label))
        rows, places = sorter.reread(rule, theirs)
        if not places:
            continue
        into = target(pipeline, rule.table)
        into.ensure()
        into.land(into.write(rows), f"replay {uuid.uuid4()}", 0)
        done = theirs.select(["queue", "conversation_handle", "queuing_order"]).take(pa.array(places))
        with said(folder):
            committed(folder, partial(_remove_rows, folder, done))
        landed += len(places)
    return Replayed(rule.message_type, landed, waiting.num_rows - landed)


def messages_of(folder: Folder, table: DeltaTable, message_type: str) -> Iterator[pa.RecordBatch]:
    """The messages of one type in a table of messages as they are, about in the order of their landing."""
    import pyarrow as pa
    from pyarrow import compute

    for file in sorted(files_of(table), key=lambda file: str(file.range_of("landed_at")[0])):
        for rows in read_file(File.of(folder, file, arrow_columns(table))):
            yield rows.filter(compute.equal(rows.column("message_type_name"), pa.scalar(message_type)))


def _remove_rows(quarantine: Folder, rows: pa.Table) -> None:
    table = open_table(quarantine)
    gone, come = [], []
    for file, pairs in meetings(quarantine, table, rows, rows.schema.names):
        gone.append(file)
        come += without(quarantine, table, file, pairs.column(THERE))
    exchange(quarantine, table, gone, come)


def _remove_old(staged: Folder) -> int:
    """Remove what attempts that failed long ago have left. Returns how many files."""
    old = names_in(staged, ".parquet", before=time.time() - _DAY)
    for name in old:
        remove(staged, name)
    if isinstance(staged, Path) and staged.exists() and not any(staged.iterdir()):
        shutil.rmtree(staged, ignore_errors=True)
    return len(old)
