"""The maintenance of an open instance (the argument `upkeep` of `open`), in a thread or task of its own.

Each run fires due timers, ends lifetimes, delivers waiting messages, truncates empty queue tables, and writes counts.
The work is done in small transactions. If a run fails, the next one continues.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime, timedelta
from functools import partial
from typing import Any
from uuid import UUID

import psycopg

from servicebroker.api.shared.tally import Tally
from servicebroker.engine.built_in.echo_and_query import answer_built_in
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.event_notifications import send_pending_events
from servicebroker.engine.conversation.begin import forget_keys
from servicebroker.engine.conversation.endpoints import remove_closed_endpoints
from servicebroker.engine.conversation.maintenance import (
    find_bloated_queues,
    find_due_queues,
    fire_timers_and_lifetimes,
    remove_expired_endpoints,
    truncate_empty_queue,
)
from servicebroker.engine.conversation.requests import drop_late_answers
from servicebroker.engine.conversation.shared_bodies import delete_unreferenced_bodies
from servicebroker.engine.conversation.traces import delete_old_traces
from servicebroker.engine.delivery.delayed_messages import find_due
from servicebroker.engine.delivery.delayed_messages import release as release_messages
from servicebroker.engine.delivery.transmission import deliver_conversation, deliver_left_over, find_oldest_writer
from servicebroker.engine.diagnosis.audit import delete_old_audit_rows
from servicebroker.engine.diagnosis.history import SAMPLE_INTERVAL_S, record_history_sample
from servicebroker.engine.diagnosis.totals import StatementTotal, add_statements, add_totals
from servicebroker.engine.diagnosis.trail import find_trigger_changes, partitions, with_short_lock_timeout
from servicebroker.engine.diagnosis.wrong_clocks import note_wrong_clock
from servicebroker.engine.remote.missing_routes import forget_answered_requests
from servicebroker.engine.remote.route_answers import take_route_answers
from servicebroker.engine.remote.unfinished_arrivals import forget_openings
from servicebroker.model.errors import ServiceBrokerError
from servicebroker.model.reporting import report
from servicebroker.model.wording import describe_exception
from servicebroker.store.aio.concurrency import Background, Event
from servicebroker.store.aio.connection import connect
from servicebroker.store.aio.direct import AsyncDirectConnection, wait_for_notifications
from servicebroker.store.aio.running import in_transaction, run, run_alone
from servicebroker.store.aio.server_time import follow
from servicebroker.store.server_clock import take_clock_difference
from servicebroker.store.sql_verbs import DELIVERY_CHANNEL
from servicebroker.store.statement_counts import counts_of
from servicebroker.store.statements import Steps

_LOG = logging.getLogger("servicebroker")
_STOP_TIMEOUT_S = 2.0  # the time for the current run to end in `close`, before its connection is closed
_STATEMENT_TIMEOUT_MS = 10_000  # a run that waits so long for a lock fails, and the next run continues
_TICK_S = 1.0  # the time between two checks whether a queue was drained
_TOTALS_INTERVAL_S = 5.0  # the time between two writes of the counts
_STATEMENTS_INTERVAL_S = 30.0  # the time between two writes of statement counts: the maintenance itself adds to them
# The pauses before the next attempt to deliver messages that other transactions lock
_MIN_RETRY_S, _MAX_RETRY_S = 0.02, 1.0
_SPACE_ATTEMPTS = 10  # attempts to truncate a drained table, one in each tick
_DRAINED_MESSAGES = 10_000  # received by this process: from this number on, an empty table is truncated at once
_FAULT_PAUSE_S = 5.0  # the pause before the maintenance restarts after an unexpected error
_PROMOTION_POLL_S = 5.0  # the time between two checks whether a standby was promoted
_MAX_PIECES = 100  # transactions of several hundred rows each; the next run does the rest
_CLOSED_AT_ONCE = 1_000  # closed endpoints in one transaction: enough for 3,000 ended conversations a second


class Maintenance:
    """The maintenance of an instance.

    Every `interval` seconds `run_maintenance` runs, and after a SEND from SQL `deliver`.

    It listens for such SENDs on a connection of its own. If this process has drained a queue, it truncates the table
    after about a second. If a run fails because the server is down or restarts, the next run does its work.
    """

    def __init__(
        self,
        url: str,
        clock: Callable[[], datetime],
        interval: float,
        tally: Tally,
        catalog: Callable[[], Catalog],
    ) -> None:
        self._url = url
        self._clock = clock
        self._tally = tally
        self._catalog = catalog
        self._interval = interval
        self._closed = Event()
        self._received: Counter[int] = Counter()  # messages by queue, since the queue was last empty
        self._release_at: datetime | None = None  # the time of the next delayed message
        self._since = 0  # transaction id: messages of older transactions were delivered, if they could be
        self._remaining_attempts = 0  # attempts that are left to truncate a drained table, which must not be in use
        self._connection: psycopg.AsyncConnection[Any] | None = None
        self._background = Background(self._run, "servicebroker maintenance")

    def count_received(self, queue_id: int, messages: int) -> None:
        """Count the messages of a RECEIVE of this process. Zero messages: the queue is empty."""
        if messages:
            self._received[queue_id] += messages
        elif self._received.pop(queue_id, 0) >= _DRAINED_MESSAGES:
            self._remaining_attempts = _SPACE_ATTEMPTS

    def stop(self) -> None:
        """Stop after the current run, without waiting for its end."""
        self._closed.set()

    async def close(self) -> None:
        """Stop, and cancel the statement in progress. Committed transactions of the run remain."""
        self._closed.set()
        connection = self._connection
        if connection is not None:
            with suppress(psycopg.Error):  # the server is down, which ends the run
                await connection.cancel_safe(timeout=_STOP_TIMEOUT_S)
            await self._wake()
        await self._background.stop(_STOP_TIMEOUT_S)

    async def _wake(self) -> None:
        try:
            async with await connect(self._url, application_name="servicebroker maintenance") as connection:
                await connection.execute(f"notify {DELIVERY_CHANNEL}")
        except (psycopg.Error, ServiceBrokerError) as problem:  # the server is down, which wakes `_serve`, too
            _LOG.debug("maintenance: %s", problem)

    async def _run(self) -> None:
        pause = _TICK_S
        while not self._closed.is_set():
            began = time.monotonic()
            try:
                async with await connect(self._url, application_name="servicebroker maintenance") as connection:
                    self._connection = connection
                    await self._serve(connection)
            except psycopg.errors.ReadOnlySqlTransaction:  # on a standby: the primary is maintained instead
                await self._closed.wait(min(_PROMOTION_POLL_S, self._interval))
            except (psycopg.Error, ServiceBrokerError) as problem:
                was_cancelled = isinstance(problem, psycopg.errors.QueryCanceled) and not self._closed.is_set()
                _LOG.log(logging.WARNING if was_cancelled else logging.DEBUG, "maintenance: %s", problem)
                has_run_long = time.monotonic() - began > self._interval
                pause = _TICK_S if has_run_long else 2 * pause
                await self._closed.wait(min(pause, self._interval))
            except Exception as problem:  # a bug, or an error of the application's clock: timers must fire nevertheless
                report(
                    _LOG,
                    logging.ERROR,
                    "background maintenance restarts: %s",
                    describe_exception(problem),
                    exc_info=problem,
                )
                pause = _TICK_S
                await self._closed.wait(min(_FAULT_PAUSE_S, self._interval))
            finally:
                self._connection = None

    async def _serve(self, connection: AsyncDirectConnection) -> None:
        connection.interval = _TICK_S
        await connection.execute(f"set statement_timeout = {_STATEMENT_TIMEOUT_MS}")
        await connection.execute(f"listen {DELIVERY_CHANNEL}")
        due, pause, has_work, totals_at = time.monotonic() + self._interval, _MIN_RETRY_S, True, -math.inf
        counted, sampled = time.monotonic(), -math.inf
        while not self._closed.is_set():
            if self._remaining_attempts:
                self._remaining_attempts -= 1
                if await truncate_empty_queues(connection, self._closed.is_set):
                    self._remaining_attempts = 0
            await follow(self._clock, connection)
            if ahead := take_clock_difference(self._clock):
                await report_wrong_clock(connection, ahead, self._clock())
            if time.monotonic() >= due:
                has_work |= await run_maintenance(connection, self._clock(), self._closed.is_set, self._catalog)
                due = time.monotonic() + self._interval
            has_work |= self._release_at is not None and self._release_at <= self._clock()
            is_left = has_work and await self._deliver(connection)
            if time.monotonic() >= totals_at:
                await write_counts(connection, self._tally)
                totals_at = time.monotonic() + _TOTALS_INTERVAL_S
            if time.monotonic() >= counted + _STATEMENTS_INTERVAL_S:
                await write_statement_counts(connection)
                counted = time.monotonic()
            if time.monotonic() >= sampled + SAMPLE_INTERVAL_S:
                await take_sample(connection)
                sampled = time.monotonic()
            seconds = min(pause if is_left else _TICK_S, max(0.0, due - time.monotonic()), self._seconds_to_release())
            pause = min(2 * pause, _MAX_RETRY_S) if is_left else _MIN_RETRY_S
            has_work = await _wait_for_work(connection, seconds) or is_left

    async def _deliver(self, connection: psycopg.AsyncConnection[Any]) -> bool:
        """Deliver messages sent since the last call, and delayed messages that are due. The first call delivers all.

        Older messages are skipped, so that a backlog is not read again each time. Return whether messages are left that
        another transaction locks.
        """
        self._release_at, is_delayed_left = await release(connection, self._clock())
        oldest_writer = await run(connection, find_oldest_writer())
        if oldest_writer < self._since:  # after a crash, or on another server, transaction ids are used again
            self._since = 0
        try:
            is_left = await deliver(connection, self._clock(), self._catalog, self._since)
        except psycopg.errors.QueryCanceled:
            self._since = self._since or oldest_writer  # `run_maintenance` delivers the rest
            raise
        if not is_left:
            self._since = oldest_writer
        return is_left or is_delayed_left

    def _seconds_to_release(self) -> float:
        """Return the seconds until the time of the next delayed message."""
        if self._release_at is None:
            return math.inf
        return max(0.0, (self._release_at - self._clock()).total_seconds())


async def _wait_for_work(connection: AsyncDirectConnection, seconds: float) -> bool:
    """Sleep until a notification says that a message must be delivered, at most `seconds`. Return whether one came."""
    return bool(await wait_for_notifications(connection, seconds))


async def write_counts(connection: psycopg.AsyncConnection[Any], tally: Tally) -> None:
    """Add the counts of this process to the totals. If that fails, the next call adds them."""
    counts = tally.take()
    if not counts:
        return
    try:
        await run(connection, add_totals(counts))
    except psycopg.errors.InsufficientPrivilege as problem:  # the counts of a role without the right are dropped
        _LOG.debug("totals: %s", problem)
    except BaseException:
        tally.put_back(counts)
        raise


async def report_wrong_clock(connection: psycopg.AsyncConnection[Any], ahead: timedelta, now: datetime) -> None:
    """Store that the clock of this machine is wrong, so that `servicebroker doctor` reports it."""
    try:
        await run_alone(connection, note_wrong_clock(ahead, now))
    except psycopg.errors.InsufficientPrivilege as problem:
        _LOG.debug("clock: %s", problem)


async def take_sample(connection: psycopg.AsyncConnection[Any]) -> None:
    """Store a sample of the queues' depths for the history. A role without the right skips it."""
    try:
        await run_alone(connection, record_history_sample())
    except psycopg.errors.InsufficientPrivilege as problem:
        _LOG.debug("history: %s", problem)


