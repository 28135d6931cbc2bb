"""The lease of a queue: a connection with an advisory lock, which makes this process the only reader of the queue."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from servicebroker.engine.catalog.catalog import Catalog, find_queue
from servicebroker.engine.security.authorization import authorize, queue_number
from servicebroker.model.errors import InstanceError
from servicebroker.model.names import split_queue_name
from servicebroker.pipeline.held_back import HeldBack, Holder
from servicebroker.pipeline.open_database import OpenDatabase, has_table
from servicebroker.pipeline.options import SourceOptions
from servicebroker.pipeline.stream import frontier
from servicebroker.pipeline.stream.acknowledgement import RowsToAcknowledge, acknowledge_rows, find_rows, remove_rows
from servicebroker.pipeline.stream.frontier import Frontier, QueuePosition, Slice
from servicebroker.store import locks
from servicebroker.store.running import execute, run
from servicebroker.store.server_time import server_time

MEASURED_ROWS_PER_QUERY = 10_000  # bytes are summed in steps, so that a small batch does not read a deep queue


@dataclass
class QueueLease:
    """A queue, on a connection of its own. `claim` makes this process its only reader.

    Attributes:
        queue_name: name of the queue as it was created.
        initial: offset of a stream that has read nothing.
        archives: acknowledged messages are kept in the archive, and a new stream reads them again.
        skipped_up_to: last queuing_order that a stream with the starting offset "latest" skips.
    """

    database: OpenDatabase
    queue_id: int
    queue_name: str
    initial: Frontier
    archives: bool
    skipped_up_to: int = 0
    _window: tuple[int, int, int | None] = (0, 0, None)  # lo, hi and last queuing_order of the window found last

    @classmethod
    def open(cls, options: SourceOptions) -> QueueLease:
        """Connect to the instance, which may start an embedded server, and find the queue.

        Raises:
            InstanceError: as `OpenDatabase.open`.
            BrokerError: 911 no such database, 15151 no such queue, 229 no permission to receive from it.
        """
        database = OpenDatabase.open(options.instance, options.database)
        connection = database.connection
        try:
            queue = run(connection, find_queue(Catalog(), database.database_id, options.queue))
            run(connection, authorize(database.user, "RECEIVE", queue_number(queue.queue_id)))
            initial = _initial_offset(connection, database.database_id, queue.queue_id)
            if options.archives and not has_table(connection, f"archived_{queue.queue_id}"):
                execute(connection, "queue_lease.open.create_archive", frontier.create_archive_sql(queue.queue_id))
            skipped_up_to = 0
            if options.starting_offsets == "latest":
                hi, skipped_up_to = _position(connection, queue.queue_id)
                execute(connection, "queue_lease.open.keep_frontier", frontier.KEEP_FRONTIER)
                initial = replace(initial, lo=hi, hi=hi)
            execute(connection, "queue_lease.open.pin_plans", frontier.PIN_PLANS)
        except BaseException:
            database.close()
            raise
        return cls(database, queue.queue_id, queue.name, initial, options.archives, skipped_up_to)

    def close(self) -> None:
        """Release the queue."""
        self.database.close()

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection that owns the queue."""
        return self.database.connection

    @property
    def database_id(self) -> int:
        """The id of the queue's broker database."""
        return self.database.database_id

    def claim(self, timeout: int) -> None:
        """Own the queue until `close`, or until this process dies.

        Waits up to `timeout` seconds for the present owner, which may be the dying reader of a killed run.

        Raises:
            InstanceError: another reader still owns the queue.
        """
        execute(self.connection, "queue_lease.claim.set_timeout", f"set lock_timeout = {max(1, timeout * 1000)}")
        try:
            execute(
                self.connection,
                "queue_lease.claim.lock",
                "select pg_advisory_lock($1, $2)",
                locks.PIPELINE_QUEUE,
                self.queue_id,
            )
        except psycopg.errors.LockNotAvailable:
            raise InstanceError(
                f"The queue is being read by another pipeline or an open RECEIVE{self._owner()}: one stream at a time "
                "reads a queue; end that first."
            ) from None
        execute(self.connection, "queue_lease.claim.reset_timeout", "set lock_timeout = 0")

    def position(self) -> QueuePosition:
        """Return the present position of the server and the queue.

        Raises:
            InstanceError: the queue was dropped.
        """
        try:
            return _position(self.connection, self.queue_id)
        except psycopg.errors.UndefinedTable:
            raise InstanceError(
                f"The queue '{self.queue_name}' was dropped while it was read. A queue created since under "
                "the same name is another one, and needs a checkpoint of its own."
            ) from None

    def find_page_end(self, start: Frontier, max_rows: int | None, max_bytes: int | None = None) -> Frontier | None:
        """Return the end of the next page in the window of `start`; None if the window has no more rows.

        A page has at least one row, however large its body, unless END CONVERSATION deletes the row meanwhile. The last
        row of a window is queried once: it never changes, and each query scans all later messages.
        """
        if start.is_initial:
            return None
        first = start.queuing_order + 1
        if self._window[:2] != (start.lo, start.hi):
            first, last = self._find_extremes(start)
            self._window = (start.lo, start.hi, last)
        last = self._window_end(start)
        if last is None:
            return None
        if max_rows is not None and last - first >= max_rows:  # otherwise the window has at most max_rows rows
            last = self._find_page_limit(start, max_rows)
        if last is not None and max_bytes is not None:
            last = self._find_fitting_end(start, last, max_bytes)
        return None if last is None else start.read_to(last)

    def _find_extremes(self, start: Frontier) -> tuple[int, int | None]:
        """Return the first and the last queuing_order of the window after `start`."""
        sql = frontier.extremes_sql(self.queue_id, self.reads_archive(start.lo))
        window = (str(start.lo), str(start.hi), start.queuing_order)
        ((first, last),) = execute(self.connection, "queue_lease.find_extremes", sql, *window)
        return first, last

    def _find_page_limit(self, start: Frontier, max_rows: int) -> int | None:
        """Return the last queuing_order of the next `max_rows` rows.

        None if END CONVERSATION has deleted the rest of the window meanwhile.
        """
        sql = frontier.page_end_sql(self.queue_id, self.reads_archive(start.lo))
        window = (str(start.lo), str(start.hi), start.queuing_order, max_rows)
        ((last,),) = execute(self.connection, "queue_lease.find_page_limit", sql, *window)
        return None if last is None else int(last)

    def _find_fitting_end(self, start: Frontier, upto: int, max_bytes: int) -> int:
        """Return the last queuing_order, at most `upto`, up to which the bodies have at most `max_bytes` bytes."""
        after, remaining_bytes = start.queuing_order, max_bytes
        while after < upto:
            ((last, size, first, fits),) = execute(
                self.connection,
                "queue_lease.find_fitting_end",
                frontier.fitting_sql(self.queue_id, self.reads_archive(start.lo)),
                *(str(start.lo), str(start.hi), after, upto, MEASURED_ROWS_PER_QUERY, remaining_bytes),
            )
            if last is None:  # END CONVERSATION has deleted the rest, and a window gets no new rows
                return upto
            if size > remaining_bytes:
                return int(fits or (first if after == start.queuing_order else after))
            after, remaining_bytes = int(last), remaining_bytes - size
        return after

    def reads_archive(self, lo: int) -> bool:
        """True for the first window of a stream that archives: it includes archived messages; later windows do not."""
        return self.archives and lo == 0

    def progress(self, offset: Frontier, own_sessions: Sequence[int] = ()) -> dict[str, Any]:
        """Return the lag of a stream at `offset`, with these keys.

        * `queueName`: the queue.
        * `messagesBehind`: an upper bound of the messages that have arrived and are not planned.
        * `oldestMessageSeconds`: the age of the oldest of them; missing if there are none.
        * `frontierLag`: the number of transaction ids from the frontier on.
        * `blockingPid`, `blockingSeconds`, `blockingApplication`: the transaction that holds the frontier back. Missing
          if there is none, if this role may not see it, or if its session is in `own_sessions`.
        """
        last_read = self.skipped_up_to if offset.is_initial else offset.queuing_order
        oldest = execute(
            self.connection, "queue_lease.progress.find_oldest", frontier.oldest_behind_sql(self.queue_id), last_read
        )
        ((last_drawn, lag),) = execute(
            self.connection,
            "queue_lease.progress.find_lag",
            f"select last_value, pg_snapshot_xmax(s)::text::bigint - pg_snapshot_xmin(s)::text::bigint "
            f"from servicebroker.queue_{self.queue_id}_order, pg_current_snapshot() s",
        )
        progress: dict[str, Any] = {
            "queueName": self.queue_name,
            "messagesBehind": last_drawn - last_read if oldest else 0,
            "frontierLag": lag,
        }
        if oldest:
            progress["oldestMessageSeconds"] = int((server_time(self.connection) - oldest[0][0]).total_seconds())
        for pid, seconds, application in execute(
            self.connection, "queue_lease.progress.find_blocking", frontier.BLOCKING, [*own_sessions]
        )[:1]:
            progress |= {"blockingPid": pid, "blockingSeconds": seconds, "blockingApplication": application}
        return progress

    def find_held_back(self, before: HeldBack | None = None) -> HeldBack | None:
        """Return the committed messages that the oldest open transaction holds back; None if there are none.

        `before`: an earlier result. Count only the messages of that result that are still in the queue, whichever
        transaction holds them back now.
        """
        ((oldest, following, drawn),) = execute(
            self.connection,
            "queue_lease.find_held_back.find_frontier",
            "select pg_snapshot_xmin(s)::text::bigint, pg_snapshot_xmax(s)::text::bigint, last_value "
            f"from servicebroker.queue_{self.queue_id}_order, pg_current_snapshot() s",
        )
        if before is None and oldest == following:  # no transaction is open, so nothing has to be counted
            return None
        first, after, upto = before[:3] if before else (oldest, following, drawn)
        ((messages,),) = execute(
            self.connection,
            "queue_lease.find_held_back.count",
            frontier.held_back_sql(self.queue_id),
            *(str(first), upto),
        )
        if not messages:
            return None
        holders = execute(self.connection, "queue_lease.find_held_back.find_holder", frontier.HOLDER)
        holder = Holder(*holders[0]) if holders else None
        return HeldBack(first, after, upto, messages, holder, is_open=oldest < following)

    def measure(self, window_slice: Slice, *, system_messages: bool) -> tuple[int, int]:
        """Return the number of messages in a slice, and the bytes of their bodies."""
        kinds = {"archived": self.reads_archive(window_slice.lo), "system_messages": system_messages}
        ((messages, size),) = execute(
            self.connection, "queue_lease.measure", frontier.measure_sql(self.queue_id, window_slice, **kinds)
        )
        return int(messages), int(size)

    def find_rows(self, offset: Frontier, end_of_stream: str) -> RowsToAcknowledge | None:
        """Return facts about the rows to acknowledge up to `offset`; None if nothing was read."""
        window_slice = frontier.slice_read_so_far(offset)
        return (
            find_rows(self.connection, self.queue_id, self.database_id, window_slice, end_of_stream)
            if window_slice
            else None
        )

    def acknowledge(self, offset: Frontier, rows: RowsToAcknowledge) -> None:
        """Acknowledge all rows up to `offset`. `rows` is the result of `find_rows`."""
        window_slice = frontier.slice_read_so_far(offset)
        if window_slice:
            acknowledge_rows(self.connection, self.queue_id, window_slice, rows, archive=self.archives)

    def has_more_rows(self, offset: Frontier) -> bool:
        """True if the window of `offset` has rows after `offset`, as far as `find_page_end` knows."""
        return self._window_end(offset) is not None

    def _window_end(self, offset: Frontier) -> int | None:
        """Return the last queuing_order of the window of `offset`.

        None if the window has no rows after `offset`, or if `find_page_end` was not called for the window.
        """
        lo, hi, last = self._window
        has_more = last is not None and (lo, hi) == (offset.lo, offset.hi) and offset.queuing_order < last
        return last if has_more else None

    def remove_rows(self, offset: Frontier) -> None:
        """Delete the rows up to `offset`. Call it only if `need_only_deletion` is True."""
        window_slice = frontier.slice_read_so_far(offset)
        if window_slice:
            remove_rows(self.connection, self.queue_id, window_slice)

    def _owner(self) -> str:
        """Return the owner of the queue, as an addition to an error; "" if it is gone."""
        rows = execute(
            self.connection,
            "queue_lease.owner",
            "select l.pid, a.backend_start::text from pg_locks l left join pg_stat_activity a using (pid) "
            "where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid = $1 and l.objid = $2 "
            "and l.database = (select oid from pg_database where datname = current_database())",
            locks.PIPELINE_QUEUE,
            self.queue_id,
        )
        return f" (process {rows[0][0]} of the server, since {rows[0][1]})" if rows else ""


