"""Poison messages as plain values: when a queue is switched off, and the verdicts of policies on failed messages.

Five rollbacks in a row of transactions that received from a queue switch it off. The caller reports the transactions
that have ended, and how.

The rules: docs/reference/rules.md#automatic-poison-detection.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple, TypeAlias
from uuid import UUID

from servicebroker.model.arguments import (
    MAXIMUM_DESCRIPTION,
    OMITTED,
    Body,
    Omitted,
    check_count,
    check_error_code,
    check_wait,
)
from servicebroker.model.errors import BodyError, BrokerError
from servicebroker.model.messages import Message
from servicebroker.model.wording import counted, safe_text, short_repr

MAX_ROLLBACKS = 5  # rollbacks
MAX_BACKOFF_S = 60.0  # the longest pause of the default backoff
UNANSWERABLE = {8426, 8429}  # errors of SEND: no such conversation; the other side has ended it, or it has failed
_MAX_PENDING = 10_000  # transactions
_MAX_DOUBLINGS = 60  # the most doublings of a pause; more would only be a larger number
MAXIMUM_PAUSE_S = 3_155_760_000.0  # the longest pause between two tries: a hundred years


class Rollbacks:
    """The rollbacks of each queue, and receiving transactions whose outcome is not known yet."""

    def __init__(self) -> None:
        self._counts: dict[int, int] = {}
        self._pending: dict[int, set[int]] = {}

    def note_unknown_outcome(self, transaction: int, queues: Iterable[int]) -> None:
        """Note a transaction that has received from these queues; its outcome is looked up later."""
        self._pending.setdefault(transaction, set()).update(queues)
        while len(self._pending) > _MAX_PENDING:
            del self._pending[next(iter(self._pending))]

    def note_commit(self, queues: Iterable[int]) -> None:
        """Reset the counts of queues from which a committed transaction received."""
        for queue in queues:
            self._counts.pop(queue, None)

    def count_rollback(self, queues: Iterable[int]) -> list[int]:
        """Count a rolled-back transaction that received from these queues. Returns the queues to switch off."""
        reached = []
        for queue in queues:
            self._counts[queue] = self._counts.get(queue, 0) + 1
            if self._counts[queue] >= MAX_ROLLBACKS:
                del self._counts[queue]  # the count restarts when the queue is switched on
                reached.append(queue)
        return reached

    def is_due(self, queue: int) -> bool:
        """Check whether the queue may have reached the limit, so that outcomes of pending transactions are needed."""
        if not self._pending:
            return False
        return self._counts.get(queue, 0) + sum(queue in queues for queues in self._pending.values()) >= MAX_ROLLBACKS

    def pending(self) -> list[int]:
        """Return the transactions whose outcome is not known."""
        return list(self._pending)

    def count_outcomes(self, outcomes: Mapping[int, str | None]) -> list[int]:
        """Count outcomes of transactions: 'committed', 'aborted', 'in progress', or None if too old to know.

        Returns the queues to switch off.
        """
        reached: list[int] = []
        for transaction in sorted(outcomes):
            if outcomes[transaction] == "in progress":
                continue
            queues = self._pending.pop(transaction, set())
            if outcomes[transaction] == "committed":
                self.note_commit(queues)
            elif outcomes[transaction] == "aborted":
                reached += self.count_rollback(queues)
        return reached


def reason(queue: str) -> str:
    """Return the text of the event of a queue that was switched off."""
    return f"The queue '{queue}' was switched off after five rollbacks of transactions that received."


# ------------------------- programmatic handling (docs/reference/rules.md#programmatic-poison-handling)


@dataclass(frozen=True)
class Failure:
    """A message whose processing has failed.

    Attributes:
        message: as RECEIVE returned it.
        error: the exception of the procedure. One that is not an `Exception`, such as KeyboardInterrupt, is the
            `__cause__` of an InstanceError here.
        count: the number of failures of this message in a row, with this one.
        first_failed_at: the time of the first failure (UTC).
        first_error: the text of the first failure.
        now: the time of this failure (UTC).
        is_permanent: True if no retry can succeed: the body cannot be decoded, or the conversation is over (8429).
    """

    message: Message
    error: Exception
    count: int
    first_failed_at: datetime
    first_error: str
    now: datetime

    @property
    def is_permanent(self) -> bool:
        """True if no retry can succeed: the body cannot be decoded, or the conversation is over (8426, 8429)."""
        error = self.error
        return isinstance(error, BodyError) or (isinstance(error, BrokerError) and error.number in UNANSWERABLE)


@dataclass(frozen=True)
class Retry:
    """The decision to put the message back. No reader receives from its conversation group for `after` seconds.

    Raises:
        BrokerError: 402 `after` is not a number of seconds from 0 to a hundred years.
    """

    after: float = 0.0

    def __post_init__(self) -> None:
        is_number = isinstance(self.after, int | float) and not isinstance(self.after, bool)
        if not is_number or not 0 <= self.after < MAXIMUM_PAUSE_S:
            raise BrokerError(402, "Retry", short_repr(self.after), "a number of seconds, 0 or more")


@dataclass(frozen=True)
class EndWithError:
    """The decision END CONVERSATION WITH ERROR: the other side gets the Error, and the queued messages are removed.

    A description that is not a str, such as the exception itself, becomes its text. A long one is cut to 3,000
    characters.

    Raises:
        BrokerError: 402 the code is not a positive int, 8422 there is no description.
    """

    code: int = 500
    description: str = "Unable to process message."

    def __post_init__(self) -> None:
        if self.description is None:
            raise BrokerError(8422)
        check_error_code(self.code)
        object.__setattr__(self, "description", safe_text(self.description)[:MAXIMUM_DESCRIPTION])


@dataclass(frozen=True)
class SetAside:
    """The decision to keep the message as a dead letter for an operator. The conversation continues."""


@dataclass(frozen=True)
class Ignore:
    """The decision to commit RECEIVE and do nothing with the message."""


@dataclass(frozen=True)
class Reply:
    """The decision to commit RECEIVE and send this message back. The conversation continues.

    If the conversation has ended or failed, nothing is sent.

    Raises:
        BrokerError: 402 the message type is not a str.
    """

    message_type: str
    body: Body | Omitted = OMITTED

    def __post_init__(self) -> None:
        if not isinstance(self.message_type, str):
            raise BrokerError(402, "Reply", short_repr(self.message_type), "the name of a message type")


class SetAsideMessage(NamedTuple):
    """A dead letter for an operator. Times are UTC.

    `conversation_handle` is the receiver's. `far_service` of the broker `far_broker_instance` sent the message;
    `far_handle` is its handle, None if the sender is in another instance or its side of the conversation is gone.
    """

    set_aside_id: int
    queue: str
    conversation_handle: UUID
    conversation_group_id: UUID
    message_sequence_number: int
    service_name: str
    service_contract_name: str
    message_type_name: str
    validation: str
    message_body: bytes | None
    message_enqueue_time: datetime
    far_service: str | None
    far_broker_instance: str | None
    failures: int
    first_failed_at: datetime
    set_aside_at: datetime
    error: str
    traceback: str
    far_handle: UUID | None = None


def describe_dead_letter(
    number: int, place: str, sequence_number: int, message_type: str, failures: int, error: str
) -> str:
    """Return in a sentence why a message of a conversation is a dead letter. `place`: its queue."""
    return (
        f"Message {sequence_number} ({message_type}) is dead letter {number} of {place}, since it failed "
        f"{counted(failures, 'time')}: {error}"
    )


def advise_replay(number: int, database: str) -> str:
    """Return the advice about a dead letter: the command that replays it."""
    return f"Mend the cause, then: servicebroker dead-letters replay {number} --database {database}"


class DeadLetterGroup(NamedTuple):
    """Dead letters of one queue and one message type that failed with one kind of error. Times are UTC."""

    queue: str
    message_type_name: str
    error_kind: str
    messages: int
    first_set_aside_at: datetime
    last_set_aside_at: datetime


VARIES_IN_ERRORS = r"""(?<!\w)'[^']*'|"[^"]*"|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f-]{22}|0x[0-9a-f]+|\d+"""
"""Quoted text, identifiers and numbers, which differ between errors of one kind. PostgreSQL reads it the same way."""


