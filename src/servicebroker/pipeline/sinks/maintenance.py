"""What is done with a pipeline's tables beside landing: looking, reading quarantine again, compacting."""

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
from servicebroker.pipeline.attachment import Attachment
from servicebroker.pipeline.connecting import OpenDatabase
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.sinks.landing import target
from servicebroker.pipeline.sinks.replacing import THERE, meetings, without
from servicebroker.pipeline.sinks.storage import Folder, files_in, names_in, remove
from servicebroker.pipeline.sinks.tables import Place, Table, committed, rows_of
from servicebroker.pipeline.sorting import Sorter
from servicebroker.pipeline.stream.frontier import Frontier
from servicebroker.store.running import execute

if TYPE_CHECKING:
    import pyarrow as pa

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
    """Which batch of a queue was the last to land, -1 for none, and how far behind its query is.

    `problem`: why nobody can say so, as when its server is away.
    """

    queue: str
    batch: int
    behind: dict[str, Any]
    problem: str | None = None


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
        InstanceError: a table cannot be read, there is no such instance, or a checkpoint is damaged.
    """
    tables = [_table_status(pipeline, name) for name in pipeline.table_names()]
    queues = [_queue_status(pipeline, queue) for queue in pipeline.queues]
    return Status(tables, queues, _quarantined(pipeline))


def unknown_types(pipeline: Pipeline) -> list[str]:
    """Message types of rules that no database of the queues has: mistyped, or still to come.

    Raises:
        InstanceError, BrokerError: an instance cannot be reached, or a database not be found.
    """
    known: set[str] = set()
    for instance, name in {(queue.instance, queue.database) for queue in pipeline.queues}:
        with closing(OpenDatabase.open(instance, name)) as database:
            text = "select name from servicebroker.message_types where database_id = $1"
            found = execute(database.connection, "maintenance.unknown_types", text, database.database_id)
            known |= {one for (one,) in found}
    return [rule.message_type for rule in pipeline.messages if rule.message_type not in known]


def last_landed(checkpoint: Path) -> tuple[int, Frontier | None]:
    """The last batch that Spark has noted as committed, and its end; -1 and None when there is none."""
    done = [int(file.name) for file in (checkpoint / "commits").glob("*") if file.name.isdigit()]
    if not done:
        return -1, None
    try:
        *_, offset = read_file(checkpoint / "offsets" / str(max(done))).decode().splitlines()
        return max(done), Frontier.from_json(json.loads(offset))
    except (OSError, ValueError, TypeError):  # TypeError: it is JSON, and no object
        raise InstanceError(f"The checkpoint '{checkpoint}' is damaged.") from None


def replay(pipeline: Pipeline, message_type: str | None = None) -> list[Replayed]:
    """Read what lies in quarantine again, by the rules as they are now: what can be read lands and leaves it.

    A message that has landed already, because an earlier replay was cut off, lands no second time.

    Raises:
        InstanceError: the tables are plain Parquet files, or the message type has no rule.
    """
    quarantine = target(pipeline, pipeline.quarantine).place
    if quarantine is None:
        raise InstanceError("Quarantine can be read again from tables of Delta or Iceberg only.")
    if message_type is not None and pipeline.rule(message_type) is None:
        raise InstanceError(f"The pipeline has no rule for '{message_type}'.")
    if not quarantine.is_there():
        return []
    return [
        _replay(pipeline, rule, quarantine) for rule in pipeline.messages if message_type in (None, rule.message_type)
    ]


def compact(pipeline: Pipeline, keep_hours: float) -> list[Compacted]:
    """Merge small files, and remove those that no version younger than `keep_hours` needs.

    From a day on, files that failed attempts have left go too.

    Raises:
        InstanceError: the tables are plain Parquet files, or that is no time; or some could not be changed, and the
            others are done.
    """
    if not 0 <= keep_hours < math.inf:
        raise InstanceError(f"Versions are kept for some hours from 0 on, not for {keep_hours:g}.")
    if pipeline.format == "parquet":
        raise InstanceError("Only tables of Delta or Iceberg can be compacted.")
    found, left = [], []
    for name in pipeline.table_names():
        one = target(pipeline, name)
        place = one.table
        if not place.is_there():
            continue
        remove_files = partial(place.remove_files, keep_hours, left_over=keep_hours >= _SAFE)
        try:
            with place.said():
                merged, written = committed(place, place.merge_files, _COMPACTIONS)
                removed = committed(place, remove_files, _COMPACTIONS)
        except InstanceError as problem:
            left.append(str(problem))
        else:
            found.append(Compacted(name, merged, written, removed + _remove_old(one.staged)))
    if left:
        raise InstanceError(" ".join([*left, "The other tables are done."]))
    return found


def _queue_status(pipeline: Pipeline, queue: QueueRule) -> QueueStatus:
    batch = -1
    try:
        batch, offset = last_landed(pipeline.checkpoint(queue))
        with closing(Attachment.open(source_options(queue.source_options()))) as attached:
            return QueueStatus(queue.label, batch, attached.progress(offset or attached.initial))
    except (Unreachable, BrokerError) as problem:
        return QueueStatus(queue.label, batch, {}, str(problem))


def _table_status(pipeline: Pipeline, name: str) -> TableStatus:
    from pyarrow.parquet import read_metadata

    one = target(pipeline, name)
    if one.place is None:
        folder = one.folder
        rows = size = 0
        files = names_in(folder, ".parquet")
        for part in files:
            with files_in(folder).open_input_file(part) as file:
                rows, size = rows + read_metadata(file).num_rows, size + file.size()
        return TableStatus(name, rows, len(files), size)
    there = one.place.open().files() if one.place.is_there() else []
    return TableStatus(name, sum(file.rows for file in there), len(there), sum(file.size for file in there))


def _quarantined(pipeline: Pipeline) -> dict[tuple[str, str], int]:
    place = target(pipeline, pipeline.quarantine).place
    if place is None or not place.is_there():
        return {}
    counts: Counter[tuple[str, str]] = Counter()
    for rows in rows_of(place, ["message_type_name", "reason"]):
        counts.update((row["message_type_name"], row["reason"]) for row in rows.to_pylist())
    return dict(counts.most_common())


def _replay(pipeline: Pipeline, rule: MessageRule, quarantine: Place) -> Replayed:
    import pyarrow as pa
    from pyarrow import compute

    table = quarantine.open()
    waiting: Any = pa.Table.from_batches(messages_of(table, rule.message_type), table.columns)
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
        with quarantine.said():
            committed(quarantine, partial(_remove_rows, quarantine, done))
        landed += len(places)
    return Replayed(rule.message_type, landed, waiting.num_rows - landed)


def messages_of(table: Table, message_type: str, names: Sequence[str] = ()) -> Iterator[pa.RecordBatch]:
    """The messages of one type in a table of messages as they are, about in the order of their landing.

    Each look at a version of the table has them in one order. `names`: only these columns and the type.
    """
    import pyarrow as pa
    from pyarrow import compute

    columns = pa.schema([table.columns.field(name) for name in ("message_type_name", *names)])
    for file in sorted(table.files(), key=lambda file: (str(file.range_of("landed_at")[0]), file.name)):
        for rows in table.read(file, columns if names else table.columns):
            yield rows.filter(compute.equal(rows.column("message_type_name"), pa.scalar(message_type)))


def _remove_rows(quarantine: Place, rows: pa.Table) -> None:
    table = quarantine.open()
    gone, come = [], []
    for file, pairs in meetings(table, rows, rows.schema.names):
        gone.append(file)
        come += without(table, file, pairs.column(THERE))
    table.exchange(gone, come)


def _remove_old(staged: Folder) -> int:
    """Remove what attempts that failed long ago have left. Returns how many files."""
    old = names_in(staged, ".parquet", before=time.time() - _DAY)
    for name in old:
        remove(staged, name)
    if isinstance(staged, Path) and staged.exists() and not any(staged.iterdir()):
        shutil.rmtree(staged, ignore_errors=True)
    return len(old)
