"""Run a reader in a child process, so that a crash of its procedure ends only that process.

A task (`task.py`) is one reader that a queue has started. The parent is the process of the queue monitors, the child
runs the procedure. PostgreSQL rolls back the work of a crashed child. Both exchange lines of JSON:

* parent to child, on standard input: first the task, then `{"stop": reason}` (end after the call in progress) or
  `{"terminate": true}` (close the sessions and exit). The end of the input means that the parent has exited.
* child to parent, on a pipe: `log` (a log record), `took` (the id of a transaction that has received, with its queues),
  `call` (the procedure begins or raises), and last `outcome`.

The parent detects poison messages for the child, since a killed process cannot report its rollbacks. It asks
PostgreSQL whether each reported transaction was committed.

Begin with `run_in_process` (parent) and `main` (child).
"""

from __future__ import annotations

import json
import logging
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterable
from typing import IO, Any, NamedTuple

from servicebroker.activation.coroutine_runner import CoroutineRunner
from servicebroker.activation.output import capture_stdout
from servicebroker.activation.procedures import Call, PythonProcedure, Worker, find_registered, load
from servicebroker.activation.stop_signal import StopSignal, StopTarget
from servicebroker.activation.task import Outcome, log_fields, log_not_started, run_task
from servicebroker.activation.task_spec import TaskSpec
from servicebroker.api.instance import Instance
from servicebroker.api.poison import PoisonDetector
from servicebroker.api.shared.open import open_instance
from servicebroker.broker import metrics
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.overriding import override

_LOG = logging.getLogger("servicebroker.activation")

KILL_DELAY_S = 0.5  # time for a child to close its sessions before it is killed

SendReport = Callable[..., None]


# ---------------------------------------------------------------- in the parent


def run_in_process(instance: Instance, spec: TaskSpec, procedure: PythonProcedure, stop: StopSignal) -> Outcome:
    """Run a task in a new process and return its outcome; `Outcome.DIED` if the process exits without an outcome."""
    try:
        process, reports = _start()
    except OSError as problem:  # such as a limit of processes or of open files
        log_not_started(spec, problem)
        return Outcome.NOT_STARTED
    with reports:
        assert process.stdin is not None
        with process.stdin as commands:
            folder = instance.keys.folder
            keys = None if folder is None else str(folder.path)
            _write_command(commands, {"url": instance.url, "keys": keys, "spec": spec, "source": procedure.source})
            target = StopTarget(
                lambda reason: _write_command(commands, {"stop": reason}), lambda: _kill(process, commands)
            )
            stop.add_target(target)
            outcome = _listen(instance, spec, reports)
        process.wait()
    with instance.connection() as connection:
        instance.poison.resolve_outcomes(connection)
    if outcome is None:
        text = f"its process ended with code {process.returncode}"
        _LOG.error("%s", BrokerError(9724, spec.procedure, spec.queue, text), extra=log_fields(spec))
        _LOG.error("%s", BrokerError(28088, 0, 1), extra=log_fields(spec))
    return outcome or Outcome.DIED


def _start() -> tuple[subprocess.Popen[str], IO[str]]:
    """Start a process, and return it with the pipe for its reports."""
    reading, writing = os.pipe()
    reports = os.fdopen(reading)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "servicebroker.activation.child", str(writing)],
            stdin=subprocess.PIPE,
            pass_fds=[writing],
            start_new_session=True,  # Ctrl-C goes to the parent, which lets the child finish
            text=True,
        )
    except BaseException:
        reports.close()
        raise
    finally:
        os.close(writing)
    return process, reports


def _write_command(commands: IO[str], command: object) -> None:
    try:
        commands.write(json.dumps(command) + "\n")
        commands.flush()
    except (OSError, ValueError):  # the child has exited; `_listen` reads its outcome
        _LOG.debug("a child had exited before it got the command %s", command)


def _kill(process: subprocess.Popen[str], commands: IO[str]) -> None:
    """Tell the child to close its sessions and exit. If it has not exited after `KILL_DELAY_S`, kill it.

    The child cannot read the command while its procedure blocks the interpreter.
    """

    def kill() -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    _write_command(commands, {"terminate": True})
    timer = threading.Timer(KILL_DELAY_S, kill)
    timer.daemon = True
    timer.start()