def find_queues(database: OpenDatabase) -> list[str]:
    """Return the sorted names of a broker database's user queues, in the form of the option `queue`."""
    rows = execute(
        database.connection,
        "queue_lease.find_queues",
        "select case when lower(schema_name) = 'dbo' then name else schema_name || '.' || name end "
        "from servicebroker.queues where database_id = $1 and queue_id >= 65536 order by 1",
        database.database_id,
    )
    return [name for (name,) in rows]


def find_existing_queues(database: OpenDatabase, names: Sequence[str]) -> set[str]:
    """Return those of `names` (in the form of the option `queue`) whose queues exist."""
    parts = [split_queue_name(name) for name in names]
    rows = execute(
        database.connection,
        "queue_lease.find_existing_queues",
        "select g.name from unnest($2::text[], $3::text[], $4::text[]) as g (name, schema, queue) "
        "join servicebroker.queues q on q.database_id = $1 "
        "and lower(q.schema_name) = lower(g.schema) and lower(q.name) = lower(g.queue)",
        database.database_id,
        list(names),
        [schema for schema, _ in parts],
        [queue for _, queue in parts],
    )
    return {name for (name,) in rows}


def _position(connection: psycopg.Connection[Any], queue_id: int) -> QueuePosition:
    query = f"select {frontier.FRONTIER}, last_value from servicebroker.queue_{queue_id}_order"
    return QueuePosition(*execute(connection, "queue_lease.position", query)[0])


def _initial_offset(connection: psycopg.Connection[Any], database_id: int, queue_id: int) -> Frontier:
    ((system_identifier, broker, database_oid),) = execute(
        connection,
        "queue_lease.initial_offset",
        "select s.system_identifier::text, d.service_broker_guid::text, p.oid::bigint "
        "from pg_control_system() s, servicebroker.databases d, pg_database p "
        "where d.database_id = $1 and p.datname = current_database()",
        database_id,
    )
    return Frontier(system_identifier, f"{broker}:{queue_id}", database_oid=database_oid)
