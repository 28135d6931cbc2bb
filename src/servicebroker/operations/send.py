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
from servicebroker.model.bodies import encoded, encoded_all
from servicebroker.model.conversation_events import ConversationEvent
from servicebroker.operations.operation import Operation

Numbers = TypeVar("Numbers", int, list[int])


class _Delayable:
    """The delay of a SEND, by its fields `delay` and `at`."""

    __slots__ = ()

    delay: timedelta | float | None
    at: datetime | None

    @property
    def is_delayed(self) -> bool:
        """True if a delay was given, though it may be over."""
        return self.delay is not None or self.at is not None

    def due(self, now: datetime) -> datetime | None:
        """Return the time until which it is delayed; None if it is not.

        Raises:
            BrokerError: 402 an invalid delay.
        """
        return due_time(self.delay, self.at, now)

    def seconds_or_time(self, now: datetime) -> tuple[float | None, datetime | None]:
        """Return the delay in seconds, or else its time, for a server that counts by its own clock.

        Raises:
            BrokerError: 402 an invalid delay.
        """
        self.due(now)
        delay = self.delay
        return delay.total_seconds() if isinstance(delay, timedelta) else delay, self.at


@dataclass(frozen=True, slots=True)
class Send(_Delayable, Operation[Numbers]):
    """SEND one message, and return its sequence number: 0, 1, 2 ... in each direction of a conversation.

    It is sent with the COMMIT. Within `pipeline()` the place in the block is returned instead.

    Args:
        handle: the conversation. With a list of handles the message is sent on each of them, or on none if one is
            refused. The body is stored once, and the numbers are returned in the order of the handles.
        message_type: one that the contract lets this side send.
        body: bytes; a str, which is sent as UTF-8; or an object, if the message type has a `servicebroker.codec`. An
            omitted or empty body is received as None.
        delay: a timedelta or seconds. The message, and every later one of its conversation, waits as long in the
            transmission queue. To overtake it, use another conversation.
        at: the time until which they wait, with a time zone. A time that is over is no delay.

    Raises:
        BodyError: the body is not what messages of this type carry.
        BrokerError: 8426 no such conversation, 8429 it has ended or failed, 8428 no such message type, 8431 it is
            not in the contract, 8432 and 8434 only the other side may send it, 8433 the body is None, 8459 it is
            too large, 8494 no permission, 9618 the own queue is off and has RETENTION, 8418 the handle is missing,
            402 the list of handles is empty, has one twice, or more than 10,000, or the delay ends after the
            conversation's lifetime.
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
        """True for one conversation; a missing handle counts as one, and is refused later."""
        handle = self.handle
        return isinstance(handle, UUID) or handle is None

    @property
    def handles(self) -> Sequence[UUID]:
        """The conversations."""
        return [self.handle] if isinstance(self.handle, UUID) or self.handle is None else self.handle

    def content(self, maximum: int = MAX_BODY_BYTES) -> bytes | None:
        """Check the fields, and return the body to store; `maximum` is in bytes.

        Raises:
            BrokerError: 8418, 402 and 15151 handle and name, 8433, 8459 and 402 body.
            BodyError: the codec of the message type refuses the body.
        """
        if not isinstance(self.handle, UUID):
            (check_handle if self.handle is None else check_handles)(self.handle)
        names.checked("message type", self.message_type)
        body = self.body
        return stored_body(body if type(body) is bytes else encoded(self.message_type, body), maximum)


@dataclass(frozen=True, slots=True)
class SendBatch(_Delayable, Operation[int]):
    """SEND many messages of one type, in their order, and return the first sequence number.

    It is one statement, and many times as fast as a call of `send` for each message. If it raises, none was sent.

    A body that the *receiver* refuses fails the conversation, as with `send`: the messages before it are
    delivered, those behind it are dropped.

    Args:
        handle: the conversation.
        message_type: one that the contract lets this side send.
        bodies: of each message, as for `send`.
        delay: of all of them, as for `send`.
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

    @property
    def handles(self) -> Sequence[UUID]:
        """The conversation."""
        return [self.handle]

    @property
    def messages(self) -> int:  # type: ignore[override] # of most operations it is a constant
        """The number of messages; 1 for bodies that cannot be counted, which are refused later."""
        return len(self.bodies) if isinstance(self.bodies, Sized) else 1

    def contents(self, maximum: int = MAX_BODY_BYTES) -> list[bytes | None]:
        """Check the fields, and return the bodies to store; `maximum` is in bytes, of each.

        Raises:
            BrokerError: as `Send.content`; 402 no list, or an empty one.
            BodyError: the codec of the message type refuses a body.
        """
        check_handle(self.handle)
        names.checked("message type", self.message_type)
        return stored_bodies(encoded_all(self.message_type, self.bodies), maximum)