async def write_statement_counts(connection: psycopg.AsyncConnection[Any]) -> None:
    """Add the statements that this process has run on the server of `connection` to the totals."""
    counts = counts_of(connection)
    counted_statements = counts.take()
    totals = [
        StatementTotal(name, calls, round(seconds * 1e6)) for name, (calls, seconds) in counted_statements.items()
    ]
    try:
        await run(connection, add_statements(totals))
    except psycopg.errors.InsufficientPrivilege as problem:
        _LOG.debug("statements: %s", problem)
    except BaseException:
        counts.put_back(counted_statements)
        raise


async def deliver(
    connection: psycopg.AsyncConnection[Any], now: datetime, catalog: Callable[[], Catalog] = Catalog, since: int = 0
) -> bool:
    """Deliver waiting messages of the transmission queue whose target is available, and run the built-in service.

    `since` is a transaction id: messages of older transactions are skipped. Return whether messages are left that
    another transaction locks, so that a call after a short pause can deliver them.
    """
    answers = await in_transaction(connection, take_route_answers(catalog(), now))
    for failure in answers.failures:
        _LOG.error("%s", failure)
    for handle in answers.left:
        await in_transaction(connection, deliver_conversation(catalog(), handle, now))
    for problem in await run_alone(connection, send_pending_events(now)):
        _LOG.error("%s", problem)
    is_left = await in_transaction(connection, deliver_left_over(catalog(), now, since))
    is_left |= await in_transaction(connection, answer_built_in(now))
    return is_left or answers.again


