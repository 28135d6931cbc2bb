"""The activation thread of a process: runs queue monitors, and starts and counts their tasks.

The thread waits for a SEND into a queue without a reader, a changed queue, or the end of a task. It also checks all its
queues once a second. Only the process that holds a queue's lease (an advisory lock) runs its monitor. A process that
cannot resolve the procedure releases the lease for other processes.
"""

from __future__ import annotations

import logging
import re
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable
from types import TracebackType
from typing import Any, Self

import psycopg

from servicebroker.activation.child import run_in_process
from servicebroker.activation.coroutine_runner import CoroutineRunner
from servicebroker.activation.monitored_queue import MonitoredQueue
from servicebroker.activation.procedures import Procedure, PythonProcedure, Resolver, find_registered
from servicebroker.activation.stop_signal import StopSignal
from servicebroker.activation.task import Outcome, log_not_started, run_task
from servicebroker.activation.task_spec import TaskSpec
from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.broker import metrics
from servicebroker.engine.activation import monitors
from servicebroker.engine.activation.monitors import NO_DEFINITIONS, Definition
from servicebroker.engine.catalog.event_notifications import drop_broken, post
from servicebroker.model import names
from servicebroker.model.errors import BrokerError, InstanceError, ServiceBrokerError
from servicebroker.model.event_types import QUEUE_ACTIVATION
from servicebroker.model.events import ACTIVATION_CLASS
from servicebroker.model.reporting import report
from servicebroker.model.wording import describe_exception
from servicebroker.protocol.queue_monitor import (
    NEW,
    READER_INTERVAL_S,
    Decision,
    Monitor,
    MonitorState,
    Seen,
    Settings,
    could_not_start,
    died,
    look,
)
from servicebroker.store.connection import connect
from servicebroker.store.listener import listening
from servicebroker.store.outage import Outage
from servicebroker.store.running import run, run_alone
from servicebroker.store.sql_verbs import MONITORS_CHANNEL

CHECK_INTERVAL_S = 1.0  # the time between two checks of all queues
FIRST_CHECK_DELAY_S = 0.01  # the time after LISTEN: a SEND that began before LISTEN sends no notification
RECONNECT_DELAY_S = 1.0
POLL_INTERVAL_S = 0.02  # the time between two checks for ended tasks
DEFAULT_PATIENCE_S = 30.0  # the timeout of calls in progress when the host stops
TERMINATION_TIMEOUT_S = 1.0  # the time for calls to notice that their session was closed
_STARTED = "Started"

_log = logging.getLogger("servicebroker.activation")


def _tsql_procedure(database: Database, name: str) -> Procedure | None:
    """Resolve a procedure that CREATE PROCEDURE has created."""
    # imported here, because most processes have only Python procedures
    from servicebroker.tsql.activation_procedures import resolve

    return resolve(database, name)


