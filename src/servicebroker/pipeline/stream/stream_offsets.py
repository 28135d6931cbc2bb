"""A record in the broker's database of how far the streams of a queue have read.

A checkpoint is a folder: it can be copied, restored, or lose its end. Spark then gives new messages the number of a
batch that the sink has. The sink takes them for that batch, and the next plan deletes them. Two tables prevent that.

* `stream_offsets` has the acknowledged offset of each queue, and the batch planned after it. The process that plans a
  stream owns the queue, so it alone writes the row. An offset that is none of them is refused: an older one has not
  read what was acknowledged, and a later one would acknowledge messages that nobody has read. A start that was planned
  from before gets the same end again.
* `stream_batches` has the last batch of each query, by a digest of its end offset. The tasks that read a batch write
  the row, since Spark tells only them the query's id and the batch number. A number that comes again with another end
  is refused, whatever the sink is. A start that ends some query's last batch is no old copy, whatever another stream
  has acknowledged since.
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

BATCH_RETENTION_DAYS = 400  # a query that has read nothing for longer is forgotten

_NEW_CHECKPOINT = (
    "Nothing is lost: the queue keeps its messages. Start the query with a new checkpoint location, after checking in "
    "the target which messages it holds."
)
_REMEDY = f"The checkpoint is an old copy, has lost its end, or is used by two queries. {_NEW_CHECKPOINT}"


class StreamOffsets:
    """The record of what a queue has given to its streams. Only the stream that owns the queue may use it.

    `here` is the initial offset of the queue. Records of another database or queue with the same number are ignored.
    """

    def __init__(self, connection: psycopg.Connection[Any], queue_id: int, here: Frontier) -> None:
        self._connection = connection
        self._queue_id = queue_id
        rows = execute(
            connection,
            "stream_offsets.init",
            "select acknowledged, planned_start, planned_end from servicebroker.stream_offsets where queue_id = $1",
            queue_id,
        )
        acknowledged, start, end = (_offset(stored, here) for stored in (rows[0] if rows else (None,) * 3))
        self._acknowledged = acknowledged
        self._planned = (start, end) if start and end else None

    def is_known(self, offset: Frontier) -> bool:
        """True if a stream at `offset` is where the record says, or reads the queue from its beginning.

        Also true without a record, as for a checkpoint of a version that kept none.
        """
        recorded_offsets = [known for known in (self._acknowledged, *(self._planned or ())) if known is not None]
        return offset.is_initial or not recorded_offsets or any(_is_same(offset, known) for known in recorded_offsets)

    def refusal(self, offset: Frontier, queue_name: str) -> InstanceError:
        """Return the error for an offset that is not known."""
        if self._acknowledged is not None and not has_read(offset, self._acknowledged):
            return InstanceError(
                f"The checkpoint is older than what the queue '{queue_name}' has given: messages behind its offset "
                f"were read and acknowledged. {_REMEDY}"
            )
        return InstanceError(
            f"The checkpoint is ahead of what the queue '{queue_name}' has given: messages before its offset were "
            "never read, and would be deleted. The server was restored from a backup, has lost its last commits, or "
            f"the checkpoint is not of this queue. {_NEW_CHECKPOINT}"
        )

    def planned_from(self, start: Frontier) -> Frontier | None:
        """Return the end of the batch that was planned from `start` and not acknowledged; None without one."""
        return self._planned[1] if self._planned and _is_same(start, self._planned[0]) else None

    def record_acknowledged(self, offset: Frontier) -> None:
        """Record that everything up to `offset` leaves the queue, before it does.

        A new offset clears the planned batch; the same offset again keeps it.
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
        """Record a batch before Spark learns of it."""
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
    """True if the last batch of a query ends at the offset with the digest `end`.

    Also deletes records of old queries.
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
    """The batch of a query that a task reads, with digests of the source and of the offset at the batch's end."""

    source: str
    query: str
    batch: int
    end: str


def record_batch(cursor: Any, batch: BatchEnd) -> None:
    """Record the batch that a task reads, before it reads. A standby cannot record.

    Raises:
        InstanceError: the query has read a later batch, or this one with another end.
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
    """Return a digest of 64 characters that need no quotes in SQL."""
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()


def _offset(stored: dict[str, Any] | None, here: Frontier) -> Frontier | None:
    """Return an offset of this queue in this database; None for another one, as in an adopted copy."""
    offset = Frontier.from_json(stored) if stored else None
    is_here = offset and _place(offset) == _place(here)
    return offset if is_here else None


def _place(offset: Frontier) -> tuple[str, str, int]:
    return offset.system_identifier, offset.queue, offset.database_oid


def _text(offset: Frontier) -> str:
    return json.dumps(offset.to_json())


def _is_same(first: Frontier, second: Frontier) -> bool:
    return (first.lo, first.hi, first.queuing_order) == (second.lo, second.hi, second.queuing_order)
