"""A stream's hold on its queue: the planner's connection, which owns the queue while it lives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import psycopg

from servicebroker.engine.catalog.catalog import Catalog, find_queue
from servicebroker.engine.security.authorization import authorize, queue_number
from servicebroker.model.errors import InstanceError
from servicebroker.model.names import split_queue_name
from servicebroker.pipeline.connecting import OpenDatabase, has_table
from servicebroker.pipeline.options import SourceOptions
from servicebroker.pipeline.stream import frontier
from servicebroker.pipeline.stream.acknowledge import Rows, look, remove_rows, take_away
from servicebroker.pipeline.stream.frontier import Frontier, Now, Slice
from servicebroker.store import locks
from servicebroker.store.running import execute, run
from servicebroker.store.server_time import server_time

ROWS_AT_ONCE = 10_000  # of which the bytes are added up: a deep queue is not read to its end for a small batch


@dataclass
class Attachment:
    """A queue that was found, on a connection of its own.

    Attributes:
        queue_name: the queue's name as it was created.
        initial: the offset of a stream that has read nothing.
        archives: what is acknowledged is kept, and a stream that begins reads it again.
        left: the last number of arrival that a stream which begins with the latest leaves where it is.
    """

    database: OpenDatabase
    queue_id: int
    queue_name: str
    initial: Frontier
    archives: bool
    left: int = 0
    _window: tuple[int, int, int | None] = (0, 0, None)  # the last one that was looked at, and where it ends

    @classmethod
    def open(cls, options: SourceOptions) -> Attachment:
        """Connect, starting the embedded server when `instance` is a data folder, and find the queue.

        Raises:
            InstanceError: the instance cannot be reached, or is not one of servicebroker.
            BrokerError: 911 no such database, 15151 no such queue, 229 no permission to receive from it.
        """
        database = OpenDatabase.open(options.instance, options.database)
        connection = database.connection
        try:
            queue = run(connection, find_queue(Catalog(), database.database_id, options.queue))
            run(connection, authorize(database.user, "RECEIVE", queue_number(queue.queue_id)))
            initial = _initial(connection, database.database_id, queue.queue_id)
            if options.archives and not has_table(connection, f"archived_{queue.queue_id}"):
                execute(connection, "attachment.open.create_archive", frontier.create_archive(queue.queue_id))
            left = 0
            if options.starting_offsets == "latest":
                hi, left = _now(connection, queue.queue_id)
                execute(connection, "attachment.open.keep_frontier", frontier.KEEP_FRONTIER)
                initial = replace(initial, lo=hi, hi=hi)
            execute(connection, "attachment.open.pin_plans", frontier.PIN_PLANS)
        except BaseException:
            database.close()
            raise
        return cls(database, queue.queue_id, queue.name, initial, options.archives, left)

    def close(self) -> None:
        """Let the queue go."""
        self.database.close()

    @property
    def connection(self) -> psycopg.Connection[Any]:
        """The connection that owns the queue."""
        return self.database.connection

    @property
    def database_id(self) -> int:
        """The number of the queue's broker database."""
        return self.database.database_id

    def claim(self, timeout: int) -> None:
        """Own the queue until `close`, or the death of this process.

        Waits up to `timeout` seconds for the present owner, since the reader of a killed run needs a moment to die.

        Raises:
            InstanceError: somebody else still owns it.
        """
        execute(self.connection, "attachment.claim.set_timeout", f"set lock_timeout = {max(1, timeout * 1000)}")
        try:
            execute(
                self.connection,
                "attachment.claim.lock",
                "select pg_advisory_lock($1, $2)",
                locks.PIPELINE,
                self.queue_id,
            )
        except psycopg.errors.LockNotAvailable:
            raise InstanceError(
                f"The queue is being read by another pipeline or an open RECEIVE{self._owner()}: one stream at a time "
                "reads a queue; end that first."
            ) from None
        execute(self.connection, "attachment.claim.reset_timeout", "set lock_timeout = 0")

    def now(self) -> Now:
        """How far the server and the queue are.

        Raises:
            InstanceError: the queue is not there any more.
        """
        try:
            return _now(self.connection, self.queue_id)
        except psycopg.errors.UndefinedTable:
            raise InstanceError(
                f"The queue '{self.queue_name}' was dropped while it was read: one of the same name that was made "
                "since is another queue, and needs a checkpoint of its own."
            ) from None

    def page_end(self, start: Frontier, at_most: int | None, bytes_at_most: int | None = None) -> Frontier | None:
        """The end of the next page of the window of `start`, None when the window has no more rows.

        A page has one row at least, however many bytes its body has, unless an END takes it meanwhile. Where a window
        ends is looked up once: it never changes, and the look passes over all that has come since.
        """
        if start.is_initial:
            return None
        first = start.queuing_order + 1
        if self._window[:2] != (start.lo, start.hi):
            first, last = self._extremes(start)
            self._window = (start.lo, start.hi, last)
        last = self._window_end(start)
        if last is None:
            return None
        if at_most is not None and last - first >= at_most:  # else there cannot be more rows
            last = self._last_of(start, at_most)
        if last is not None and bytes_at_most is not None:
            last = self._fitting(start, last, bytes_at_most)
        return None if last is None else start.read_to(last)

    def _extremes(self, start: Frontier) -> tuple[int, int | None]:
        """The first and the last number of arrival that the window of `start` has behind it."""
        sql = frontier.extremes(self.queue_id, self.reads_archive(start.lo))
        place = (str(start.lo), str(start.hi), start.queuing_order)
        ((first, last),) = execute(self.connection, "attachment.extremes", sql, *place)
        return first, last

    def _last_of(self, start: Frontier, at_most: int) -> int | None:
        """The last number of arrival of so many rows, None when an END has taken the rest of the window meanwhile."""
        sql = frontier.page_end(self.queue_id, self.reads_archive(start.lo))
        place = (str(start.lo), str(start.hi), start.queuing_order, at_most)
        ((last,),) = execute(self.connection, "attachment.last_of", sql, *place)
        return None if last is None else int(last)

    def _fitting(self, start: Frontier, upto: int, room: int) -> int:
        """The last number up to `upto` of which the bodies have no more than so many bytes, a piece after the other."""
        after = start.queuing_order
        while after < upto:
            ((last, size, first, fits),) = execute(
                self.connection,
                "attachment.fitting",
                frontier.fitting(self.queue_id, self.reads_archive(start.lo)),
                *(str(start.lo), str(start.hi), after, upto, ROWS_AT_ONCE, room),
            )
            if last is None:  # an END has taken the rest meanwhile, and nothing comes into a window any more
                return upto
            if size > room:
                return int(fits or (first if after == start.queuing_order else after))
            after, room = int(last), room - size
        return after

    def reads_archive(self, lo: int) -> bool:
        """The first window of a stream holds what is archived; later ones only what has come since."""
        return self.archives and lo == 0

    def progress(self, offset: Frontier, ours: Sequence[int] = ()) -> dict[str, Any]:
        """How far behind a stream at `offset` of the queue `queueName` is, for a person.

        `messagesBehind` is at most how many have arrived and are not planned, `oldestMessageSeconds` the age of the
        oldest of them, `frontierLag` how many transaction ids lie beyond the frontier; `blockingPid`,
        `blockingSeconds` and `blockingApplication` name the transaction that holds it, if it is one that we may see and
        none of a session of `ours`.
        """
        read = self.left if offset.is_initial else offset.queuing_order
        oldest = execute(
            self.connection, "attachment.progress.find_oldest", frontier.oldest_behind(self.queue_id), read
        )
        ((drawn, lag),) = execute(
            self.connection,
            "attachment.progress.find_lag",
            f"select last_value, pg_snapshot_xmax(s)::text::bigint - pg_snapshot_xmin(s)::text::bigint "
            f"from servicebroker.queue_{self.queue_id}_order, pg_current_snapshot() s",
        )
        told: dict[str, Any] = {
            "queueName": self.queue_name,
            "messagesBehind": drawn - read if oldest else 0,
            "frontierLag": lag,
        }
        if oldest:
            told["oldestMessageSeconds"] = int((server_time(self.connection) - oldest[0][0]).total_seconds())
        for pid, seconds, application in execute(
            self.connection, "attachment.progress.find_blocking", frontier.BLOCKING, [*ours]
        )[:1]:
            told |= {"blockingPid": pid, "blockingSeconds": seconds, "blockingApplication": application}
        return told

    def measure(self, piece: Slice, *, system_messages: bool) -> tuple[int, int]:
        """How many messages a batch has, and how many bytes their bodies."""
        kinds = {"archived": self.reads_archive(piece.lo), "system_messages": system_messages}
        ((messages, size),) = execute(
            self.connection, "attachment.measure", frontier.measure(self.queue_id, piece, **kinds)
        )
        return int(messages), int(size)

    def look(self, offset: Frontier, end_of_stream: str) -> Rows | None:
        """What is to be acknowledged up to `offset`; None where nothing is."""
        piece = frontier.read_so_far(offset)
        return look(self.connection, self.queue_id, self.database_id, piece, end_of_stream) if piece else None

    def acknowledge(self, offset: Frontier, rows: Rows) -> None:
        """Everything up to `offset` is with the sink: it leaves the queue. `rows`: what `look` has found there."""
        piece = frontier.read_so_far(offset)
        if piece:
            take_away(self.connection, self.queue_id, piece, rows, archive=self.archives)

    def goes_on(self, offset: Frontier) -> bool:
        """Whether the window of `offset` had more rows behind it when it was looked at."""
        return self._window_end(offset) is not None

    def _window_end(self, offset: Frontier) -> int | None:
        """The last number of arrival of the window of `offset`; None where none is behind it, or nobody has looked."""
        lo, hi, last = self._window
        goes_on = last is not None and (lo, hi) == (offset.lo, offset.hi) and offset.queuing_order < last
        return last if goes_on else None

    def remove_rows(self, offset: Frontier) -> None:
        """Delete the rows up to `offset`, of which nothing but they is to go."""
        piece = frontier.read_so_far(offset)
        if piece:
            remove_rows(self.connection, self.queue_id, piece)

    def _owner(self) -> str:
        found = execute(
            self.connection,
            "attachment.owner",
            "select l.pid, a.backend_start::text from pg_locks l left join pg_stat_activity a using (pid) "
            "where l.locktype = 'advisory' and l.granted and l.objsubid = 2 and l.classid = $1 and l.objid = $2 "
            "and l.database = (select oid from pg_database where datname = current_database())",
            locks.PIPELINE,
            self.queue_id,
        )
        return f" (process {found[0][0]} of the server, since {found[0][1]})" if found else ""