def error_kind(error: str) -> str:
    """Return the kind of an error: its first line, with a star for each quoted text, identifier and number."""
    return re.sub(VARIES_IN_ERRORS, "*", error.partition("\n")[0])


Verdict: TypeAlias = Retry | EndWithError | SetAside | Ignore | Reply
"""The decision of a retry policy: `Retry`, `EndWithError`, `SetAside`, `Ignore` or `Reply`."""
Policy: TypeAlias = Callable[[Failure], Verdict]
"""A retry policy: a function of a `Failure` that returns a `Verdict`. If it raises, the default policy decides."""


def give_up_after(
    failures: int = 3, verdict: Verdict | None = None, *, pause: float = 0.0, jitter: float = 0.0
) -> Policy:
    """Return the retry policy that retries a message and, after more than `failures` failures, returns `verdict`.

    The default verdict is END CONVERSATION WITH ERROR 500. The first retry comes after `pause` seconds, and each pause
    is twice the one before, at most a minute. With 0 all retries are immediate. A failure that no retry can cure
    (`Failure.is_permanent`) gets the verdict at once.

    With `jitter` each pause is shortened by up to this share of it (0 to 1), differently for each message and try. So
    messages that failed together are not retried together.
    """
    check_count("failures", failures)
    check_wait(pause)
    if isinstance(jitter, bool) or not isinstance(jitter, int | float) or not 0 <= jitter <= 1:
        raise BrokerError(402, "jitter", short_repr(jitter), "a share of the pause, from 0 to 1")
    last = EndWithError() if verdict is None else checked_verdict(verdict)

    def judge(failure: Failure) -> Verdict:
        if failure.count > failures or failure.is_permanent:
            return last
        after = min(pause * 2.0 ** min(failure.count - 1, _MAX_DOUBLINGS), max(pause, MAX_BACKOFF_S))
        return Retry(after * (1 - jitter * _spread(failure)) if jitter else after)

    return judge


def _spread(failure: Failure) -> float:
    """Return a number from 0 to 1 that differs for each message and try. It is a hash, so that tests repeat it."""
    message = failure.message
    text = f"{message.conversation_handle} {message.message_sequence_number} {failure.count}"
    return zlib.crc32(text.encode()) / 2**32


def checked_verdict(verdict: object) -> Verdict:
    """Check and return the decision of a retry policy.

    Raises:
        BrokerError: 402 the value is not a verdict.
    """
    if isinstance(verdict, Retry | EndWithError | SetAside | Ignore | Reply):
        return verdict
    raise BrokerError(402, "the verdict", short_repr(verdict), "Retry, EndWithError, SetAside, Ignore or Reply")