async def release(connection: psycopg.AsyncConnection[Any], now: datetime) -> tuple[datetime | None, bool]:
    """Release due delayed messages, so that they can be delivered.

    Return the time of the next delayed message, and whether due messages are left because a session locks their
    conversations.
    """
    busy: set[UUID] = set()
    for _ in range(_MAX_PIECES):
        due = await run(connection, find_due(now, busy))
        if not due.handles:
            return due.next_time, bool(busy)
        busy.update({*due.handles} - await in_transaction(connection, release_messages(due.handles, now)))
    return due.next_time, True


async def truncate_empty_queues(connection: psycopg.AsyncConnection[Any], stopped: Callable[[], bool]) -> bool:
    """Truncate the tables of queues that are large and empty. Return whether no such table is left."""
    left = 0
    for queue_id in await run(connection, find_bloated_queues()):
        if stopped():
            return False
        try:
            left += not await run(connection, truncate_empty_queue(queue_id))
        except psycopg.errors.QueryCanceled as problem:  # a statement timeout: continue with the other queues
            _LOG.debug("maintenance: %s", problem)
            left += 1
    return not left


async def maintain_trail(connection: psycopg.AsyncConnection[Any], now: datetime) -> None:
    """Create and drop partitions and triggers of the event log (trail). A locked table is left to the next run."""
    try:
        statements = await run(connection, partitions(now))
        statements += [change.statement for change in await run(connection, find_trigger_changes())]
        for statement in statements:
            await in_transaction(connection, with_short_lock_timeout(statement))
    except (psycopg.errors.LockNotAvailable, psycopg.errors.InsufficientPrivilege) as problem:
        _LOG.debug("trail: %s", problem)