def _listen(instance: Instance, spec: TaskSpec, reports: Iterable[str]) -> Outcome | None:
    """Handle the child's reports until it exits. Return the outcome, or None if it reported none."""
    outcome, last_call = None, ""
    for line in reports:
        report = json.loads(line)
        if "log" in report:
            _LOG.log(report["level"], "%s", report["log"], extra=log_fields(spec))
        if "took" in report:
            instance.poison.note_unknown_outcome(report["took"], report["queues"])
        if "call" in report:
            last_call = report["call"]
            metrics.INVOKED.inc(last_call == "begins")
        if "outcome" in report:
            outcome = Outcome(report["outcome"])
    if outcome is None or (outcome is Outcome.ABORTED and last_call == "raises"):
        metrics.ACTIVATION_ERRORS.inc()
    return outcome


# ---------------------------------------------------------------- in the child


class _ReportingDetector(PoisonDetector):
    """A detector that only reports received transactions. The parent finds out whether they were rolled back."""

    def __init__(self, report: SendReport) -> None:
        self._report = report

    @override
    def note_receive(self, transaction: int, queue_id: int) -> None:
        self._report(took=transaction, queues=[queue_id])

    @override
    def note_unknown_outcome(self, transaction: int, queues: Iterable[int]) -> None:
        self._report(took=transaction, queues=list(queues))

    @override
    def note_commit(self, queues: Iterable[int]) -> None: ...

    @override
    def count_rollback(self, connection: Any, queues: Iterable[int]) -> None: ...

    @override
    def note_deferred_commit(self, connection: Any, received_from: set[tuple[int, int]]) -> None: ...

    @override
    def confirm_commit(self, connection: Any) -> None: ...

    @override
    def note_unknown_commit(self, connection: Any) -> None: ...

    @override
    def forget_commit(self, connection: Any) -> bool:
        return False

    @override
    def resolve_if_due(self, queue_id: int) -> None: ...

    @override
    def resolve_outcomes(self, connection: Any) -> None: ...


class _ReportingHandler(logging.Handler):
    """A handler that sends log records to the parent."""

    def __init__(self, report: SendReport) -> None:
        super().__init__()
        self._report = report

    @override
    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._report(log=self.format(record), level=record.levelno)
        except Exception:  # such as wrong arguments for the format; an error of logging must not fail the procedure
            self.handleError(record)


def main(descriptor: int) -> None:
    """Read one task from standard input and run it. `descriptor` is the pipe for reports."""
    lock = threading.Lock()
    with os.fdopen(descriptor, "w") as pipe:

        def report(**fields: object) -> None:
            with lock:
                pipe.write(json.dumps(fields) + "\n")
                pipe.flush()

        logging.basicConfig(handlers=[_ReportingHandler(report)], level=logging.WARNING, force=True)
        logging.getLogger("servicebroker").setLevel(logging.INFO)
        task = json.loads(sys.stdin.readline())
        stop, is_over = StopSignal(), threading.Event()
        threading.Thread(target=_follow_commands, args=(stop, is_over), daemon=True).start()
        report(outcome=_run(task["url"], task["keys"], TaskSpec(*task["spec"]), task["source"], stop, report))
        is_over.set()


def _run(url: str, keys: str | None, spec: TaskSpec, source: str, stop: StopSignal, report: SendReport) -> Outcome:
    """Load the application from `source`, find the procedure, and run the task."""
    load([source])
    with open_instance(url, upkeep=None, keys=keys) as instance:
        instance.poison = _ReportingDetector(report)
        database, *rest = names.name_parts("procedure", spec.procedure, 3)
        name = names.bracketed(*rest)
        procedure = find_registered(instance.database(database), name)
        if procedure is None:
            report(log=str(BrokerError(9614, spec.queue)), level=logging.ERROR)
            return Outcome.NOT_STARTED
        coroutines = CoroutineRunner(instance)
        with capture_stdout():
            outcome = run_task(instance, spec, _ReportingProcedure(procedure, report), stop, coroutines)
        coroutines.close()
        return outcome


class _ReportingProcedure(NamedTuple):
    """A procedure whose calls and exceptions are reported to the parent."""

    procedure: PythonProcedure
    report: SendReport

    @property
    def worker(self) -> Worker:
        return self.procedure.worker

    def __call__(self, call: Call) -> None:
        self.report(call="begins")
        try:
            self.procedure(call)
        except Exception:
            self.report(call="raises")
            raise


def _follow_commands(stop: StopSignal, is_over: threading.Event) -> None:
    """Execute the parent's commands: stop after the call in progress, or exit. Exit also if the parent has exited."""
    for line in sys.stdin:
        command = json.loads(line)
        if "terminate" in command:
            break
        stop.request_stop(command["stop"])
    if not is_over.is_set():
        stop.terminate()
        os.killpg(0, signal.SIGKILL)  # also the processes that the procedure has started


if __name__ == "__main__":
    main(int(sys.argv[1]))
