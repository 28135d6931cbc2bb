"""Check that the checkpoint of a query knows every batch that the query has landed."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import msgspec

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.pipeline.definition import OldCheckpoint, Pipeline, QueueRule
from servicebroker.pipeline.sinks.target import Target, target


class Checkpoints:
    """The checkpoints of a pipeline, each checked before its query starts.

    The tables are opened once for the first starts of all queries, and anew for each restart.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._tables: list[tuple[Target, Callable[[str], int | None]]] = []
        self._started_queues: set[str] = set()

    def check(self, queue: QueueRule) -> None:
        """Refuse a checkpoint that is older than a table, before a batch is planned from it.

        Spark records a batch in the checkpoint before it reads the batch. So a table has no batch that the checkpoint
        lacks, unless the checkpoint is old. From an old checkpoint, new messages would get the number of a landed
        batch, be taken for it, and leave the queue.

        Raises:
            OldCheckpoint: the checkpoint is older than a table.
            InstanceError: a table cannot be read.
        """
        is_restart = queue.label in self._started_queues
        self._started_queues.add(queue.label)
        folder = self._pipeline.checkpoint(queue)
        query = _query(folder)
        if query is None:
            return
        if is_restart or not self._tables:
            self._tables = [_open(target(self._pipeline, table)) for table in self._pipeline.table_names()]
        landed_batches = [(table, _landed(table, batches, query)) for table, batches in self._tables]
        planned = _last_planned(folder)  # read last: Spark records a batch here before the batch lands
        for table, landed in landed_batches:
            if landed > planned:
                known_batches = f"only batches up to {planned}" if planned >= 0 else "no batch"
                raise OldCheckpoint(
                    f"The checkpoint '{folder}' is older than the table '{table.location or table.folder}': the "
                    f"table has batch {landed} of its query, and the checkpoint has {known_batches}. An old copy was "
                    "put in its place, or a disk has lost its end. Remove it and run again: "
                    f"{_NO_DUPLICATES if table.location else _PLAIN_DUPLICATES}."
                )


_NO_DUPLICATES = "rows that the tables have are not added twice"
_PLAIN_DUPLICATES = "plain files take rows again that they have, so look first which messages the queue still holds"


def _open(table_target: Target) -> tuple[Target, Callable[[str], int | None]]:
    with _readable(table_target):
        return table_target, table_target.last_batches()


def _landed(table_target: Target, batches: Callable[[str], int | None], query: str) -> int:
    with _readable(table_target):
        last = batches(query)
    return -1 if last is None else last


@contextlib.contextmanager
def _readable(table: Target) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise InstanceError(f"The table '{table.location or table.folder}' cannot be read: {problem}.") from None


class _Metadata(msgspec.Struct):
    """Spark's file `metadata` in a checkpoint."""

    id: UUID


def _query(folder: Path) -> str | None:
    """Return the id of the query that a checkpoint belongs to, as Spark writes it; None without a checkpoint."""
    try:
        return str(msgspec.json.decode(read_file(folder / "metadata").splitlines()[0], type=_Metadata).id)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, RecursionError) as problem:
        raise InstanceError(f"The checkpoint '{folder}' cannot be read: {problem}.") from None


def _last_planned(folder: Path) -> int:
    """Return the last batch in the checkpoint, -1 without one."""
    return max(batch_numbers(folder / "offsets"), default=-1)


def batch_numbers(folder: Path) -> list[int]:
    """Return the numbers of the batches in a folder of a checkpoint. Spark ignores files with other names."""
    names = [file.name for file in folder.glob("[0-9]*")]
    return [int(name) for name in names if re.fullmatch(r"[0-9]{1,18}", name)]  # Spark reads 64 bits
