"""Records in the instance how far the streams of a queue have read, to detect old checkpoints.

A checkpoint is a folder, so it can be copied, restored, or lose its last files. From an old checkpoint, Spark gives new
messages the number of a batch that the sink already has. The sink would skip them, and the next plan would delete them.
Two tables prevent that.

* `stream_offsets` has the acknowledged offset of each queue, and the start and end of the batch planned after it. Only
  the process that owns the queue writes the row. A stream that has read rows may only start at one of these offsets.
  From an older one it would repeat acknowledged batches, and from a later one it would delete unread messages. A
  plan from the recorded start returns the recorded end again.
* `stream_batches` has the number of the last batch of each query, and a digest of its end offset. The tasks that read a
  batch write the row, since only they know the query's id and the batch number. A known number with another end is
  refused. A start equal to the end of a query's last batch is accepted, even if another stream has acknowledged more.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import psycopg

from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.stream.frontier import Frontier, has_read
from servicebroker.store.running import execute
from servicebroker.store.statements import text_of

BATCH_RETENTION_DAYS = 400  # the record of a query that has read nothing for longer is deleted

_NEW_CHECKPOINT = (
    "Nothing is lost: the queue keeps its messages. Start the query with a new checkpoint location, after checking in "
    "the target which messages it holds."
)
_REMEDY = f"The checkpoint is an old copy, has lost its end, or is used by two queries. {_NEW_CHECKPOINT}"


class StreamOffsets:
    """The row of a queue in `stream_offsets`. Only the stream that owns the queue may use it.

    `initial` is the initial offset of the queue. A row of another database, or of another queue with the same id, is
    ignored.
    """

    def __init__(self, connection: psycopg.Connection[Any], queue_id: int, initial: Frontier) -> None:
        self._connection = connection
        self._queue_id = queue_id
        rows = execute(
            connection,
            "stream_offsets.init",
            "select acknowledged, planned_start, planned_end from servicebroker.stream_offsets where queue_id = $1",
            queue_id,
        )
        acknowledged, start, end = (_offset(stored, initial) for stored in (rows[0] if rows else (None,) * 3))
        self._acknowledged = acknowledged
        self._planned = (start, end) if start and end else None

    def is_known(self, offset: Frontier) -> bool:
        """True if `offset` is recorded, or if a stream at `offset` has read nothing yet.

        Also True without a record: an earlier version, which kept none, may have written the checkpoint.
        """
        recorded_offsets = [known for known in (self._acknowledged, *(self._planned or ())) if known is not None]
        return offset.is_initial or not recorded_offsets or any(_is_same(offset, known) for known in recorded_offsets)

    def refusal(self, offset: Frontier, queue_name: str) -> InstanceError:
        """Return the error for an offset for which `is_known` is False."""
        if self._acknowledged is not None and not has_read(offset, self._acknowledged):
            return InstanceError(
                f"The checkpoint is older than what the queue '{queue_name}' has given: messages after its offset "
                f"were read and acknowledged. {_REMEDY}"
            )
        return InstanceError(
            f"The checkpoint is ahead of what the queue '{queue_name}' has given: messages up to its offset were "
            "never read, and would be deleted. The server was restored from a backup, has lost its last commits, or "
            f"the checkpoint is not of this queue. {_NEW_CHECKPOINT}"
        )

    def planned_from(self, start: Frontier) -> Frontier | None:
        """Return the end of the batch that was planned from `start` and never acknowledged; None if there is none."""
        return self._planned[1] if self._planned and _is_same(start, self._planned[0]) else None

    def record_acknowledged(self, offset: Frontier) -> None:
        """Record an acknowledged offset, before the rows up to it are deleted.

        A new offset clears the planned batch. The recorded offset again changes nothing.
        """
        if self._acknowledged is not None and _is_same(self._acknowledged, offset):
            return
        execute(
            self._connection,
            "stream_offsets.record_acknowledged",
            "insert into servicebroker.stream_offsets as s (queue_id, acknowledged) values ($1, $2::text::jsonb) "
            "on conflict (queue_id) do update set acknowledged = excluded.acknowledged, planned_start = null, "
            "planned_end = null",
            self._queue_id,
            _text(offset),
        )
        self._acknowledged, self._planned = offset, None

    def record_planned(self, start: Frontier, end: Frontier) -> None:
        """Record a planned batch, before its end is returned to Spark."""
        execute(
            self._connection,
            "stream_offsets.record_planned",
            "insert into servicebroker.stream_offsets as s (queue_id, planned_start, planned_end) "
            "values ($1, $2::text::jsonb, $3::text::jsonb) on conflict (queue_id) do update "
            "set planned_start = excluded.planned_start, planned_end = excluded.planned_end",
            self._queue_id,
            _text(start),
            _text(end),
        )
        self._planned = start, end


def is_last_end(connection: psycopg.Connection[Any], source: str, end: str) -> bool:
    """True if the last batch of any query of this source ends at the offset with the digest `end`.

    Also deletes expired records.
    """
    execute(
        connection,
        "stream_offsets.is_last_end.forget",
        "delete from servicebroker.stream_batches where noted_at < clock_timestamp() - make_interval(days => $1)",
        BATCH_RETENTION_DAYS,
    )
    rows = execute(
        connection,
        "stream_offsets.is_last_end.find",
        "select true from servicebroker.stream_batches where source = $1 and end_offset = $2 limit 1",
        source,
        end,
    )
    return bool(rows)


class BatchEnd(NamedTuple):
    """The batch that a task reads: its query and number, and digests of the source and of its end offset."""

    source: str
    query: str
    batch: int
    end: str


def record_batch(cursor: Any, batch: BatchEnd) -> None:
    """Record the batch that a task is about to read. On a standby, only check it.

    Raises:
        InstanceError: the query has already read a later batch, or this batch with another end.
    """
    source, query, number, end = batch
    cursor.execute(
        text_of(
            "stream_offsets.record_batch.find",
            "select b.batch, b.end_offset, current_setting('transaction_read_only') = 'on' from (values (true)) as one "
            f"left join servicebroker.stream_batches b on b.source = '{source}' and b.query = '{query}'::uuid",
        )
    )
    ((last, known, is_standby),) = cursor.fetchall()
    if last is not None and (last > number or (last == number and known != end)):
        continuation = f"with batch {number}" if last > number else "with other messages under that number"
        raise InstanceError(
            f"Batch {last} of this query was read already, and its checkpoint goes on {continuation}. {_REMEDY}"
        )
    if last != number and not is_standby:
        cursor.execute(
            text_of(
                "stream_offsets.record_batch.insert",
                "insert into servicebroker.stream_batches as b (source, query, batch, end_offset) "
                f"values ('{source}', '{query}', {number}, '{end}') on conflict (source, query) do update set "
                "batch = excluded.batch, end_offset = excluded.end_offset, noted_at = clock_timestamp() "
                "where b.batch < excluded.batch",
            )
        )


def digest(value: Mapping[str, Any] | str) -> str:
    """Return a digest of 64 hexadecimal digits, which are safe in the text of SQL."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _offset(stored: dict[str, Any] | None, initial: Frontier) -> Frontier | None:
    """Return a stored offset if it is of this queue in this database; None for another one, as in a restored copy."""
    offset = Frontier.from_json(stored) if stored else None
    is_of_this_queue = offset and _identity(offset) == _identity(initial)
    return offset if is_of_this_queue else None


def _identity(offset: Frontier) -> tuple[str, str, int]:
    """Return the fields that identify the queue of an offset: cluster, queue and database."""
    return offset.system_identifier, offset.queue, offset.database_oid


def _text(offset: Frontier) -> str:
    return json.dumps(offset.to_json())


def _is_same(first: Frontier, second: Frontier) -> bool:
    return (first.lo, first.hi, first.queuing_order) == (second.lo, second.hi, second.queuing_order)
