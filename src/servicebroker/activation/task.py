"""Run an activated task: a loop that calls the procedure, in a session of its own.

The rules: docs/reference/rules.md#activated-tasks.
"""

from __future__ import annotations

import logging
from enum import StrEnum

import psycopg

from servicebroker.activation.coroutine_runner import CoroutineRunner, Work
from servicebroker.activation.output import output_to
from servicebroker.activation.procedures import Call, Procedure
from servicebroker.activation.stop_signal import StopSignal
from servicebroker.activation.task_spec import TaskSpec
from servicebroker.api.activated_session import ActivatedSession, ReceiveHistory
from servicebroker.api.instance import Instance
from servicebroker.broker import metrics
from servicebroker.engine.activation import monitors
from servicebroker.model.errors import BrokerError, InstanceError, ServiceBrokerError
from servicebroker.model.handlers import as_exception
from servicebroker.model.reporting import report
from servicebroker.model.wording import describe_exception
from servicebroker.store.concurrency import StopDetector
from servicebroker.store.connection import connect
from servicebroker.store.running import run

LOG = "servicebroker.activation"  # name of the logger; records of a task have its `database`
_LOG = logging.getLogger(LOG)
_QUEUE_OFF = {9617, 15151, 8468}  # errors of RECEIVE after the queue was switched off, dropped or changed


class Outcome(StrEnum):
    """The end of a task: a subclass of the event Broker:Activation, or NOT_STARTED."""

    ENDED = "Ended"
    ABORTED = "Aborted"
    DIED = "Died"  # the process or the session was lost; reported as Aborted
    NOT_STARTED = "Not started"

    @property
    def subclass(self) -> str:
        """The subclass of the event Broker:Activation."""
        return Outcome.ABORTED if self is Outcome.DIED else self


def run_task(
    instance: Instance, spec: TaskSpec, procedure: Procedure, stop: StopSignal, coroutines: CoroutineRunner
) -> Outcome:
    """Call the procedure until the queue is empty, the task has to stop, or the procedure fails.

    Every error is logged.
    """
    is_called = False
    try:
        with connect(instance.url, application_name=spec.application_name) as connection:
            history = ReceiveHistory()
            session = ActivatedSession(instance, connection, history)
            stop.add_session(session, lambda wake: wake())
            database = session.enter(spec.database, spec.principal)
            receives_before = run(connection, monitors.enter_task(spec.queue_id, spec.procedure, spec.execute_as))

            def run_async(work: Work) -> None:
                coroutines.run(spec, history, work, stop)

            def output(text: str) -> None:
                log_output(spec, text)

            call = Call(database, spec.queue, stop.is_requested, output, run_async)
            try:
                is_called = True
                with output_to(output):
                    return _loop(spec, procedure, call, session, stop, receives_before)
            finally:
                if not connection.closed:
                    session.roll_back()
                    run(connection, monitors.leave_task())
    except BrokerError as refused:  # from EXECUTE AS
        _LOG.error("%s", refused, extra=log_fields(spec))
        return Outcome.NOT_STARTED
    except Exception as problem:
        if _was_terminated(stop, problem):
            return Outcome.ENDED
        if not is_called:
            log_not_started(spec, problem)
            return Outcome.NOT_STARTED
        _log_failure(spec, problem)
        return Outcome.DIED


def _was_terminated(stop: StopSignal, problem: Exception) -> bool:
    """Check whether `StopSignal.terminate` has closed the session because the process ends."""
    return stop.is_requested() and stop.reason is None and isinstance(problem, InstanceError | psycopg.Error)


def _loop(
    spec: TaskSpec, procedure: Procedure, call: Call, session: ActivatedSession, stop: StopSignal, receives_before: int
) -> Outcome:
    history = session.history
    stop_detector = StopDetector(exits=True)  # in a child process sys.exit ends the process
    while True:
        history.begin()
        metrics.INVOKED.inc()
        try:
            procedure(call)
        except BaseException as raised:
            problem = as_exception(raised)
            if stop_detector.is_stop(raised) or _was_terminated(stop, problem):
                raise
            return _handle_error(spec, session, problem)
        if session.is_lent:
            history.left_open = True
        session.roll_back()
        if history.left_open:
            _LOG.error("%s", BrokerError(8415, spec.procedure), extra=log_fields(spec))
            return Outcome.ABORTED
        if not history.has_received and run(session.own, monitors.count_receives(spec.queue_id)) == receives_before:
            _LOG.error("%s", BrokerError(28087, spec.procedure), extra=log_fields(spec))
            return Outcome.ABORTED
        if stop.is_requested():
            if stop.reason is not None:
                _LOG.warning("%s", BrokerError(stop.reason), extra=log_fields(spec))
            return Outcome.ENDED
        if history.found_nothing or not history.has_result:
            return Outcome.ENDED


def _handle_error(spec: TaskSpec, session: ActivatedSession, problem: Exception) -> Outcome:
    """Log an error of the procedure, and return the outcome.

    If the queue was switched off or dropped meanwhile, the task has ended normally.
    """
    if isinstance(problem, BrokerError) and problem.number in _QUEUE_OFF and not session.own.closed:
        session.roll_back()
        reason = run(session.own, monitors.find_stop_reason(spec.queue_id))
        if reason is not None:
            _LOG.warning("%s", BrokerError(reason), extra=log_fields(spec))
            return Outcome.ENDED
    metrics.ACTIVATION_ERRORS.inc()
    _log_failure(spec, problem)
    return Outcome.DIED if session.own.closed else Outcome.ABORTED


def log_fields(spec: TaskSpec) -> dict[str, str]:
    """Return the extra fields of a task's log records."""
    return {"database": spec.database}


def log_output(spec: TaskSpec, text: str) -> None:
    """Log an output of a procedure."""
    _LOG.info("%s", BrokerError(9724, spec.procedure, spec.queue, text), extra=log_fields(spec))


def log_not_started(spec: TaskSpec, problem: Exception) -> None:
    """Log why a task could not be started."""
    _LOG.error("The reader %s of %s cannot be started: %s", spec.procedure, spec.queue, problem, extra=log_fields(spec))


def _log_failure(spec: TaskSpec, problem: Exception) -> None:
    """Log an exception of a procedure, and the end of its task. An unexpected one is logged with its traceback."""
    text = describe_exception(problem)
    number, state = (problem.number, problem.state) if isinstance(problem, BrokerError) else (0, 1)
    is_expected = isinstance(problem, ServiceBrokerError)
    error = BrokerError(9724, spec.procedure, spec.queue, text)
    report(_LOG, logging.ERROR, "%s", error, exc_info=None if is_expected else problem, extra=log_fields(spec))
    report(_LOG, logging.ERROR, "%s", BrokerError(28088, number, state), extra=log_fields(spec))
