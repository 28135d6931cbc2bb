"""SEND: one message, on one conversation or on several; or many messages of one type on one conversation."""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Sized
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, ClassVar, TypeVar, overload
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.arguments import (
    MAX_BODY_BYTES,
    OMITTED,
    check_handle,
    check_handles,
    due_time,
    stored_bodies,
    stored_body,
)
from servicebroker.model.bodies import encode_body, encoded_all
from servicebroker.model.conversation_events import ConversationEvent
from servicebroker.operations.operation import Operation
from servicebroker.overriding import override

Numbers = TypeVar("Numbers", int, list[int])


class _Delayable:
    """The delay of a SEND, by its fields `delay` and `at`."""

    __slots__ = ()

    delay: timedelta | float | None
    at: datetime | None

    @property
    def is_delayed(self) -> bool:
        """True if the statement has a delay, even one that has passed."""
        return self.delay is not None or self.at is not None

    def due(self, now: datetime) -> datetime | None:
        """Return the time until which the message is delayed; None without a delay.

        Raises:
            BrokerError: 402 an invalid delay.
        """
        return due_time(self.delay, self.at, now)

    def seconds_or_time(self, now: datetime) -> tuple[float | None, datetime | None]:
        """Return the delay as seconds or as a time, so that the server can apply its own clock.

        Raises:
            BrokerError: 402 an invalid delay.
        """
        self.due(now)
        delay = self.delay
        return delay.total_seconds() if isinstance(delay, timedelta) else delay, self.at


@dataclass(frozen=True, slots=True)
class Send(_Delayable, Operation[Numbers]):
    """SEND one message, and return its sequence number: 0, 1, 2 ... in each direction of a conversation.

    The message is sent when the transaction commits. In `pipeline()` the result is its position in the block instead.

    Args:
        handle: the conversation. For a list of handles, the message is sent on each of them, or on none if one is
            refused; the body is stored once, and the result is a list of numbers in the order of the handles.
        message_type: a message type that the contract allows for this side.
        body: bytes; a str, which is sent as UTF-8; or an object, if the message type has a `servicebroker.codec`. An
            omitted or empty body is received as None.
        delay: a timedelta or seconds. The message, and every later one of its conversation, waits as long in the
            transmission queue. Use another conversation for messages that must not wait.
        at: the time until which the message waits, with a time zone. A time in the past is not a delay.

    Raises:
        BodyError: the codec of the message type refuses the body.
        BrokerError: 8426 no such conversation, 8429 it has ended or failed, 8428 no such message type, 8431 the
            contract lacks it, 8432 and 8434 only the other side may send it, 8433 the body is None, 8459 the body is
            too large, 8494 no permission, 9618 this side's queue is disabled and has RETENTION, 8418 the handle is
            missing, 402 the list of handles is empty, has a duplicate, or more than 10,000 handles, or the delay ends
            after the conversation's lifetime.
    """

    permission: ClassVar[str] = "SEND"
    event_class: ClassVar[ConversationEvent | None] = ConversationEvent.SEND

    handle: UUID | Sequence[UUID]
    message_type: str = names.DEFAULT
    body: object = field(default=OMITTED, repr=False)
    _: KW_ONLY
    delay: timedelta | float | None = None
    at: datetime | None = None

    if TYPE_CHECKING:  # the result depends on the handle

        @overload
        def __init__(
            self: Send[int],
            handle: UUID,
            message_type: str = ...,
            body: object = ...,
            *,
            delay: timedelta | float | None = ...,
            at: datetime | None = ...,
        ) -> None: ...

        @overload
        def __init__(
            self: Send[list[int]],
            handle: Sequence[UUID],
            message_type: str = ...,
            body: object = ...,
            *,
            delay: timedelta | float | None = ...,
            at: datetime | None = ...,
        ) -> None: ...

        def __init__(
            self,
            handle: object,
            message_type: str = ...,
            body: object = ...,
            *,
            delay: timedelta | float | None = ...,
            at: datetime | None = ...,
        ) -> None: ...

    @property
    def is_single(self) -> bool:
        """True for one handle instead of a list. It may be None, which is refused later."""
        handle = self.handle
        return isinstance(handle, UUID) or handle is None

    @override
    @property
    def handles(self) -> Sequence[UUID]:
        """The conversations."""
        return [self.handle] if isinstance(self.handle, UUID) or self.handle is None else self.handle

    def content(self, maximum: int = MAX_BODY_BYTES) -> bytes | None:
        """Check the fields, and return the body to store. `maximum` is its largest size in bytes.

        Raises:
            BrokerError: 8418 and 402 the handle, 15151 and 402 the name, 8433, 8459 and 402 the body.
            BodyError: the codec of the message type refuses the body.
        """
        if not isinstance(self.handle, UUID):
            (check_handle if self.handle is None else check_handles)(self.handle)
        names.checked("message type", self.message_type)
        body = self.body
        return stored_body(body if type(body) is bytes else encode_body(self.message_type, body), maximum)


@dataclass(frozen=True, slots=True)
class SendBatch(_Delayable, Operation[int]):
    """SEND many messages of one type, in order, and return the first sequence number.

    One statement sends all messages, which is many times as fast as a call of `send` for each. If it raises, no message
    is sent.

    If the *receiver* refuses a body, the conversation fails, as with `send`: earlier messages are delivered, later ones
    are dropped.

    Args:
        handle: the conversation.
        message_type: a message type that the contract allows for this side.
        bodies: a body for each message, as for `send`.
        delay: the delay of all messages, as for `send`.
        at: as for `send`.

    Raises:
        BodyError: as `send`.
        BrokerError: as `send`.
    """

    permission: ClassVar[str] = "SEND"
    event_class: ClassVar[ConversationEvent | None] = ConversationEvent.SEND

    handle: UUID
    message_type: str
    bodies: Sequence[object] = field(repr=False)
    _: KW_ONLY
    delay: timedelta | float | None = None
    at: datetime | None = None

    def __post_init__(self) -> None:
        """Read an iterator once: the operation may be run again."""
        if isinstance(self.bodies, Iterator):
            object.__setattr__(self, "bodies", list(self.bodies))

    @override
    @property
    def handles(self) -> Sequence[UUID]:
        """The conversation."""
        return [self.handle]

    @override
    @property
    def messages(self) -> int:  # type: ignore[override] # of most operations it is a constant
        """The number of messages; 1 for `bodies` without a length, which is refused later."""
        return len(self.bodies) if isinstance(self.bodies, Sized) else 1

    def contents(self, maximum: int = MAX_BODY_BYTES) -> list[bytes | None]:
        """Check the fields, and return the bodies to store. `maximum` is the largest size of each in bytes.

        Raises:
            BrokerError: as `Send.content`; 402 `bodies` is not a list, or is empty.
            BodyError: the codec of the message type refuses a body.
        """
        check_handle(self.handle)
        names.checked("message type", self.message_type)
        return stored_bodies(encoded_all(self.message_type, self.bodies), maximum)
