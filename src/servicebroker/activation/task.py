"""One activated task: a loop around calls of the procedure, in a session of its own.

The rules: docs/reference/rules.md#activated-tasks.
"""

from __future__ import annotations

import logging
from enum import StrEnum

import psycopg

from servicebroker.activation.loop import AsyncTasks, Work
from servicebroker.activation.order import Order
from servicebroker.activation.output import said_by
from servicebroker.activation.procedures import Call, Procedure
from servicebroker.activation.stop import Stop
from servicebroker.api.activated_session import ActivatedSession, Observed
from servicebroker.api.instance import Instance
from servicebroker.broker import metrics
from servicebroker.engine.activation import monitors
from servicebroker.model.errors import BrokerError, InstanceError, ServiceBrokerError
from servicebroker.model.handlers import as_exception
from servicebroker.model.reporting import report
from servicebroker.model.wording import told
from servicebroker.store.concurrency import StopDetector
from servicebroker.store.connection import connect
from servicebroker.store.running import run

LOG = "servicebroker.activation"  # the logger; records of a task have `database`, the name of its database
_LOG = logging.getLogger(LOG)
_QUEUE_OFF = {9617, 15151, 8468}  # what a RECEIVE raises when the queue was switched off, dropped or changed


class Outcome(StrEnum):
    """How a task has ended: the subclasses of the event Broker:Activation, and one whose procedure was never called."""

    ENDED = "Ended"
    ABORTED = "Aborted"
    DIED = "Died"  # its process, or its session: an Aborted one that did not choose to end
    NOT_STARTED = "Not started"

    @property
    def subclass(self) -> str:
        """The subclass of its event."""
        return Outcome.ABORTED if self is Outcome.DIED else self


def run_task(instance: Instance, order: Order, procedure: Procedure, stop: Stop, coroutines: AsyncTasks) -> Outcome:
    """Call the procedure until it finds nothing, is to stop, or fails. Everything that goes wrong is logged."""
    is_called = False
    try:
        with connect(instance.url, application_name=order.application_name) as connection:
            observed = Observed()
            session = ActivatedSession(instance, connection, observed)
            stop.ends_session(session, lambda wake: wake())
            database = session.enter(order.database, order.principal)
            before = run(connection, monitors.enter_task(order.queue_id, order.procedure, order.execute_as))

            def run_async(work: Work) -> None:
                coroutines.run(order, observed, work, stop)

            def output(text: str) -> None:
                say(order, text)

            call = Call(database, order.queue, stop.is_asked, output, run_async)
            try:
                is_called = True
                with said_by(output):
                    return _loop(order, procedure, call, session, stop, before)
            finally:
                if not connection.closed:
                    session.roll_back()
                    run(connection, monitors.leave_task())
    except BrokerError as refused:  # of EXECUTE AS
        _LOG.error("%s", refused, extra=of(order))
        return Outcome.NOT_STARTED
    except Exception as problem:
        if _is_undone(stop, problem):
            return Outcome.ENDED
        if not is_called:
            say_not_started(order, problem)
            return Outcome.NOT_STARTED
        _fail(order, problem)
        return Outcome.DIED


def _is_undone(stop: Stop, problem: Exception) -> bool:
    """Whether it waited for a message when the process ended, which has closed its session."""
    return stop.is_asked() and stop.reason is None and isinstance(problem, InstanceError | psycopg.Error)


def _loop(
    order: Order, procedure: Procedure, call: Call, session: ActivatedSession, stop: Stop, receives: int
) -> Outcome:
    observed = session.observed
    stops = StopDetector(exits=True)  # in a process of its own, sys.exit ends that
    while True:
        observed.begin()
        metrics.INVOKED.inc()
        try:
            procedure(call)
        except BaseException as raised:
            problem = as_exception(raised)
            if stops.is_stop(raised) or _is_undone(stop, problem):
                raise
            return _failed(order, session, problem)
        if session.is_lent:
            observed.left_open = True
        session.roll_back()
        if observed.left_open:
            _LOG.error("%s", BrokerError(8415, order.procedure), extra=of(order))
            return Outcome.ABORTED
        if not observed.has_received and run(session.own, monitors.receives(order.queue_id)) == receives:
            _LOG.error("%s", BrokerError(28087, order.procedure), extra=of(order))
            return Outcome.ABORTED
        if stop.is_asked():
            if stop.reason is not None:
                _LOG.warning("%s", BrokerError(stop.reason), extra=of(order))
            return Outcome.ENDED
        if observed.found_nothing or not observed.has_taken:
            return Outcome.ENDED


def _failed(order: Order, session: ActivatedSession, problem: Exception) -> Outcome:
    """The procedure raised. That its queue was switched off or dropped meanwhile is no failure of its own."""
    if isinstance(problem, BrokerError) and problem.number in _QUEUE_OFF and not session.own.closed:
        session.roll_back()
        reason = run(session.own, monitors.why_off(order.queue_id))
        if reason is not None:
            _LOG.warning("%s", BrokerError(reason), extra=of(order))
            return Outcome.ENDED
    metrics.ACTIVATION_ERRORS.inc()
    _fail(order, problem)
    return Outcome.DIED if session.own.closed else Outcome.ABORTED


def of(order: Order) -> dict[str, str]:
    """What a record of a task has beside its text."""
    return {"database": order.database}


def say(order: Order, text: str) -> None:
    """What a procedure puts out goes to the log."""
    _LOG.info("%s", BrokerError(9724, order.procedure, order.queue, text), extra=of(order))


def say_not_started(order: Order, problem: Exception) -> None:
    """What the system lacked for a task goes to the log."""
    _LOG.error("The reader %s of %s cannot be started: %s", order.procedure, order.queue, problem, extra=of(order))


def _fail(order: Order, problem: Exception) -> None:
    """What a procedure raised: to the log, with the traceback, and why its task has ended."""
    text = told(problem)
    number, state = (problem.number, problem.state) if isinstance(problem, BrokerError) else (0, 1)
    expected = isinstance(problem, ServiceBrokerError)
    said = BrokerError(9724, order.procedure, order.queue, text)
    report(_LOG, logging.ERROR, "%s", said, exc_info=None if expected else problem, extra=of(order))
    report(_LOG, logging.ERROR, "%s", BrokerError(28088, number, state), extra=of(order))
