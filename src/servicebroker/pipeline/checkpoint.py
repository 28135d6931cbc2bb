"""Whether the checkpoint of a query knows of all that the query has landed."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.pipeline.definition import OldCheckpoint, Pipeline, QueueRule
from servicebroker.pipeline.sinks.landing import Target, target


class Checkpoints:
    """The checkpoints of a pipeline, each looked at before its query starts.

    For the first starts of all queries the tables are opened once, for each that starts again anew.
    """

    def __init__(self, pipeline: Pipeline) -> None:
        self._pipeline = pipeline
        self._tables: list[tuple[Target, Callable[[str], int | None]]] = []
        self._seen: set[str] = set()

    def check(self, queue: QueueRule) -> None:
        """Refuse a checkpoint that is older than a table, before a batch is planned from it.

        Spark notes a batch before it is read, so no table has one that the checkpoint does not know. Where one has, new
        messages would be given the number of a batch that has landed, be taken for it, and leave the queue.

        Raises:
            OldCheckpoint: it is older.
            InstanceError: a table cannot be read.
        """
        starts_again = queue.label in self._seen
        self._seen.add(queue.label)
        folder = self._pipeline.checkpoint(queue)
        query = _query(folder)
        if query is None:
            return
        if starts_again or not self._tables:
            self._tables = [_opened(target(self._pipeline, table)) for table in self._pipeline.table_names()]
        known = [(into, _landed(into, batches, query)) for into, batches in self._tables]
        planned = _planned(folder)  # read last: what Spark still lands has been noted before
        for into, landed in known:
            if landed > planned:
                knows = f"only batches up to {planned}" if planned >= 0 else "no batch"
                raise OldCheckpoint(
                    f"The checkpoint '{folder}' is older than the table '{into.place or into.folder}': that has batch "
                    f"{landed} of its query, and it knows {knows}. An old copy was put in its place, or a disk has "
                    f"lost its end. Remove it and run again: {_AGAIN if into.place else _PLAIN_AGAIN}."
                )


_AGAIN = "what the tables have is not added twice"
_PLAIN_AGAIN = "of plain files nobody else notices what they have already, so look what the queue still holds of it"


def _opened(into: Target) -> tuple[Target, Callable[[str], int | None]]:
    with _said(into):
        return into, into.batches()


def _landed(into: Target, batches: Callable[[str], int | None], query: str) -> int:
    with _said(into):
        last = batches(query)
    return -1 if last is None else last


@contextlib.contextmanager
def _said(into: Target) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise InstanceError(f"The table '{into.place or into.folder}' cannot be read: {problem}.") from None


def _query(folder: Path) -> str | None:
    """The query that a checkpoint belongs to, None where there is no checkpoint yet."""
    try:
        return str(json.loads(read_file(folder / "metadata").decode().splitlines()[0])["id"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, LookupError) as problem:
        raise InstanceError(f"The checkpoint '{folder}' cannot be read: {problem}.") from None


def _planned(folder: Path) -> int:
    """The last batch that it knows of, -1 where there is none."""
    return max((int(note.name) for note in (folder / "offsets").glob("[0-9]*") if note.name.isdecimal()), default=-1)
