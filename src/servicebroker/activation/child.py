"""Tasks in processes of their own: a crash of the procedure ends that process, and its transaction is undone.

The parent writes what to do to the child's standard input, and keeps it open: a child whose parent has gone ends at
once. The child reports on a pipe: what is to be logged, which transactions have received (the parent counts their
rollbacks, since a process that was killed cannot), and how the task has ended.
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

from servicebroker.activation.loop import AsyncTasks
from servicebroker.activation.order import Order
from servicebroker.activation.output import captured
from servicebroker.activation.procedures import Call, PythonProcedure, Worker, load, registered
from servicebroker.activation.stop import Ending, Stop
from servicebroker.activation.task import Outcome, of, run_task, say_not_started
from servicebroker.api.instance import Instance
from servicebroker.api.poison import PoisonDetector
from servicebroker.api.shared.open import open_instance
from servicebroker.broker import metrics
from servicebroker.model import names
from servicebroker.model.errors import BrokerError

_LOG = logging.getLogger("servicebroker.activation")

CUT = 0.5  # seconds that a process has to cut what it does

Report = Callable[..., None]


# ---------------------------------------------------------------- in the parent


def run_in_process(instance: Instance, order: Order, procedure: PythonProcedure, stop: Stop) -> Outcome:
    """Run a task in a new process, and wait for its end."""
    try:
        process, reports = _start()
    except OSError as problem:  # as where a user may have no more processes, or this one no more files
        say_not_started(order, problem)
        return Outcome.NOT_STARTED
    with reports:
        assert process.stdin is not None
        with process.stdin as orders:
            folder = instance.keys.folder
            keys = None if folder is None else str(folder.path)
            _tell(orders, {"url": instance.url, "keys": keys, "order": order, "source": procedure.source})
            stop.ends(Ending(lambda reason: _tell(orders, {"stop": reason}), lambda: _kill(process, orders)))
            outcome = _listen(instance, order, reports)
        process.wait()
    with instance.connection() as connection:
        instance.poison.judge(connection)
    if outcome is None:
        text = f"its process ended with code {process.returncode}"
        _LOG.error("%s", BrokerError(9724, order.procedure, order.queue, text), extra=of(order))
        _LOG.error("%s", BrokerError(28088, 0, 1), extra=of(order))
    return outcome or Outcome.DIED


def _start() -> tuple[subprocess.Popen[str], IO[str]]:
    """Start a process, with the pipe that it reports on."""
    reading, writing = os.pipe()
    reports = os.fdopen(reading)
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "servicebroker.activation.child", str(writing)],
            stdin=subprocess.PIPE,
            pass_fds=[writing],
            start_new_session=True,  # Ctrl-C is for the parent, which lets it finish
            text=True,
        )
    except BaseException:
        reports.close()
        raise
    finally:
        os.close(writing)
    return process, reports


def _tell(orders: IO[str], what: object) -> None:
    try:
        orders.write(json.dumps(what) + "\n")
        orders.flush()
    except (OSError, ValueError):  # the child has gone
        _LOG.debug("a child has gone before it was told %s", what)


def _kill(process: subprocess.Popen[str], orders: IO[str]) -> None:
    """Have it cut its sessions and die; where its procedure lets nothing else run, it dies with them open."""

    def kill() -> None:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)

    _tell(orders, {"cut": True})
    later = threading.Timer(CUT, kill)
    later.daemon = True
    later.start()


def _listen(instance: Instance, order: Order, reports: Iterable[str]) -> Outcome | None:
    outcome, last_call = None, ""
    for line in reports:
        report = json.loads(line)
        if "log" in report:
            _LOG.log(report["level"], "%s", report["log"], extra=of(order))
        if "took" in report:
            instance.poison.received(report["took"], report["queues"])
        if "call" in report:
            last_call = report["call"]
            metrics.INVOKED.inc(last_call == "begins")
        if "outcome" in report:
            outcome = Outcome(report["outcome"])
    if outcome is None or (outcome is Outcome.ABORTED and last_call == "raises"):
        metrics.ACTIVATION_ERRORS.inc()
    return outcome


# ---------------------------------------------------------------- in the child


class _Reported(PoisonDetector):
    """Counts nothing: the parent is told which transactions have received, and asks how they have ended."""

    def __init__(self, report: Report) -> None:
        self._report = report

    def took(self, transaction: int, queue_id: int) -> None:
        self._report(took=transaction, queues=[queue_id])

    def received(self, transaction: int, queues: Iterable[int]) -> None:
        self._report(took=transaction, queues=list(queues))

    def committed(self, queues: Iterable[int]) -> None: ...

    def rolled_back(self, connection: Any, queues: Iterable[int]) -> None: ...

    def travels(self, connection: Any, taken: set[tuple[int, int]]) -> None: ...

    def arrived(self, connection: Any) -> None: ...

    def unanswered(self, connection: Any) -> None: ...

    def dropped(self, connection: Any) -> bool:
        return False

    def look(self, queue_id: int) -> None: ...

    def judge(self, connection: Any) -> None: ...


class _Reporter(logging.Handler):
    def __init__(self, report: Report) -> None:
        super().__init__()
        self._report = report

    def emit(self, record: logging.LogRecord) -> None:
        try:
            self._report(log=self.format(record), level=record.levelno)
        except Exception:  # such as values that do not fit the text: no reason for the procedure to end
            self.handleError(record)


def main(descriptor: int) -> None:
    """Do what standard input says, once."""
    lock = threading.Lock()
    with os.fdopen(descriptor, "w") as pipe:

        def report(**what: object) -> None:
            with lock:
                pipe.write(json.dumps(what) + "\n")
                pipe.flush()

        logging.basicConfig(handlers=[_Reporter(report)], level=logging.WARNING, force=True)
        logging.getLogger("servicebroker").setLevel(logging.INFO)
        given = json.loads(sys.stdin.readline())
        stop, over = Stop(), threading.Event()
        threading.Thread(target=_obey, args=(stop, over), daemon=True).start()
        report(outcome=_run(given["url"], given["keys"], Order(*given["order"]), given["source"], stop, report))
        over.set()


def _run(url: str, keys: str | None, order: Order, source: str, stop: Stop, report: Report) -> Outcome:
    load([source])
    with open_instance(url, upkeep=None, keys=keys) as instance:
        instance.poison = _Reported(report)
        database, *rest = names.name_parts("procedure", order.procedure, 3)
        found = registered(instance.database(database), ".".join(f"[{part.replace(']', ']]')}]" for part in rest))
        if found is None:
            report(log=str(BrokerError(9614, order.queue)), level=logging.ERROR)
            return Outcome.NOT_STARTED
        coroutines = AsyncTasks(instance)
        with captured():
            outcome = run_task(instance, order, _Told(found, report), stop, coroutines)
        coroutines.close()
        return outcome


class _Told(NamedTuple):
    """A procedure; the parent is told of each call, and when one raises."""

    procedure: PythonProcedure
    report: Report

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


def _obey(stop: Stop, over: threading.Event) -> None:
    """Hear when to stop, and when to end at once; the end of the input is the end of the parent."""
    for line in sys.stdin:
        order = json.loads(line)
        if "cut" in order:
            break
        stop.ask(order["stop"])
    if not over.is_set():
        stop.cut()
        os.killpg(0, signal.SIGKILL)  # and what the procedure has started


if __name__ == "__main__":
    main(int(sys.argv[1]))
