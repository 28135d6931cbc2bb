# Made from aio/working.py by tools/make_sync.py: change that file, then run `make sync`.
"""Workers: readers that call handlers until they are stopped. An exception of a handler does not end them."""

from __future__ import annotations

import logging
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import groupby
from types import TracebackType
from typing import TYPE_CHECKING

import psycopg

from servicebroker.api.failure_policy import FailureHandler
from servicebroker.api.processing import process
from servicebroker.api.shared.rate_limit import RateLimit
from servicebroker.api.throttle import limit_of, throttle_of
from servicebroker.api.transaction import Transaction
from servicebroker.model.arguments import check_count
from servicebroker.model.errors import BrokerError, ServiceBrokerError
from servicebroker.model.handlers.schedules import is_of_schedule
from servicebroker.model.messages import Message, read_error
from servicebroker.model.poison import EndWithError, Failure, Ignore, Reply, Retry, SetAside, Verdict, checked_verdict
from servicebroker.model.reporting import report
from servicebroker.model.wording import counted, describe_exception, short_repr
from servicebroker.model.workers import Worker
from servicebroker.operations.receive import Receive
from servicebroker.operations.schedules import KeepSchedule, TakeTurn
from servicebroker.store.concurrency import IS_ASYNC, Background, Event, StopDetector

if TYPE_CHECKING:
    from servicebroker.api.database import Database

_IDLE_WAIT_S = 10.0  # `process` returns after so long without a message; it notices a stop within a second
_STOP_TIMEOUT_S = 5.0  # the time for a cancelled reader to end
_MIN_PAUSE_S, _MAX_PAUSE_S = 1.0, 30.0  # the pauses after a failure outside of handlers; each is twice the one before

_ENDED_ERRORS = {8426, 8427}  # errors of END CONVERSATION if the conversation has ended on this side
_OWN_PREFIX = "servicebroker."

_LOG = logging.getLogger("servicebroker.worker")


@contextmanager
def working(database: Database, workers: Sequence[Worker], concurrency: int) -> Iterator[None]:
    """Implement `Database.working`."""
    check_count("concurrency", concurrency)
    for worker in workers:
        if not isinstance(worker, Worker):
            raise BrokerError(402, "worker", short_repr(worker), "a servicebroker.Worker")
        worker.check(is_async=IS_ASYNC)
        queue = database._find(worker.queue)
        worker.check_handles(database._do(database.engine.find_expected_types(queue.queue_id)))
    for worker in workers:  # after all checks: a refused start stores no schedule
        for name, schedule in worker.schedules.items():
            with database.transaction() as transaction:
                transaction.run(KeepSchedule(worker.queue, name, schedule))
    stop_requested = Event()
    limits = [limit_of(worker) for worker in workers]
    readers = [
        Background(
            partial(_read, database, worker, stop_requested, limit),
            f"servicebroker worker of {worker.queue}",
            partial(_is_replaced, worker, stop_requested),
        )
        for worker, limit in zip(workers, limits, strict=True)
        for _ in range(_count_readers(worker, concurrency))
    ]
    try:
        yield
    finally:
        stop_requested.set()
        try:
            for reader in readers:
                reader.join()
        finally:  # the task that waits here may be cancelled itself
            for reader in readers:
                reader.stop(_STOP_TIMEOUT_S)


def _count_readers(worker: Worker, concurrency: int) -> int:
    """Return the number of readers of a worker in this process, at most its global limit of slots."""
    wanted = worker.concurrency or concurrency
    return min(wanted, worker.global_concurrency or wanted)


def _is_replaced(worker: Worker, stop_requested: Event) -> bool:
    """Return whether a reader that was killed or cancelled is restarted: True, unless the worker is stopping."""
    if stop_requested.is_set():
        return False
    report(
        _LOG,
        logging.ERROR,
        "A reader of the worker of %s was killed and is restarted.",
        worker.queue,
    )
    return True