async def run_maintenance(
    connection: psycopg.AsyncConnection[Any],
    now: datetime,
    stopped: Callable[[], bool] = lambda: False,
    catalog: Callable[[], Catalog] = Catalog,
) -> bool:
    """Run all maintenance that is due at `now`, in small transactions. `connection` is in autocommit mode.

    Return whether `deliver` has left messages that a call after a short pause can deliver.
    """
    for _ in range(_MAX_PIECES):
        queues = await run(connection, find_due_queues(now))
        for queue_id in queues:
            if stopped():
                return False
            await run(connection, fire_timers_and_lifetimes(queue_id, now))
        if not queues:
            break
    dated = (
        remove_expired_endpoints,
        drop_late_answers,
        partial(remove_closed_endpoints, limit=_CLOSED_AT_ONCE),
        forget_keys,
        delete_old_traces,
        forget_openings,
        forget_answered_requests,
        delete_old_audit_rows,
    )
    pieces: list[Callable[[], Steps[int]]] = [*(partial(piece, now) for piece in dated), delete_unreferenced_bodies]
    for piece in pieces:
        for _ in range(_MAX_PIECES):
            if stopped() or not await in_transaction(connection, piece()):
                break
    if stopped():
        return False
    await maintain_trail(connection, now)
    await release(connection, now)
    is_left = await deliver(connection, now, catalog)
    await truncate_empty_queues(connection, stopped)
    return is_left