def find_queues(database: OpenDatabase) -> list[str]:
    """The queues of a broker database that are not its own, as the option `queue` names them, sorted."""
    rows = execute(
        database.connection,
        "attachment.find_queues",
        "select case when lower(schema_name) = 'dbo' then name else schema_name || '.' || name end "
        "from servicebroker.queues where database_id = $1 and queue_id >= 65536 order by 1",
        database.database_id,
    )
    return [name for (name,) in rows]


def which_are_there(database: OpenDatabase, names: Sequence[str]) -> set[str]:
    """Those of the names, as the option `queue` gives them, whose queues a broker database has now."""
    parts = [split_queue_name(name) for name in names]
    rows = execute(
        database.connection,
        "attachment.which_are_there",
        "select g.name from unnest($2::text[], $3::text[], $4::text[]) as g (name, schema, queue) "
        "join servicebroker.queues q on q.database_id = $1 "
        "and lower(q.schema_name) = lower(g.schema) and lower(q.name) = lower(g.queue)",
        database.database_id,
        list(names),
        [schema for schema, _ in parts],
        [queue for _, queue in parts],
    )
    return {name for (name,) in rows}


def _now(connection: psycopg.Connection[Any], queue_id: int) -> Now:
    look = f"select {frontier.FRONTIER}, last_value from servicebroker.queue_{queue_id}_order"
    return Now(*execute(connection, "attachment.now", look)[0])


def _initial(connection: psycopg.Connection[Any], database_id: int, queue_id: int) -> Frontier:
    ((system_identifier, broker, database_oid),) = execute(
        connection,
        "attachment.initial",
        "select s.system_identifier::text, d.service_broker_guid::text, p.oid::bigint "
        "from pg_control_system() s, servicebroker.databases d, pg_database p "
        "where d.database_id = $1 and p.datname = current_database()",
        database_id,
    )
    return Frontier(system_identifier, f"{broker}:{queue_id}", database_oid=database_oid)
