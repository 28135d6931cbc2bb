"""Internal activation in a process: the thread that runs queue monitors, and starts and counts their tasks.

It sleeps until something happens: a SEND into a queue that has nobody to read it, a change of a queue, the end of a
task; and looks at every queue of its own once a second. A queue's monitor is run by one process at a time, the one that
holds its lease; a process that cannot find the procedure leaves it to others.
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
from servicebroker.activation.loop import AsyncTasks
from servicebroker.activation.order import Order
from servicebroker.activation.procedures import Procedure, PythonProcedure, Resolver, registered
from servicebroker.activation.stop import Stop
from servicebroker.activation.task import Outcome, run_task, say_not_started
from servicebroker.activation.watched import Watched
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
from servicebroker.model.wording import told
from servicebroker.protocol.queue_monitor import (
    INTERVAL,
    NEW,
    Decision,
    Settings,
    could_not_start,
    died,
    look,
)
from servicebroker.store.connection import connect
from servicebroker.store.hearing import hearing
from servicebroker.store.outage import Outage
from servicebroker.store.running import run, run_alone
from servicebroker.store.sql_verbs import MONITORS_CHANNEL

TICK = 1.0  # seconds between two looks at everything
SOON = 0.01  # seconds until the first look after it began to listen: a SEND may have begun before that
RECONNECT = 1.0  # seconds between attempts to reach the database again
PAUSE = 0.02  # seconds between two questions whether all is quiet
PATIENCE = 30.0  # seconds that the calls in progress have to end
CUT = 1.0  # seconds that they have to notice that they are undone
_STARTED = "Started"

_log = logging.getLogger("servicebroker.activation")


def _tsql_procedure(database: Database, name: str) -> Procedure | None:
    """The resolver of procedures that were made by CREATE PROCEDURE."""
    from servicebroker.tsql.activation_procedures import resolve  # at its first use: most processes have only Python's

    return resolve(database, name)


class Host:
    """Runs the queue monitors of an open instance in this process, until `stop`; a context manager of both kinds.

    Attributes:
        instance: the instance that tasks work in.
    """

    def __init__(
        self,
        instance: Instance,
        resolvers: Iterable[Resolver],
        *,
        interval: float = INTERVAL,
        patience: float = PATIENCE,
    ) -> None:
        self.instance = instance
        self._resolvers = (registered, *resolvers, _tsql_procedure)
        self._interval = interval
        self._tick = min(TICK, interval / 4)
        self._coroutines = AsyncTasks(instance)
        self._defined = NO_DEFINITIONS
        self._watched: dict[int, Watched] = {}
        self._retry_at: dict[int, float] = {}  # queues whose procedure is missing
        self._ended: deque[tuple[Watched, threading.Thread, Outcome]] = deque()
        self._rung: deque[int] = deque()
        self._listens_for: set[int] = set()
        self._fresh: set[int] = set()  # of those, the ones that a SEND in progress may not have seen listed
        self._oldest = 0  # the oldest transaction that went on at the last glance
        self._look_at = 0.0  # when everything is looked at
        self._looks = 0  # how often everything was
        self._patience = patience
        self._deadline = 0.0  # until when calls in progress may go on, once it is stopped
        self._outage = Outage(_log, "Activation has lost the database, and looks for it again")
        self._unresolved = Outage(_log, "A resolver of activation procedures has failed")
        self._changed, self._bell, self._stopped = threading.Event(), threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._run, name="servicebroker activation", daemon=True)

    def start(self) -> Self:
        """Begin to watch; returns at once."""
        self._thread.start()
        return self

    def settle(self, seconds: float) -> None:
        """Wait until no reader has anything to do: each has ended, or waits for a message. At most `seconds`."""
        deadline, first = time.monotonic() + seconds, self._looks + 2  # the look in progress may be too early
        while time.monotonic() < deadline:
            if self._looks >= first and all(watched.is_quiet for watched in list(self._watched.values())):
                return
            self._changed.set()
            self._bell.set()
            time.sleep(PAUSE)

    def stop(self) -> None:
        """Start nothing more, and wait for the calls in progress while patience lasts; what is left then is undone."""
        self.ask()
        while self._thread.is_alive() and time.monotonic() < self._deadline + 2 * CUT:  # the database may not answer
            self._thread.join(PAUSE)
        if not self._thread.is_alive() and not self._runs():
            self._coroutines.close()

    def ask(self) -> None:
        """Begin to do what `stop` does."""
        if not self._stopped.is_set():
            self._deadline = time.monotonic() + self._patience
            self._stopped.set()
            self._bell.set()

    def hurry(self) -> None:
        """Have no patience, also where `stop` waits already."""
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
                    self._outage.over()
                    self._serve(connection)
                    return
            except (psycopg.Error, ServiceBrokerError) as problem:
                self._outage.lost(problem)
                self._forget()
                self._stopped.wait(RECONNECT)
            except BaseException as problem:  # in a thread of ours nobody asks us to end by an exception
                report(_log, logging.ERROR, "Activation begins anew: %s", told(problem), exc_info=problem)
                self._forget()
                self._stopped.wait(RECONNECT)
        self._drain()

    def _serve(self, connection: psycopg.Connection[Any]) -> None:
        self._look_at = 0.0
        channels = ("servicebroker", MONITORS_CHANNEL)
        with hearing(self.instance.url, channels, self._heard, name="servicebroker activation") as ear:
            soon = SOON
            while not self._stopped.is_set():
                ear.check()
                self._bell.clear()
                pause = self._round(connection)
                if self._listen(connection):
                    soon = SOON
                    continue  # a SEND may have come before it could know of us
                if not self._bell.wait(min(pause, soon)):
                    self._rung.extend(self._fresh)
                    soon *= 5
                    if soon > self._tick:  # the glance of each tick sees what comes later
                        self._fresh = set()
                        soon = self._tick
        self._drain()
        run(connection, monitors.listen_for([]))
        for queue_id in self._watched:
            run(connection, monitors.give_lease(queue_id))

    def _drain(self) -> None:
        """Ask the tasks to end, and wait for the calls in progress; what goes on is cut."""
        self._tell_all(Stop.ask)
        if self._ended_until(0.0):
            return
        _log.warning("Activated procedures did not end in %g seconds: they are undone.", self._patience)
        self._tell_all(Stop.cut)
        if not self._ended_until(CUT):
            _log.warning("Activated procedures go on without a database, since nothing ends their threads.")

    def _tell_all(self, what: Callable[[Stop], None]) -> None:
        for watched in self._watched.values():
            for stop in tuple(watched.tasks.values()):
                what(stop)

    def _ended_until(self, later: float) -> bool:
        """Whether all tasks have ended so many seconds after the deadline, which may move meanwhile."""
        while self._runs() and time.monotonic() < self._deadline + later:
            time.sleep(PAUSE)
        return not self._runs()

    def _runs(self) -> bool:
        """Whether a task runs."""
        self._collect()
        return any(watched.tasks for watched in self._watched.values())

    def _round(self, connection: psycopg.Connection[Any]) -> float:
        """Look at what has rung. Returns the seconds after which something is due by itself."""
        glanced = 0
        self._collect()
        if self._changed.is_set() or time.monotonic() >= self._look_at:
            self._changed.clear()
            self._look_at = time.monotonic() + self._tick
            self._define(connection)
            self.instance.poison.judge(connection)
            self._say(run_alone(connection, drop_broken(self.instance.clock())))
            self._glance(connection)
            glanced = 1
        now = self.instance.clock()
        self._rung.extend(number for number, watched in self._watched.items() if watched.due and watched.due <= now)
        rung = set()
        while self._rung:
            rung.add(self._rung.popleft())
        for queue_id in rung & self._watched.keys():
            self._look(connection, self._watched[queue_id])
        self._looks += glanced
        self._show(connection)
        now = self.instance.clock()
        dues = [watched.due - now for watched in self._watched.values() if watched.due is not None]
        seconds = min((due.total_seconds() for due in dues), default=self._tick)
        return max(0.0, min(seconds, self._look_at - time.monotonic()))

    def _collect(self) -> None:
        """Tasks that have ended."""
        while self._ended:
            watched, thread, outcome = self._ended.popleft()
            del watched.tasks[thread]
            queue_id = watched.definition.queue_id
            self._rung.append(queue_id)
            if not watched.is_on:
                self._changed.set()
            if outcome == Outcome.NOT_STARTED:
                self._try_again(watched)
            elif outcome == Outcome.DIED:
                watched.monitor = died(watched.monitor, self._settings(watched), time.monotonic())
            self._record(outcome.subclass, watched)

    # ---------------------------------------------------------------- which queues

    def _define(self, connection: psycopg.Connection[Any]) -> None:
        """Do as the catalog says: monitors begin, begin anew and end; running tasks of a queue that is off end soon."""
        self._defined = run(connection, monitors.definitions(self._defined))
        found = {definition.queue_id: definition for definition in self._defined.queues}
        for queue_id in self._watched.keys() - found.keys():
            self._switch_off(connection, self._watched[queue_id])
        for queue_id, definition in found.items():
            watched = self._watched.get(queue_id)
            if watched is None or not watched.is_ours:
                if not self._may_watch(definition) or not run(connection, monitors.take_lease(queue_id)):
                    continue
                watched = self._watched[queue_id] = watched or Watched(definition)
                watched.is_ours = True
            elif watched.is_on and watched.definition.version == definition.version:
                watched.definition = definition  # a principal may have gone, or changed its name
                continue
            watched.definition, watched.monitor, watched.is_on = definition, NEW, True
            watched.unsettle()

    def _switch_off(self, connection: psycopg.Connection[Any], watched: Watched) -> None:
        """The queue is off, or gone: nothing is started, and what runs ends after its call."""
        queue_id = watched.definition.queue_id
        if watched.is_on:
            watched.is_on = False
            reason = run(connection, monitors.why_off(queue_id)) or 28086
            for stop in watched.tasks.values():
                stop.ask(reason)
        if not watched.tasks:
            del self._watched[queue_id]
            run(connection, monitors.give_lease(queue_id))

    def _may_watch(self, definition: Definition) -> bool:
        """Whether the procedure is found here; else it is asked for again after the interval, and only for a moment."""
        if definition.procedure is None or self._resolve(definition) is not None:
            return True
        now = time.monotonic()
        if now < self._retry_at.get(definition.queue_id, now):
            return False
        self._retry_at[definition.queue_id] = now + self._interval
        return True

    def _resolve(self, definition: Definition) -> Procedure | None:
        database_name, *rest = names.name_parts("procedure", definition.procedure, 3)
        name = ".".join(f"[{part.replace(']', ']]')}]" for part in rest)
        try:
            database = self.instance.database(database_name)
        except BrokerError:
            return None
        return next((found for resolve in self._resolvers if (found := self._ask(resolve, database, name))), None)

    def _ask(self, resolve: Resolver, database: Database, name: str) -> Procedure | None:
        """What a resolver says; one that fails has found nothing: other queues have nothing to do with that."""
        try:
            return resolve(database, name)
        except BaseException as problem:
            self._unresolved.lost(InstanceError(f"{name}: {told(problem)}"))
            return None

    def _forget(self) -> None:
        """The leases are lost with the session; tasks that still run count for their queue when it is ours again."""
        self._listens_for = set()
        self._collect()
        self._watched = {number: watched for number, watched in self._watched.items() if watched.tasks}
        for watched in self._watched.values():
            watched.is_ours, watched.monitor, watched.shown = False, NEW, ()
            for stop in watched.tasks.values():
                stop.ask()

    # ---------------------------------------------------------------- one queue

    def _settings(self, watched: Watched) -> Settings:
        definition = watched.definition
        return Settings(definition.max_readers, self._interval, external=definition.procedure is None)

    def _glance(self, connection: psycopg.Connection[Any]) -> None:
        """Have a look at each queue where something may have happened: at an idle one, nothing has to be looked for."""
        if not self._watched:
            return
        known = {number: watched.counters if watched.is_settled else () for number, watched in self._watched.items()}
        found = run(connection, monitors.glance(known, self.instance.clock()))
        self._oldest = found.oldest
        for queue in found.queues:
            if self._watched[queue.queue_id].wants_look(queue, found.next):
                self._rung.append(queue.queue_id)

    def _look(self, connection: psycopg.Connection[Any], watched: Watched) -> None:
        queue_id = watched.definition.queue_id
        if not watched.is_on or not watched.is_ours:
            return
        try:
            found = run(connection, monitors.look(queue_id, self.instance.clock(), len(watched.tasks)))
        except (psycopg.errors.UndefinedTable, psycopg.errors.UndefinedFunction):  # dropped since
            self._changed.set()
            return
        watched.due = found.due
        watched.waiting = max(found.seen.waiting, self.instance.doorbell.count_asleep(queue_id))
        seen = found.seen._replace(waiting=watched.waiting)
        watched.monitor, decision = look(watched.monitor, seen, self._settings(watched), time.monotonic())
        if not seen.receivable and watched.may_settle(self._oldest):
            watched.is_settled = run(connection, monitors.is_empty(queue_id))
        if decision == Decision.ACTIVATE:
            if run(connection, monitors.version_of(queue_id)) == watched.definition.version:
                self._activate(connection, watched)
            else:  # altered since it was defined: its monitor begins anew
                self._changed.set()
                self._bell.set()
        elif decision == Decision.LIMIT:
            metrics.LIMIT_REACHED.inc()

    def _activate(self, connection: psycopg.Connection[Any], watched: Watched) -> None:
        definition = watched.definition
        if definition.procedure is None:
            self._say(run_alone(connection, post(QUEUE_ACTIVATION, definition.queue_id, self.instance.clock())))
            return
        procedure = self._resolve(definition)
        if procedure is None:
            _log.error("%s", BrokerError(9614, definition.queue), extra={"database": definition.database})
            self._give_up(connection, watched)
        elif not definition.principal:
            _log.error("%s", BrokerError(9613, definition.queue), extra={"database": definition.database})
            self._try_again(watched)
        else:
            self._start(watched, procedure)

    def _give_up(self, connection: psycopg.Connection[Any], watched: Watched) -> None:
        """The procedure is not to be found here: somebody else may have it."""
        queue_id = watched.definition.queue_id
        self._try_again(watched)
        if not watched.tasks:
            self._retry_at[queue_id] = time.monotonic() + self._interval
            del self._watched[queue_id]
            run(connection, monitors.give_lease(queue_id))

    def _try_again(self, watched: Watched) -> None:
        """Start a reader after the interval, since this one could not be started."""
        watched.monitor = could_not_start(watched.monitor, self._settings(watched), time.monotonic())

    def _start(self, watched: Watched, procedure: Procedure) -> None:
        order, stop = Order.of(watched.definition), Stop()

        def work() -> None:
            outcome = Outcome.DIED
            try:
                if isinstance(procedure, PythonProcedure) and procedure.worker == "process":
                    outcome = run_in_process(self.instance, order, procedure, stop)
                else:
                    outcome = run_task(self.instance, order, procedure, stop, self._coroutines)
            except BaseException as problem:  # nobody else hears of it
                said = "The reader %s of %s has ended: %s"
                report(_log, logging.ERROR, said, order.procedure, order.queue, told(problem), exc_info=problem)
            finally:
                self._ended.append((watched, thread, outcome))
                self._bell.set()

        thread = threading.Thread(target=work, name=order.procedure, daemon=True)
        watched.tasks[thread] = stop
        try:
            thread.start()
        except RuntimeError as problem:  # the system has no more threads
            del watched.tasks[thread]
            say_not_started(order, problem)
            self._try_again(watched)
            return
        self._record(_STARTED, watched)

    def _say(self, problems: list[BrokerError]) -> None:
        for problem in problems:
            _log.error("%s", problem)

    def _record(self, what: str, watched: Watched) -> None:
        definition = watched.definition
        text = f"{what}: {definition.procedure} on {definition.name}, {len(watched.tasks)} active tasks"
        now = self.instance.clock()
        self.instance.events.record(ACTIVATION_CLASS, now, definition.database_id, definition.queue_id, text, what)

    # ---------------------------------------------------------------- telling and being told

    def _show(self, connection: psycopg.Connection[Any]) -> None:
        now, here = self.instance.clock(), time.monotonic()
        news = (watched.news(now, here) for watched in self._watched.values() if watched.is_ours)
        if rows := [row for row in news if row is not None]:
            run(connection, monitors.show(rows))

    def _listen(self, connection: psycopg.Connection[Any]) -> bool:
        """Ask to be told of arrivals where nobody reads. True when that has grown: then a look must follow."""
        wanted = {number for number, watched in self._watched.items() if watched.wants_to_be_told}
        if wanted == self._listens_for:
            return False
        new = wanted - self._listens_for
        run(connection, monitors.listen_for(wanted))
        self._listens_for = wanted
        self._fresh = (self._fresh & wanted) | new
        self._rung.extend(new)
        return bool(new)

    def _heard(self, notice: psycopg.Notify) -> None:
        """A queue that we listen for was sent to, or definitions have changed."""
        if notice.channel == MONITORS_CHANNEL:
            self._changed.set()
        elif (queue := re.match(r"-?(\d{1,10})\b", notice.payload)) and int(queue[1]) in self._watched:
            self._rung.append(int(queue[1]))
        else:
            return
        self._bell.set()
