"""Requests: conversations of one message and its answer. How a request is recognized, and how it fails.

**The problem.** A caller gives up or crashes, and the answer still arrives. Some program has to take it, and to know
that it belongs to a request: the queue may also hold other conversations.

**The identifier.** The conversation group of a request is a UUID of version 8 (RFC 9562). Three bytes give the
treatment of a late answer. 36 bits are the time, in seconds, until which the answer is reserved for its
caller. Random UUIDs have version 4. PostgreSQL compares UUIDs byte by byte, so late requests are one index range.
"""

from __future__ import annotations

import math
from datetime import datetime
from enum import StrEnum
from uuid import UUID

from servicebroker.model.errors import ServiceBrokerError


class LateAnswerTreatment(StrEnum):
    """The treatment of an answer that arrives too late."""

    DROP = "drop"
    HANDLE = "handle"


_MARKS = {LateAnswerTreatment.DROP: 0x534244, LateAnswerTreatment.HANDLE: 0x534248}  # SBD and SBH in ASCII
_MARK_SHIFT, _HIGH_SHIFT, _VERSION_SHIFT, _LOW_SHIFT = 104, 80, 76, 64  # bits: the layout above
_LOW_BITS = 12  # the bits of the seconds that follow the version
_VARIANT_BITS = 0b10 << 62
_RANDOM_MASK = (1 << 62) - 1  # the random bits


class RequestError(ServiceBrokerError):
    """The other side has ended the conversation of a request with an error, or without an answer.

    Attributes:
        handle: the conversation, which has ended on this side too.
        code: as in END CONVERSATION WITH ERROR; below 0 if the broker ended it, 0 without an answer.
        description: the text of the error.
    """

    def __init__(self, handle: UUID, code: int, description: str) -> None:
        super().__init__(f"The request on conversation {handle} has failed with {code}: {description}")
        self.handle, self.code, self.description = handle, code, description


class RequestTimeout(ServiceBrokerError, TimeoutError):
    """No answer has arrived in time. The request stays open: the other side's work is not undone.

    Attributes:
        handle: the conversation. `wait_for_answer(handle)` continues to wait.
        reason: the reason why there is no answer, if this instance knows it.
    """

    def __init__(self, handle: UUID, seconds: float, reason: str) -> None:
        super().__init__(
            f"No answer has come on conversation {handle} within {seconds:g} s: {reason} "
            "To keep waiting, call wait_for_answer(handle)."
        )
        self.handle, self.reason = handle, reason


def request_group(until: datetime, late: LateAnswerTreatment, random: UUID) -> UUID:
    """Return the conversation group of a request. Its answer is reserved for the caller until the time `until`."""
    return _group(math.ceil(until.timestamp()), late, random.int & _RANDOM_MASK)


def late_groups(now: datetime, late: LateAnswerTreatment) -> tuple[UUID, UUID]:
    """Return the lowest and the highest group of requests whose time has passed.

    Other groups may lie between them: see `is_request`.
    """
    return _group(0, late, 0), _group(math.floor(now.timestamp()), late, _RANDOM_MASK)


def groups_of(late: LateAnswerTreatment) -> tuple[UUID, UUID]:
    """Return the lowest and the highest group of the requests whose late answers are treated so, as `late_groups`."""
    lowest = _MARKS[late] << _MARK_SHIFT
    return UUID(int=lowest), UUID(int=lowest + (1 << _MARK_SHIFT) - 1)


def is_request(group: UUID) -> bool:
    """Check whether a conversation group is that of a request."""
    return group.version == 8 and group.int >> _MARK_SHIFT in _MARKS.values()


def all_groups() -> tuple[UUID, UUID]:
    """Return the lowest and the highest group of requests; of a million random UUIDs, one may lie between them."""
    return UUID(int=min(_MARKS.values()) << _MARK_SHIFT), UUID(int=(max(_MARKS.values()) + 1 << _MARK_SHIFT) - 1)


def _group(seconds: int, late: LateAnswerTreatment, random: int) -> UUID:
    high, low = seconds >> _LOW_BITS, seconds & ((1 << _LOW_BITS) - 1)
    return UUID(
        int=_MARKS[late] << _MARK_SHIFT
        | high << _HIGH_SHIFT
        | 8 << _VERSION_SHIFT
        | low << _LOW_SHIFT
        | _VARIANT_BITS
        | random
    )