class Host:
    """Runs the queue monitors of an open instance in this process, until `stop`. Also a context manager.

    Attributes:
        instance: the instance, which the tasks use, too.
    """

    def __init__(
        self,
        instance: Instance,
        resolvers: Iterable[Resolver],
        *,
        interval: float = READER_INTERVAL_S,
        patience: float = DEFAULT_PATIENCE_S,
    ) -> None:
        self.instance = instance
        self._resolvers = (find_registered, *resolvers, _tsql_procedure)
        self._interval = interval
        self._check_interval_s = min(CHECK_INTERVAL_S, interval / 4)
        self._coroutines = CoroutineRunner(instance)
        self._definitions = NO_DEFINITIONS
        self._queues: dict[int, MonitoredQueue] = {}
        self._retry_at: dict[int, float] = {}  # the next attempt, by queue whose procedure is missing
        self._ended: deque[tuple[MonitoredQueue, threading.Thread, Outcome]] = deque()
        self._to_check: deque[int] = deque()
        self._listens_for: set[int] = set()  # ids of queues
        self._new_listeners: set[int] = set()  # queues for which a SEND in progress may send no notification yet
        self._oldest_transaction = 0  # the oldest running transaction at the last check of counters
        self._next_check = 0.0  # time of the next check of all queues
        self._checks = 0  # number of checks of all queues
        self._patience = patience
        self._deadline = 0.0  # the deadline of calls in progress, after `request_stop`
        self._outage = Outage(_log, "Activation has lost the database, and tries to reconnect")
        self._unresolved = Outage(_log, "A resolver of activation procedures has failed")
        self._changed, self._wake, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="servicebroker activation", daemon=True)

    def start(self) -> Self:
        """Start the thread, and return immediately."""
        self._thread.start()
        return self

    def settle(self, seconds: float) -> None:
        """Wait up to `seconds` until every reader has ended or waits for a message."""
        deadline, min_checks = time.monotonic() + seconds, self._checks + 2  # the check in progress may be too early
        while time.monotonic() < deadline:
            if self._checks >= min_checks and all(queue.is_quiet for queue in list(self._queues.values())):
                return
            self._changed.set()
            self._wake.set()
            time.sleep(POLL_INTERVAL_S)

    def stop(self) -> None:
        """Start no further reader, and wait for the calls in progress until their deadline.

        Then their sessions are closed.
        """
        self.request_stop()
        # The wait is bounded, since the database may not answer.
        while self._thread.is_alive() and time.monotonic() < self._deadline + 2 * TERMINATION_TIMEOUT_S:
            self._thread.join(POLL_INTERVAL_S)
        if not self._thread.is_alive() and not self._has_tasks():
            self._coroutines.close()

    def request_stop(self) -> None:
        """Begin to stop, and return immediately."""
        if not self._stopped.is_set():
            self._deadline = time.monotonic() + self._patience
            self._stopped.set()
            self._wake.set()

    def end_calls_now(self) -> None:
        """Set the deadline of calls in progress to now, also while `stop` waits for it."""
        self._patience = 0.0
        self._deadline = time.monotonic()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # ---------------------------------------------------------------- the thread

    def _run(self) -> None:
        while not self._stopped.is_set():
            try:
                with connect(self.instance.url, application_name="servicebroker activation") as connection:
                    self._outage.end()
                    self._serve(connection)
                    return
            except (psycopg.Error, ServiceBrokerError) as problem:
                self._outage.report(problem)
                self._lose_leases()
                self._stopped.wait(RECONNECT_DELAY_S)
            except BaseException as problem:  # no exception is meant to end this thread
                report(_log, logging.ERROR, "Activation starts over: %s", describe_exception(problem), exc_info=problem)
                self._lose_leases()
                self._stopped.wait(RECONNECT_DELAY_S)
        self._drain()

    def _serve(self, connection: psycopg.Connection[Any]) -> None:
        self._next_check = 0.0
        channels = ("servicebroker", MONITORS_CHANNEL)
        with listening(self.instance.url, channels, self._on_notification, name="servicebroker activation") as listener:
            next_delay_s = FIRST_CHECK_DELAY_S
            while not self._stopped.is_set():
                listener.check()
                self._wake.clear()
                due_s = self._round(connection)
                if self._update_listening(connection):
                    next_delay_s = FIRST_CHECK_DELAY_S
                    continue  # a SEND may have committed before it could see the new listener
                if not self._wake.wait(min(due_s, next_delay_s)):
                    self._to_check.extend(self._new_listeners)
                    next_delay_s *= 5
                    if next_delay_s > self._check_interval_s:  # from now on the regular checks are enough
                        self._new_listeners = set()
                        next_delay_s = self._check_interval_s
        self._drain()
        run(connection, monitors.listen_for([]))
        for queue_id in self._queues:
            run(connection, monitors.release_lease(queue_id))

    def _drain(self) -> None:
        """Ask the tasks to stop, and wait for the calls in progress. After the deadline their sessions are closed."""
        self._for_all_tasks(StopSignal.request_stop)
        if self._wait_for_tasks(0.0):
            return
        _log.warning("Activated procedures did not end in %g seconds: their work is rolled back.", self._patience)
        self._for_all_tasks(StopSignal.terminate)
        if not self._wait_for_tasks(TERMINATION_TIMEOUT_S):
            _log.warning("Activated procedures go on without a database, since nothing ends their threads.")

    def _for_all_tasks(self, action: Callable[[StopSignal], None]) -> None:
        for queue in self._queues.values():
            for stop in tuple(queue.tasks.values()):
                action(stop)

    def _wait_for_tasks(self, later: float) -> bool:
        """Wait for all tasks, until `later` seconds after the deadline, which `end_calls_now` may change meanwhile.

        Returns True if all have ended.
        """
        while self._has_tasks() and time.monotonic() < self._deadline + later:
            time.sleep(POLL_INTERVAL_S)
        return not self._has_tasks()

    def _has_tasks(self) -> bool:
        """Check whether a task runs."""
        self._collect()
        return any(queue.tasks for queue in self._queues.values())

    def _round(self, connection: psycopg.Connection[Any]) -> float:
        """Check the queues that need it. Returns the seconds until the next check or conversation timer is due."""
        checked = 0
        self._collect()
        if self._changed.is_set() or time.monotonic() >= self._next_check:
            self._changed.clear()
            self._next_check = time.monotonic() + self._check_interval_s
            self._apply_definitions(connection)
            self.instance.poison.resolve_outcomes(connection)
            self._log_errors(run_alone(connection, drop_broken(self.instance.clock())))
            self._check_counters(connection)
            checked = 1
        now = self.instance.clock()
        self._to_check.extend(number for number, queue in self._queues.items() if queue.due and queue.due <= now)
        queue_ids = set()
        while self._to_check:
            queue_ids.add(self._to_check.popleft())
        for queue_id in queue_ids & self._queues.keys():
            self._check_queue(connection, self._queues[queue_id])
        self._checks += checked
        self._update_view(connection)
        now = self.instance.clock()
        delays = [queue.due - now for queue in self._queues.values() if queue.due is not None]
        seconds = min((delay.total_seconds() for delay in delays), default=self._check_interval_s)
        return max(0.0, min(seconds, self._next_check - time.monotonic()))

    def _collect(self) -> None:
        """Update the state of the queues whose tasks have ended."""
        while self._ended:
            queue, thread, outcome = self._ended.popleft()
            del queue.tasks[thread]
            queue_id = queue.definition.queue_id
            self._to_check.append(queue_id)
            if not queue.is_on:
                self._changed.set()
            if outcome == Outcome.NOT_STARTED:
                self._postpone_start(queue)
            elif outcome == Outcome.DIED:
                queue.monitor = died(queue.monitor, self._settings(queue), time.monotonic())
            self._record(outcome.subclass, queue)

    # ---------------------------------------------------------------- which queues

    def _apply_definitions(self, connection: psycopg.Connection[Any]) -> None:
        """Start, restart and end monitors according to the definitions of the queues in the catalog.

        The tasks of a queue that was switched off are asked to stop.
        """
        self._definitions = run(connection, monitors.find_definitions(self._definitions))
        definitions = {definition.queue_id: definition for definition in self._definitions.queues}
        for queue_id in self._queues.keys() - definitions.keys():
            self._switch_off(connection, self._queues[queue_id])
        for queue_id, definition in definitions.items():
            queue = self._queues.get(queue_id)
            if queue is None or not queue.has_lease:
                if not self._can_monitor(definition) or not run(connection, monitors.take_lease(queue_id)):
                    continue
                queue = self._queues[queue_id] = queue or MonitoredQueue(definition)
                queue.has_lease = True
            elif queue.is_on and queue.definition.version == definition.version:
                queue.definition = definition  # a principal may have been dropped or renamed
                continue
            queue.definition, queue.monitor, queue.is_on = definition, self._first_monitor(connection, definition), True
            queue.expect_messages()

    def _first_monitor(self, connection: psycopg.Connection[Any], definition: Definition) -> Monitor:
        """Return the first state of a queue's monitor.

        For external activation this is NOTIFIED if another process has sent QUEUE_ACTIVATION, and no RECEIVE has run
        since. For a procedure it is always new, because readers end with the process that has started them.
        """
        if definition.procedure is not None:
            return NEW
        receives = run(connection, monitors.find_notified(definition.queue_id, definition.version))
        if receives is None or receives != run(connection, monitors.count_receives(definition.queue_id)):
            return NEW
        return Monitor(MonitorState.NOTIFIED, Seen(receivable=True, receives=receives))

    def _switch_off(self, connection: psycopg.Connection[Any], queue: MonitoredQueue) -> None:
        """Start no further reader of a queue that is off or dropped, and ask its tasks to stop."""
        queue_id = queue.definition.queue_id
        if queue.is_on:
            queue.is_on = False
            reason = run(connection, monitors.find_stop_reason(queue_id)) or 28086
            for stop in queue.tasks.values():
                stop.request_stop(reason)
        if not queue.tasks:
            del self._queues[queue_id]
            run(connection, monitors.release_lease(queue_id))

    def _can_monitor(self, definition: Definition) -> bool:
        """Check whether this process can resolve the procedure.

        If not, return True once in each interval, so that the missing procedure is reported.
        """
        if definition.procedure is None or self._resolve(definition) is not None:
            return True
        now = time.monotonic()
        if now < self._retry_at.get(definition.queue_id, now):
            return False
        self._retry_at[definition.queue_id] = now + self._interval
        return True

    def _resolve(self, definition: Definition) -> Procedure | None:
        database_name, *rest = names.name_parts("procedure", definition.procedure, 3)
        name = names.bracketed(*rest)
        try:
            database = self.instance.database(database_name)
        except BrokerError:
            return None
        candidates = (self._try_resolver(resolve, database, name) for resolve in self._resolvers)
        return next((procedure for procedure in candidates if procedure), None)

    def _try_resolver(self, resolve: Resolver, database: Database, name: str) -> Procedure | None:
        """Return the result of a resolver. Log its failure, which must not affect other queues, and return None."""
        try:
            return resolve(database, name)
        except BaseException as problem:
            self._unresolved.report(InstanceError(f"{name}: {describe_exception(problem)}"))
            return None

    def _lose_leases(self) -> None:
        """Forget the leases, which were lost with the session, and ask the tasks to stop.

        Running tasks are counted for their queue when this process has its lease again.
        """
        self._listens_for = set()
        self._collect()
        self._queues = {number: queue for number, queue in self._queues.items() if queue.tasks}
        for queue in self._queues.values():
            queue.has_lease, queue.monitor, queue.written = False, NEW, ()
            for stop in queue.tasks.values():
                stop.request_stop()

    # ---------------------------------------------------------------- one queue

    def _settings(self, queue: MonitoredQueue) -> Settings:
        definition = queue.definition
        return Settings(definition.max_readers, self._interval, external=definition.procedure is None)

    def _check_counters(self, connection: psycopg.Connection[Any]) -> None:
        """Schedule a check of each queue whose counters have changed. Idle queues are skipped."""
        if not self._queues:
            return
        known = {number: queue.counters if queue.is_known_empty else () for number, queue in self._queues.items()}
        changed = run(connection, monitors.poll_changed(known, self.instance.clock()))
        self._oldest_transaction = changed.oldest
        for counters in changed.queues:
            if self._queues[counters.queue_id].must_check(counters, changed.next):
                self._to_check.append(counters.queue_id)

    def _check_queue(self, connection: psycopg.Connection[Any], queue: MonitoredQueue) -> None:
        queue_id = queue.definition.queue_id
        if not queue.is_on or not queue.has_lease:
            return
        try:
            result = run(connection, monitors.poll_queue(queue_id, self.instance.clock(), len(queue.tasks)))
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):  # dropped meanwhile
            self._changed.set()
            return
        queue.due = result.due
        queue.waiting = max(result.seen.waiting, self.instance.notifier.count_asleep(queue_id))
        seen_state = result.seen._replace(waiting=queue.waiting)
        queue.monitor, decision = look(queue.monitor, seen_state, self._settings(queue), time.monotonic())
        if not seen_state.receivable and queue.may_be_empty(self._oldest_transaction):
            queue.is_known_empty = run(connection, monitors.is_empty(queue_id))
        if decision == Decision.ACTIVATE:
            if run(connection, monitors.find_version(queue_id)) == queue.definition.version:
                self._activate(connection, queue)
            else:  # altered meanwhile: its monitor restarts
                self._changed.set()
                self._wake.set()
        elif decision == Decision.LIMIT:
            metrics.LIMIT_REACHED.inc()

    def _activate(self, connection: psycopg.Connection[Any], queue: MonitoredQueue) -> None:
        definition = queue.definition
        if definition.procedure is None:
            self._log_errors(run_alone(connection, post(QUEUE_ACTIVATION, definition.queue_id, self.instance.clock())))
            return
        procedure = self._resolve(definition)
        if procedure is None:
            _log.error("%s", BrokerError(9614, definition.queue), extra={"database": definition.database})
            self._release_queue(connection, queue)
        elif not definition.principal:
            _log.error("%s", BrokerError(9613, definition.queue), extra={"database": definition.database})
            self._postpone_start(queue)
        else:
            self._start(queue, procedure)

    def _release_queue(self, connection: psycopg.Connection[Any], queue: MonitoredQueue) -> None:
        """Release a queue's lease, because this process cannot resolve its procedure. Not while its tasks run."""
        queue_id = queue.definition.queue_id
        self._postpone_start(queue)
        if not queue.tasks:
            self._retry_at[queue_id] = time.monotonic() + self._interval
            del self._queues[queue_id]
            run(connection, monitors.release_lease(queue_id))

    def _postpone_start(self, queue: MonitoredQueue) -> None:
        """Schedule the next attempt to start a reader after the interval."""
        queue.monitor = could_not_start(queue.monitor, self._settings(queue), time.monotonic())

    def _start(self, queue: MonitoredQueue, procedure: Procedure) -> None:
        spec, stop = TaskSpec.of(queue.definition), StopSignal()

        def work() -> None:
            outcome = Outcome.DIED
            try:
                if isinstance(procedure, PythonProcedure) and procedure.worker == "process":
                    outcome = run_in_process(self.instance, spec, procedure, stop)
                else:
                    outcome = run_task(self.instance, spec, procedure, stop, self._coroutines)
            except BaseException as problem:  # the thread ends here, so nothing else could report the error
                text = "The reader %s of %s has ended: %s"
                report(
                    _log, logging.ERROR, text, spec.procedure, spec.queue, describe_exception(problem), exc_info=problem
                )
            finally:
                self._ended.append((queue, thread, outcome))
                self._wake.set()

        thread = threading.Thread(target=work, name=spec.procedure, daemon=True)
        queue.tasks[thread] = stop
        try:
            thread.start()
        except RuntimeError as problem:  # the system is out of threads
            del queue.tasks[thread]
            log_not_started(spec, problem)
            self._postpone_start(queue)
            return
        self._record(_STARTED, queue)

    def _log_errors(self, problems: list[BrokerError]) -> None:
        for problem in problems:
            _log.error("%s", problem)

    def _record(self, event: str, queue: MonitoredQueue) -> None:
        definition = queue.definition
        text = f"{event}: {definition.procedure} on {definition.name}, {len(queue.tasks)} active tasks"
        now = self.instance.clock()
        self.instance.events.record(ACTIVATION_CLASS, now, definition.database_id, definition.queue_id, text, event)

    # ---------------------------------------------------------------- views and notifications

    def _update_view(self, connection: psycopg.Connection[Any]) -> None:
        now, monotonic_now = self.instance.clock(), time.monotonic()
        changed_rows = (queue.changed_row(now, monotonic_now) for queue in self._queues.values() if queue.has_lease)
        if rows := [row for row in changed_rows if row is not None]:
            run(connection, monitors.save_states(rows))

    def _update_listening(self, connection: psycopg.Connection[Any]) -> bool:
        """Listen for messages in queues without readers.

        Returns True if queues were added, which have to be checked now.
        """
        wanted = {number for number, queue in self._queues.items() if queue.needs_notification}
        if wanted == self._listens_for:
            return False
        new = wanted - self._listens_for
        run(connection, monitors.listen_for(wanted))
        self._listens_for = wanted
        self._new_listeners = (self._new_listeners & wanted) | new
        self._to_check.extend(new)
        return bool(new)

    def _on_notification(self, notification: psycopg.Notify) -> None:
        """Schedule a check after a SEND into one of the queues, or after a changed definition."""
        if notification.channel == MONITORS_CHANNEL:
            self._changed.set()
        elif (match := re.match(r"-?(\d{1,10})\b", notification.payload)) and int(match[1]) in self._queues:
            self._to_check.append(int(match[1]))
        else:
            return
        self._wake.set()