def _read(database: Database, worker: Worker, stop_requested: Event, limit: RateLimit | None) -> None:
    """Process messages until the worker stops. If `process` fails, log the error, pause and begin again."""
    pause = _MIN_PAUSE_S
    failure_handler = FailureHandler(
        database, worker.queue, partial(_judge, worker), exits=False, answers_ends=worker.answers_ends
    )
    operation = Receive.of_worker(worker, _IDLE_WAIT_S)
    stop = StopDetector()
    while not stop_requested.is_set():
        began = time.monotonic()
        try:
            process(
                database,
                operation,
                partial(_handle, worker),
                stopping=stop_requested.is_set,
                failure_handler=failure_handler,
                throttle=throttle_of(database, worker, limit, stop_requested),
            )
            pause = _MIN_PAUSE_S
        except BaseException as problem:
            if stop.is_stop(problem):
                raise
            if time.monotonic() - began > _MAX_PAUSE_S:
                pause = _MIN_PAUSE_S
            expected = isinstance(problem, ServiceBrokerError | psycopg.Error)
            text_format = "The worker of %s continues in %g seconds: %s"
            text = str(problem) if expected else describe_exception(problem)
            report(_LOG, logging.ERROR, text_format, worker.queue, pause, text, exc_info=None if expected else problem)
            stop_requested.wait(pause)
            pause = min(2 * pause, _MAX_PAUSE_S)


def _handle(worker: Worker, transaction: Transaction, messages: list[Message]) -> None:
    """Call the handlers in the order of the messages. Messages of a conversation that was ended are skipped."""
    if is_of_schedule(messages[0]):  # its group has no other conversation
        for message in messages:
            _fire(worker, transaction, message)
        return
    ended = set()
    for handler, run in groupby(messages, worker.handler_of):
        remaining = [message for message in run if message.conversation_handle not in ended]
        for argument in [remaining] if worker.batch and remaining else remaining:
            if handler is not None:
                handler(transaction, argument)
        for message in remaining:
            if message.is_end_dialog or message.is_error:
                ended.add(message.conversation_handle)
                _end(transaction, message)


def _fire(worker: Worker, transaction: Transaction, message: Message) -> None:
    """Call the handler of a schedule for its due time."""
    firing = transaction.run(TakeTurn.of(message))
    if firing is not None and (argument := firing.given(message)) is not None:
        worker.handler_of_schedule(firing.name)(transaction, argument if worker.batch is None else [argument])


def _end(transaction: Transaction, message: Message) -> None:
    """End this side of a conversation that the other side or the broker has ended."""
    if message.is_error:
        code, description = read_error(message.message_body)
        text_format = "Conversation %s has failed with %d: %s"
        report(_LOG, logging.WARNING, text_format, message.conversation_handle, code, description)
    try:
        transaction.end_conversation(message.conversation_handle)
    except BrokerError as refused:
        if refused.number not in _ENDED_ERRORS:  # the handler may have ended it
            raise


def _judge(worker: Worker, failure: Failure) -> Verdict:
    """Return the verdict of the worker's policy, and log it. Further retries are logged without a traceback."""
    verdict = checked_verdict(worker.poison(failure))
    is_further_retry = isinstance(verdict, Retry) and failure.count > 1
    report(
        _LOG,
        logging.WARNING,
        "%s: message %d of conversation %s (%s) has failed %s; %s. %s",
        worker.queue,
        failure.message.message_sequence_number,
        failure.message.conversation_handle,
        failure.message.message_type_name,
        counted(failure.count, "time"),
        _next_step(verdict),
        describe_exception(failure.error),
        exc_info=None if is_further_retry else _without_own_frames(failure.error),
    )
    return verdict


def _next_step(verdict: Verdict) -> str:
    match verdict:
        case Retry(after):
            return f"it is tried again {f'in {after:g} s' if after else 'at once'}"
        case EndWithError(code):
            return f"its conversation is ended with error {code}"
        case SetAside():
            return "it becomes a dead letter"
        case Ignore():
            return "it is ignored"
        case Reply(message_type):
            return f"it is answered with {message_type}"


def _without_own_frames(error: Exception) -> Exception:
    """Remove the frames of this package before the handler from the error's traceback."""
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None and _is_own_frame(trace):
        trace = trace.tb_next
    return error.with_traceback(trace)


def _is_own_frame(trace: TracebackType) -> bool:
    name: str = trace.tb_frame.f_globals.get("__name__", "")  # missing if `exec` has made the function
    return name.startswith(_OWN_PREFIX)
