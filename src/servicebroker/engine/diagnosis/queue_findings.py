"""Findings about databases, queues and the messages that wait for a service."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from datetime import datetime, timedelta

from servicebroker.engine.conversation.requests import LateAnswerCount
from servicebroker.engine.delivery.opening import NO_TRANSPORT
from servicebroker.engine.diagnosis.fact_types import LONG_WAIT, Facts, QueueFacts, WaitFacts
from servicebroker.engine.diagnosis.findings import NO_REASON, UNEXPLAINED_WAIT, Finding, Remedy, Severity, duration
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT, DeadLettersOfQueue
from servicebroker.engine.diagnosis.worker_limits import WorkerLimits
from servicebroker.model.poison import error_kind
from servicebroker.model.remedies import after_status
from servicebroker.model.wording import about_instance, counted

_WITHOUT_RECEIVE = ("NOTIFIED", "INACTIVE")  # monitor states: the last reader has not executed RECEIVE
_RESTART_ADVICE = " Then start it again: ALTER QUEUE ... ACTIVATION (STATUS = OFF), and ON."


def judge_queue(queue: QueueFacts, now: datetime) -> Iterator[Finding]:
    """Return the findings about one queue: OFF, activation, failing messages, messages that are not received."""
    subject = f"queue {queue.name}"
    if not queue.is_on:
        yield Finding(
            subject,
            f"It is OFF, with {counted(queue.messages, 'message')}: five rollbacks in a row, or ALTER QUEUE.",
            "servicebroker poison inspect shows the message; poison end ends its conversation, poison retry goes on.",
            acts=(Remedy("switch-on", queue.name),),
        )
    if queue.is_activated and not queue.procedure:
        yield Finding(subject, "Its activation is on without a procedure.", "ALTER QUEUE ... PROCEDURE_NAME = ...")
    elif queue.is_activated and queue.max_readers == 0:
        yield Finding(subject, "Its activation is on with MAX_QUEUE_READERS = 0.", "Raise MAX_QUEUE_READERS.")
    elif queue.is_activated and queue.is_on and not queue.hosted:
        yield Finding(
            subject,
            f"Nobody runs its activation procedure {queue.procedure}.",
            "Start servicebroker serve with the module of its procedures, or activate in your own process.",
        )
    elif queue.notifies and queue.is_on and not queue.hosted:
        yield Finding(
            subject,
            "Nobody sends its event notifications for QUEUE_ACTIVATION.",
            "Start servicebroker serve, or activate in your own process.",
        )
    if queue.limits is not None:
        yield from _limited_queue(queue, queue.limits, now)
    unread = list(_unread_messages(queue, now))
    yield from unread
    if queue.failing:
        next_try = (
            ("message has failed, and nobody tries it again.", "messages have failed, and nobody tries them again.")
            if unread and not queue.readers
            else ("message has failed and waits for its next try.", "messages have failed and wait for their next try.")
        )
        yield Finding(
            subject,
            counted(queue.failing, *next_try),
            "servicebroker poison list shows them and their errors; poison retry tries them now.",
            Severity.WARNING,
            (Remedy("retry", queue.name),),
        )


def _unread_messages(queue: QueueFacts, now: datetime) -> Iterator[Finding]:
    """Report messages that have waited for a while in a queue that is on, and why they are not received.

    A failed message that waits for its next try explains why a reader takes nothing, or why activation starts none. It
    does not explain why nobody reads the queue.
    """
    is_limited = queue.limits is not None and (queue.limits.are_slots_taken or queue.limits.is_rate_used(now))
    is_retrying = queue.failing and (queue.readers or queue.is_activated or queue.notifies)
    is_explained = queue.holders or queue.is_piped or queue.is_for_callers or is_limited or is_retrying
    if queue.is_on and not is_explained and queue.oldest is not None and now - queue.oldest > UNEXPLAINED_WAIT:
        yield from _unread(
            queue, f"{counted(queue.messages, 'message')}, the oldest for {duration(now - queue.oldest)}", now
        )


def _limited_queue(queue: QueueFacts, limits: WorkerLimits, now: datetime) -> Iterator[Finding]:
    """Report messages that wait because of a limit of all workers of the queue together."""
    if not queue.is_on or queue.oldest is None or now - queue.oldest < LONG_WAIT:
        return
    if limits.are_slots_taken:
        slots = counted(limits.slots or 0, "slot")
        reason = f"all {slots} of its workers (global_concurrency) are taken by {limits.holders}"
    elif limits.is_rate_used(now):
        reason = f"its workers receive at most {limits.rate} together (global_rate)"
    else:
        return
    yield Finding(
        f"queue {queue.name}",
        f"{counted(queue.messages, 'message waits', 'messages wait')}, the oldest for {duration(now - queue.oldest)}: "
        f"{reason}.",
        "Raise the limit in the code of the worker if that is too slow. servicebroker status shows its use.",
        Severity.NOTE,
    )


def _unread(queue: QueueFacts, waits: str, now: datetime) -> Iterator[Finding]:
    """Report why the messages of a queue are not received."""
    subject = f"queue {queue.name}"
    if queue.readers:
        yield Finding(
            subject,
            f"{counted(queue.readers, 'reader waits and takes', 'readers wait and take')} nothing of {waits}.",
            "Check whether that program hangs: waiting_readers has its session, pg_stat_activity its process.",
        )
    elif queue.notifies:
        yield Finding(
            subject,
            f"Nobody receives: {waits}.",
            "See whether the program that its event notifications start runs: servicebroker activator logs it.",
        )
    elif not queue.is_activated:
        yield Finding(
            subject,
            f"Nobody receives: {waits}.",
            "Start the program that reads it, or give the queue an activation procedure. If the program dies "
            "each time, a message may kill it: its log, or servicebroker poison inspect, shows which one.",
        )
    elif queue.tasks == 0 and queue.monitor in _WITHOUT_RECEIVE and queue.activated_at is not None:
        is_over = now - queue.activated_at > UNEXPLAINED_WAIT
        yield Finding(
            subject,
            f"Its procedure {queue.procedure} was started {duration(now - queue.activated_at)} ago, runs no more, and "
            f"has received nothing of {waits}.",
            f"See in the log of the process that starts it why that is so.{_RESTART_ADVICE if is_over else ''}",
            acts=(Remedy("restart-activation", queue.name),) if is_over else (),
        )


def _disabled_queue(name: str) -> Finding:
    return Finding(
        f"database {name}",
        "Its broker is disabled: messages from and to this database wait.",
        "Database.alter(enable_broker=True).",
        acts=(Remedy("enable-broker", name),),
    )


def judge_disabled(databases: Iterable[str]) -> Iterator[Finding]:
    """Report databases whose broker is disabled."""
    for name in databases:
        yield _disabled_queue(name)


def judge_dead_letters_of_queues(queues: Iterable[DeadLettersOfQueue], now: datetime) -> Iterator[Finding]:
    """Report dead letters: nothing processes them until an operator replays or discards them."""
    for of_queue in queues:
        letters = counted(of_queue.letters, "dead letter")
        yield Finding(
            f"queue {of_queue.database}.{of_queue.queue}",
            f"{f'At least {letters}' if of_queue.letters >= COUNT_LIMIT else letters}, "
            f"the newest since {duration(max(now - of_queue.newest, timedelta()))}: {error_kind(of_queue.error)}",
            f"servicebroker dead-letters list --database {of_queue.database} shows them; mend the cause, then "
            "dead-letters replay or discard.",
            Severity.WARNING,
        )


def judge_waits(facts: Facts) -> Iterator[Finding]:
    """Report messages that wait for a service."""
    for wait in facts.waits:
        if not _is_on_its_way(wait, facts):
            yield _waiting(wait)


def judge_late(late: Iterable[LateAnswerCount]) -> Iterator[Finding]:
    """Report late answers to requests that no program handles or drops."""
    for answers in late:
        yield _late(answers)


def _is_on_its_way(wait: WaitFacts, facts: Facts) -> bool:
    """Check whether messages have waited only briefly, and without a reason. NO_TRANSPORT is what SEND writes."""
    is_unexplained = not wait.status or (wait.status == NO_TRANSPORT and facts.daemon is not None)
    return is_unexplained and facts.now - wait.oldest <= UNEXPLAINED_WAIT


def _waiting(wait: WaitFacts) -> Finding:
    problem, advice = about_instance(wait.status or NO_REASON), after_status(wait.status)
    acts: tuple[Remedy, ...] = ()
    if wait.similar is not None and wait.example is not None:
        handle, database = wait.example
        problem = f"{problem} Did you mean {wait.similar}?"
        end = f"servicebroker end {handle} --database {database} --cleanup"
        advice = f"{advice} If the name is wrong, remove each: {end}."
        acts = (Remedy("remove-conversation", str(handle), database),)
    return Finding(
        f"service {wait.to_service}",
        f"{counted(wait.messages, 'message to it waits', 'messages to it wait')}, "
        f"the oldest since {wait.oldest:%Y-%m-%d %H:%M:%S} UTC: {problem}",
        advice,
        acts=acts,
    )


def _late(late: LateAnswerCount) -> Finding:
    answers = counted(late.answers, "late answer to a request", "late answers to requests")
    if late.are_dropped:
        return Finding(
            f"queue {late.queue}",
            f"{answers} should have been dropped within half a minute.",
            "Keep a program of the owner's open with its background thread, or servicebroker serve. If one runs, its "
            "log has the reason.",
            Severity.WARNING,
        )
    return Finding(
        f"queue {late.queue}",
        f"Nobody handles {answers}.",
        "Run a program that calls Database.process_late_answers now and then.",
        Severity.WARNING,
    )
