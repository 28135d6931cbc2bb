"""Checks that the checkpoint of a query has every batch that the tables have, so that it is not an old copy."""

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
    """Checks the checkpoint of each queue before its query starts.

    The tables are opened once for the first starts of all queries, and again for each restart.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._tables: list[tuple[Target, Callable[[str], int | None]]] = []
        self._started_queues: set[str] = set()

    def check(self, queue: QueueRule) -> None:
        """Check that the checkpoint of a queue is not older than a table.

        Spark records a batch in the checkpoint before it reads the batch. So if a table has a batch that the checkpoint
        lacks, the checkpoint is old. From it, new messages would get the number of a batch that the tables have. The
        tables would skip them, and the messages would be deleted from the queue.

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
        last_batches = [(table, _last_batch(table, find_batch, query)) for table, find_batch in self._tables]
        planned = _last_planned(folder)  # after the tables: Spark records a batch here before a table gets it
        for table, last_batch in last_batches:
            if last_batch > planned:
                known_batches = f"only batches up to {planned}" if planned >= 0 else "no batch"
                raise OldCheckpoint(
                    f"The checkpoint '{folder}' is older than the table '{table.location or table.folder}': the "
                    f"table has batch {last_batch} of its query, and the checkpoint has {known_batches}. An old copy "
                    "was put in its place, or a disk has lost its end. Remove it and run again: "
                    f"{_NO_DUPLICATES if table.location else _PLAIN_DUPLICATES}."
                )


_NO_DUPLICATES = "rows that the tables have are not added twice"
_PLAIN_DUPLICATES = "plain Parquet files would get rows again: check first which messages the queue still holds"


def _open(table_target: Target) -> tuple[Target, Callable[[str], int | None]]:
    """Return a table, with a function from a query id to the query's last batch in it."""
    with _readable(table_target):
        return table_target, table_target.last_batches()


def _last_batch(table_target: Target, find_batch: Callable[[str], int | None], query: str) -> int:
    """Return the last batch of a query in a table; -1 if there is none."""
    with _readable(table_target):
        last = find_batch(query)
    return -1 if last is None else last


@contextlib.contextmanager
def _readable(table: Target) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        reason = problem.strerror or problem
        raise InstanceError(
            f"The table '{table.location or table.folder}' cannot be read: {reason}. Check its path and permissions."
        ) from None


class _Metadata(msgspec.Struct):
    """The content of Spark's file `metadata` in a checkpoint."""

    id: UUID


def _query(folder: Path) -> str | None:
    """Return the id of the query that a checkpoint belongs to, in Spark's spelling; None without a checkpoint."""
    try:
        return str(msgspec.json.decode(read_file(folder / "metadata").splitlines()[0], type=_Metadata).id)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError, RecursionError) as problem:
        raise InstanceError(f"The checkpoint '{folder}' cannot be read: {problem}.") from None


def _last_planned(folder: Path) -> int:
    """Return the last planned batch in the checkpoint; -1 if there is none."""
    return max(batch_numbers(folder / "offsets"), default=-1)


def batch_numbers(folder: Path) -> list[int]:
    """Return the numbers of the batches in a folder of a checkpoint. Spark ignores files with other names."""
    names = [file.name for file in folder.glob("[0-9]*")]
    return [int(name) for name in names if re.fullmatch(r"[0-9]{1,18}", name)]  # numbers of 64 bits
