"""The transmission state of one conversation endpoint (a transmission object), about 1 KB.

The rules: docs/reference/rules.md#transmission.

A dialog holds sequence numbers, never bodies. It has no clock: `now` is in seconds of any monotonic clock. The
docstring of the package says how to use it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple
from uuid import UUID

import msgspec

from servicebroker.model.errors import MAXIMUM_LIFETIME, RULES
from servicebroker.protocol.envelope import (
    CAPABILITIES,
    Acknowledgement,
    BrokerFailure,
    Content,
    Exchange,
    Header,
    Kind,
    Opening,
    Part,
    Payload,
)
from servicebroker.protocol.incoming import (
    FREE,
    Allowance,
    Batch,
    Begun,
    Incoming,
    Kept,
    Progress,
    Verdict,
    impossible,
)
from servicebroker.protocol.limits import LIMITS, Limits
from servicebroker.protocol.outgoing import NEVER, Cut, Outgoing


class Sending(StrEnum):
    """The state of sending."""

    FLOWING = "FLOWING"
    HELD = "HELD"  # the peer has ended the conversation: messages wait until this side ends it too
    ENDING = "ENDING"  # this side has ended the conversation, without acknowledgement yet
    ENDED = "ENDED"  # this side's end was acknowledged
    FAILED = "FAILED"  # a broker's error has arrived: nothing more is sent or accepted
    CLOSED = "CLOSED"  # the endpoint is CLOSED: only stored messages are acknowledged again


class DialogEvent(StrEnum):
    """An event that changes the state of sending."""

    ENDED_HERE = "END CONVERSATION"
    PEER_ENDED = "receive end conversation"
    END_ACKNOWLEDGED = "receive message acknowledgement"
    FAILURE_ARRIVED = "receive broker error"
    CLOSED_HERE = "CLOSED"
    DIVERGED = "the peer has another history"


# A missing pair changes nothing: after the peer's end its errors have no effect.
TRANSITIONS: dict[tuple[Sending, DialogEvent], Sending] = {
    (Sending.FLOWING, DialogEvent.ENDED_HERE): Sending.ENDING,
    (Sending.FLOWING, DialogEvent.PEER_ENDED): Sending.HELD,
    (Sending.FLOWING, DialogEvent.FAILURE_ARRIVED): Sending.FAILED,
    (Sending.HELD, DialogEvent.ENDED_HERE): Sending.ENDING,
    (Sending.ENDING, DialogEvent.END_ACKNOWLEDGED): Sending.ENDED,
    (Sending.ENDING, DialogEvent.FAILURE_ARRIVED): Sending.FAILED,
    **{(state, DialogEvent.DIVERGED): Sending.FAILED for state in (Sending.FLOWING, Sending.HELD, Sending.ENDING)},
    **{(state, DialogEvent.CLOSED_HERE): Sending.CLOSED for state in Sending},
}
SENDS = frozenset({Sending.FLOWING, Sending.ENDING})
_KEEPS = frozenset({Sending.FLOWING, Sending.HELD})  # states in which no sent message is dropped
GONE = BrokerFailure(-8462, RULES[8462].text)
OVER_QUOTA = "Its peer has as many unfinished messages as are kept of one."
STATUS = {Sending.HELD: RULES[9779].text, Sending.FAILED: RULES[9784].text}


class Identity(NamedTuple):
    """The two sides of a conversation, and what protects it.

    `lifetime` is the end of the conversation in seconds of the clock of `now`.
    """

    conversation_id: UUID
    is_initiator: bool
    own_broker: UUID
    own_service: str
    far_service: str
    contract: str
    lifetime: float
    encryption: bool = True
    is_secured: bool = False
    exchange: Exchange | None = None  # the exchange of the own session key, for the peer


class Acknowledged(NamedTuple):
    """The peer has acknowledged the messages below `below`. The caller deletes them, in one transaction.

    The same transaction notes the acknowledgement and the peer's broker identifier. Then call `deleted`. If no message
    is left of a DISCONNECTED_OUTBOUND endpoint, its state is CLOSED.
    """

    below: int
    peer_broker: UUID


class Failed(NamedTuple):
    """The peer's broker refuses the conversation: the application gets this Error, and nothing more is sent."""

    failure: BrokerFailure


class Dropped(NamedTuple):
    """A message or a fragment was dropped: number and text for Broker:Message Undeliverable (Dropped)."""

    number: int
    text: str


class Diverged(NamedTuple):
    """The two sides have different histories: an instance was restored from an old copy.

    In one transaction: the application gets the Error `own`, and the endpoint records that the peer gets `far`, with
    which `Dialog` refuses it already. `is_here`: this instance is the old copy. `what`: the contradiction.
    """

    is_here: bool
    what: str

    @property
    def own(self) -> BrokerFailure:
        """The Error of this side."""
        return self._error(9719 if self.is_here else 9720)

    @property
    def far(self) -> BrokerFailure:
        """The Error of the peer."""
        return self._error(9720 if self.is_here else 9719)

    def _error(self, number: int) -> BrokerFailure:
        return BrokerFailure(-number, f"{RULES[number].text} {self.what}")


class ClockDiffers(NamedTuple):
    """The target has refused an opening: it was sealed too long before or after the time of its clock."""

    clock: int  # seconds since 1970


Outcome = Acknowledged | Failed | Dropped | Diverged | ClockDiffers


class Transmission(NamedTuple):
    """One frame to send. With a `cut` the caller reads its messages; otherwise `payload` is the content."""

    header: Header
    cut: Cut | None
    payload: BrokerFailure | None = None


class TransmissionState(NamedTuple):
    """The part of a `Dialog` that outlives it. All of it can be read from the store again.

    Attributes:
        base: the lowest message in the transmission queue; `sent_below` if there is none.
        sent_below: the next number of SEND.
        attempts: failed attempts to get a link, in a row.
        sending: the state of sending.
        peer_broker: the peer's broker, if known.
        is_acknowledged: the peer has acknowledged a message.
        next: the next message to arrive.
        final: the message that ended the conversation, once it is known.
        token: of the last message that has arrived in order.
        kept: the fragments and early messages that are stored.
    """

    base: int = 0
    sent_below: int = 0
    attempts: int = 0
    sending: Sending = Sending.FLOWING
    peer_broker: UUID | None = None
    is_acknowledged: bool = False
    next: int = 0
    final: int | None = None
    token: bytes | None = None
    kept: Mapping[int, Kept] = {}


class _Saved(msgspec.Struct, array_like=True, frozen=True):
    state: tuple[int, int, int, Sending, UUID | None, bool, int, int | None, bytes | None]
    kept: list[tuple[int, Kept]]


_saved = msgspec.msgpack.Decoder(_Saved)


def pack(state: TransmissionState) -> bytes:
    """Return the bytes of a saved state."""
    return msgspec.msgpack.encode(_Saved(state[:9], list(state.kept.items())))


def unpack(saved: bytes, limits: Limits = LIMITS) -> TransmissionState:
    """Return the state of saved bytes. Fragments beyond the limits are dropped: the peer sends them again."""
    decoded = _saved.decode(saved)
    state = TransmissionState(*decoded.state, dict(decoded.kept))
    beyond = impossible(state.next, state.kept, limits)
    return state._replace(kept={number: message for number, message in state.kept.items() if number not in beyond})


class Dialog:
    """The transmission state of one endpoint.

    `state` comes from `unpack`, or from the store. For an initiator that has sent nothing it is `TransmissionState()`,
    with the broker identifier that BEGIN DIALOG named. `draw` returns random numbers from 0 up to 1.
    """

    __slots__ = (
        "_deleted_below",
        "_end",
        "_failure",
        "_incoming",
        "_is_acknowledged",
        "_is_opened",
        "_is_refusing",
        "_jumps",
        "_link_status",
        "_outgoing",
        "dirty",
        "identity",
        "peer_broker",
        "sending",
    )

    def __init__(
        self, identity: Identity, state: TransmissionState, draw: Callable[[], float], limits: Limits = LIMITS
    ) -> None:
        self.identity = identity
        self.peer_broker = state.peer_broker
        self._deleted_below = state.base
        self._is_acknowledged = state.is_acknowledged
        self.sending = state.sending
        self.dirty = False
        self._end: int | None = None
        self._outgoing = Outgoing(state.base, state.sent_below, limits, draw)
        self._outgoing.attempts = state.attempts
        self._jumps = False  # an Error skips messages that the peer may lack
        self._incoming = Incoming(Progress(state.next, dict(state.kept), state.final, state.token, limits))
        self._link_status = ""
        self._failure: BrokerFailure | None = None
        self._is_refusing = False
        self._is_opened = False  # the last frame had an opening: the peer has received no acknowledgement yet
        if self._incoming.stored.is_closed:
            self._apply(DialogEvent.PEER_ENDED)
        if self.sending is Sending.CLOSED:
            self.close()
        elif self.sending is Sending.FAILED:
            self._failure = GONE

    def secure(self, exchange: Exchange | None) -> None:
        """Set the security of the conversation, before its first frame is sent."""
        self.identity = self.identity._replace(is_secured=True, exchange=exchange)

    @property
    def introduction(self) -> Exchange | None:
        """The key exchange to send with each message until the first acknowledgement, and while the peer is silent.

        A silent peer may have been restored from a copy of its instance that is older than the key.
        """
        return self.identity.exchange if self.is_unanswered or not self._is_acknowledged else None

    # --- sending

    @property
    def next_to_offer(self) -> int:
        """The number of the message to offer next. END CONVERSATION WITH ERROR may skip numbers."""
        return self._outgoing.next_number

    @property
    def room(self) -> int:
        """The bytes of messages that may be offered now. While it is above 0, a message of any size is accepted."""
        return self._outgoing.room if self._end is None else 0

    @property
    def load(self) -> int:
        """The offered bytes without acknowledgement (a part of very large messages); 0 while nothing is sent."""
        return self._outgoing.load if self.sending in SENDS else 0

    @property
    def acknowledged_below(self) -> int:
        """The lowest message without acknowledgement."""
        return self._outgoing.base

    def offer_run(self, number: int, sizes: Sequence[int], tokens: Sequence[bytes | None] = ()) -> int:
        """Offer committed messages of the application, as many as there is room for. Returns their number.

        `tokens` were drawn by SEND, one for each message.

        Raises:
            ValueError: `number` is not the next number, or follows the end of the conversation.
        """
        if self._end is not None:
            raise ValueError(f"message {number} was offered behind the end of the conversation")
        self.dirty = True
        return self._outgoing.offer_run(number, sizes, tokens)

    def offer(self, number: int, size: int, content: Content = Content.DATA, token: bytes | None = None) -> None:
        """Offer a message of `size` bytes that SEND or END CONVERSATION has committed.

        An ERROR needs no room and may skip numbers: lower messages without acknowledgement are never sent again.

        Raises:
            ValueError: `number` is not the next number, or follows the end of the conversation.
        """
        if self._end is not None:
            raise ValueError(f"message {number} was offered behind the end of the conversation")
        if content is Content.ERROR and number >= self._outgoing.base:
            self._outgoing.skip_to(number)
            self._deleted_below = number
            self._jumps = True
        self._outgoing.offer(number, [size], [token])
        self.dirty = True
        if content is not Content.DATA:
            self._end = number
            self._apply(DialogEvent.ENDED_HERE)

    def end(self) -> None:
        """Enter the state DISCONNECTED_OUTBOUND. Messages are still sent, even if the peer has ended its side."""
        self._apply(DialogEvent.ENDED_HERE)

    def close(self) -> None:
        """Enter the state CLOSED: nothing is sent, and new messages are refused so that their sender can end."""
        self._apply(DialogEvent.CLOSED_HERE)
        self._failure = GONE

    def refuse(self, failure: BrokerFailure) -> None:
        """Answer the peer's messages with a broker error, now and at each repetition."""
        self._failure = failure
        self._is_refusing = True

    def limit_large(self, large_window: int | None) -> None:
        """Limit the bytes in flight of large messages, while others send small ones. None: no such limit."""
        self._outgoing.large_window = large_window

    def has_work(self, now: float) -> bool:
        """Return whether `transmit` would return something."""
        if now < self._outgoing.paused_until:
            return False
        return self._incoming.is_ack_due or self._is_refusing or self._may_send(now)

    def transmit(self, now: float) -> Transmission | None:
        """Return the next frame, with due acknowledgements; None if there is nothing to send."""
        if not self.has_work(now):
            return None
        if self._is_refusing:
            self._is_refusing = False
            return Transmission(self._header(Kind.FAILURE, None, now), None, self._failure)
        cut = self._outgoing.cut(now) if self._may_send(now) else None
        self._outgoing.release()
        if cut is None:
            return Transmission(self._header(Kind.ACKNOWLEDGEMENT, None, now), None)
        kind = Kind.RUN if cut.fragments == 1 else Kind.FRAGMENT
        return Transmission(self._header(kind, cut, now), cut)

    def _may_send(self, now: float) -> bool:
        return self.sending in SENDS and self._outgoing.has_work(now)

    def _header(self, kind: Kind, cut: Cut | None, now: float) -> Header:
        identity = self.identity
        first, _, fragment, fragments, _, _ = cut or Cut(0, 0, 0, 1, 0, 0)
        return Header(
            identity.conversation_id,
            identity.is_initiator,
            kind,
            identity.is_secured,
            identity.far_service,
            self.peer_broker,
            identity.own_service,
            identity.own_broker,
            first,
            fragment,
            fragments,
            self._take_acknowledgement(),
            self._opening(now) if identity.is_initiator and not self._is_acknowledged else None,
            self.introduction if kind in (Kind.RUN, Kind.FRAGMENT) else None,
            floor=self._floor,
            before=None if cut is None else self._outgoing.token(first - 1),
            capabilities=CAPABILITIES if self._is_opened and identity.is_secured else (),
        )

    @property
    def _floor(self) -> int | None:
        """The number below which all messages were acknowledged; None if some of these may have been dropped."""
        outgoing = self._outgoing
        is_whole = self.sending in _KEEPS or (self.sending is Sending.ENDING and outgoing.base < outgoing.next_number)
        return outgoing.base if is_whole and not self._jumps else None

    def _opening(self, now: float) -> Opening:
        remaining = int(max(0, min(self.identity.lifetime - now, MAXIMUM_LIFETIME)))
        return Opening(self.identity.contract, remaining, self.identity.encryption)

    def _take_acknowledgement(self) -> Acknowledgement | None:
        """Return the acknowledgement for the next frame. Every frame has one, which replaces lost ones."""
        self._incoming.is_ack_due = False
        stored = self._incoming.stored
        if stored.next:
            return stored.acknowledgement()
        return stored.acknowledgement() if stored.kept and not self._is_headless else None

    # --- receiving

    def token_to_recall(self, header: Header) -> int | None:
        """Return the message whose token `arrived` needs, because it was sent before a restart; usually None."""
        ack, outgoing = header.acknowledgement, self._outgoing
        if ack is None or ack.token is None or not outgoing.next_number < ack.below <= outgoing.sent_below:
            return None
        return ack.below - 1

    def arrived(
        self, header: Header, payload: Payload, recalled: bytes | None = None, allowance: Allowance = FREE
    ) -> list[Outcome]:
        """Handle a verified frame. Its new messages come with the next `batch`.

        `recalled`: the token of the message that `token_to_recall` has named; None if it has none, or was deleted.
        `allowance`: what the quota of the peer allows to keep.
        """
        problem = self._misaddressed(header)
        if problem is not None:
            return [problem]
        self._is_opened = header.opening is not None
        ack = header.acknowledgement
        contradiction = None if ack is None else self._outgoing.contradicts(ack, recalled)
        events = [] if ack is None or contradiction else self._acknowledge(header, ack)
        if isinstance(payload, BrokerFailure):
            return [*events, *self._fail(payload)]
        if contradiction:
            return self._diverge(Diverged(is_here=True, what=contradiction))
        if (diverged := self._contradiction(header, payload)) is not None:
            return [*events, *self._diverge(diverged)]
        if payload is None:
            return [*events, *self._clock_differs(header.clock)]
        if self._failure is None or self._repeats(header, payload):
            return [*events, *self._take(header, payload, allowance)]
        self._is_refusing = True
        return [*events, dropped_event(11212)]

    def batch(self) -> Batch | None:
        """Return the batch to store now; None if there is nothing, or if the last one is not `committed` yet."""
        return self._incoming.batch()

    def committed(self) -> None:
        """Handle the commit of the batch, which may be acknowledged now."""
        self._incoming.committed()
        if not self._incoming.stored.next:
            self._withhold_acknowledgement()
        self.dirty = True
        if self._incoming.stored.is_closed:
            self._apply(DialogEvent.PEER_ENDED)

    def _withhold_acknowledgement(self) -> None:
        """Withhold acknowledgements until a part of the first message has arrived: such a target may be deleted.

        After an acknowledgement the initiator no longer repeats the opening, which a new target would need.
        """
        if self._is_headless:
            self._incoming.is_ack_due = False

    @property
    def _is_headless(self) -> bool:
        stored = self._incoming.stored
        return not self.identity.is_initiator and stored.next == 0 and 0 not in stored.kept

    @property
    def arriving(self) -> int:
        """The received bytes that are not stored yet."""
        return self._incoming.load

    @property
    def is_storing(self) -> bool:
        """Return whether received messages wait for a commit."""
        return self._incoming.is_busy

    @property
    def begun(self) -> Begun | None:
        """The incomplete messages that are stored, or will be with the next batch; None if there are none."""
        return self._incoming.begun

    def forget_kept(self) -> None:
        """Handle the deletion of stored fragments of incomplete messages. The peer sends them again.

        Raises:
            ValueError: a message waits for a commit.
        """
        self._incoming.forget_kept()
        self.dirty = True

    def rolled_back(self) -> None:
        """Handle the rollback of the batch. The peer sends it and later messages again."""
        self._incoming.rolled_back()

    def deleted(self, event: Acknowledged) -> None:
        """Handle the commit of the deletion for `event`."""
        self._deleted_below = max(self._deleted_below, event.below)

    def _misaddressed(self, header: Header) -> Dropped | None:
        """Return why a frame is not for this endpoint, or None."""
        identity = self.identity
        if header.is_from_initiator == identity.is_initiator:
            return dropped_event(11221, "it comes from this side of the conversation")
        if header.to_service != identity.own_service:
            return dropped_event(11222, header.to_service, identity.own_service)
        if header.opening is not None and header.opening.contract != identity.contract and identity.contract:
            return dropped_event(11223, header.opening.contract, identity.contract)
        if self.peer_broker not in (None, header.from_broker):
            return dropped_event(11224)
        return None

    def _contradiction(self, header: Header, parts: tuple[Part, ...] | None) -> Diverged | None:
        """Return the contradiction which shows that an instance was restored from an old copy, or None."""
        stored = self._incoming.stored.next
        if header.floor is not None and header.floor > stored:
            what = f"The messages {stored} to {header.floor - 1} were acknowledged, and are not known."
            return Diverged(is_here=True, what=what)
        number = None if parts is None else self._incoming.contradicts(header.number, parts, header.before)
        if number is None:
            return None
        return Diverged(is_here=False, what=f"Message {number} has come twice, and differs.")

    def _clock_differs(self, clock: int | None) -> list[Outcome]:
        """Handle the target's clock. It matters only until the target has accepted the opening."""
        is_opening = self.identity.is_initiator and not self._is_acknowledged
        return [ClockDiffers(clock)] if clock is not None and is_opening else []

    def _diverge(self, diverged: Diverged) -> list[Outcome]:
        """Stop the conversation. Report the failure to the caller once, and to the peer at each frame."""
        self._is_refusing = True
        if self._failure is not None:
            return [dropped_event(11212)]
        self._failure = diverged.far
        self._apply(DialogEvent.DIVERGED)
        return [diverged]

    def _acknowledge(self, header: Header, acknowledgement: Acknowledgement) -> list[Outcome]:
        if not self._outgoing.acknowledged(acknowledgement):
            return []
        self.dirty = True
        self.peer_broker = header.from_broker
        self._is_acknowledged = True
        self._link_status = ""
        if self._end is not None and self._outgoing.base > self._end:
            self._apply(DialogEvent.END_ACKNOWLEDGED)
        return [Acknowledged(self._outgoing.base, header.from_broker)]

    def _fail(self, failure: BrokerFailure) -> list[Outcome]:
        before = self.sending
        self._apply(DialogEvent.FAILURE_ARRIVED)
        if before is self.sending:
            return []
        self._failure = GONE
        return [Failed(failure)]

    def _take(self, header: Header, parts: tuple[Part, ...], allowance: Allowance) -> list[Outcome]:
        if header.fragments == 1 and self._incoming.arrived_run(header.number, parts):
            return []
        events: list[Outcome] = []
        verdicts: set[Verdict] = set()
        for offset, part in enumerate(parts):
            number = header.number + offset
            verdict = self._incoming.arrived(number, header.fragment, header.fragments, part, allowance)
            if verdict not in verdicts and verdict not in (Verdict.NEW, Verdict.PENDING):
                verdicts.add(verdict)
                events.append(self._explain(verdict, number))
        self._withhold_acknowledgement()
        return events

    def _repeats(self, header: Header, parts: tuple[Part, ...]) -> bool:
        """Return whether the whole frame is stored already: then it only needs an acknowledgement."""
        return self._incoming.stored.has(header.number + len(parts) - 1, header.fragment)

    def _explain(self, verdict: Verdict, number: int) -> Dropped:
        match verdict:
            case Verdict.DUPLICATE:
                return dropped_event(11218)
            case Verdict.TOO_FAR:
                return dropped_event(11217, self._incoming.seen.next, number)
            case Verdict.OVER_QUOTA:
                return Dropped(11217, f"{dropped_event(11217, self._incoming.seen.next, number).text} {OVER_QUOTA}")
            case Verdict.AFTER_END:
                return dropped_event(11212)
            case Verdict.MISSHAPEN:
                return dropped_event(11221, "the size of the fragment, or their number, does not fit the message")
            case _:
                return dropped_event(11221, "its fragments differ from those that came before")

    # --- time and links

    def tick(self, now: float) -> None:
        """Handle timeouts: messages without acknowledgement in time are due again. Then call `has_work`."""
        self._outgoing.tick(now)

    @property
    def wake_at(self) -> float:
        """The time at which `tick` must be called; NEVER if only another call can bring work."""
        if (self._incoming.is_ack_due or self._is_refusing) and self._outgoing.paused_until:
            return self._outgoing.paused_until
        return self._outgoing.wake_at() if self.sending in SENDS else NEVER

    def link_up(self) -> None:
        """Handle a connection to the peer: waiting messages may be sent immediately."""
        self._link_status = ""
        self._outgoing.release()

    def link_down(self, now: float, status: str) -> None:
        """Handle the loss or the lack of a connection. `status`: the reason, for transmission_status.

        Messages without acknowledgement are sent again from the lowest number: at the next `link_up`, or when
        `wake_at` asks for another attempt, after 4 seconds first and at most 64.
        """
        self._link_status = status
        self._outgoing.hold(now)
        self.dirty = True

    @property
    def is_unanswered(self) -> bool:
        """Return whether the peer is silent on an open link: a message was sent twice without acknowledgement."""
        return self._outgoing.is_unanswered and self.sending in SENDS

    @property
    def status(self) -> str:
        """The transmission_status: why messages wait; '' if none waits, or the link has not failed yet."""
        return STATUS.get(self.sending, self._link_status)

    # --- memory

    @property
    def is_idle(self) -> bool:
        """Return whether the object may be saved and dropped: nothing is in flight, to commit or to acknowledge."""
        return (
            not self._incoming.is_busy
            and self._deleted_below == self._outgoing.base
            and not self._incoming.is_ack_due
            and not self._is_refusing
            and (self.sending not in SENDS or self._outgoing.is_settled)
        )

    def save(self) -> bytes:
        """Return the committed state, from which another `Dialog` can be made, and reset `dirty`."""
        out, stored = self._outgoing, self._incoming.stored
        self.dirty = False
        return pack(
            TransmissionState(
                self._deleted_below,
                out.sent_below,
                out.attempts,
                self.sending,
                self.peer_broker,
                self._is_acknowledged,
                stored.next,
                stored.final,
                stored.token,
                stored.kept,
            )
        )

    def _apply(self, event: DialogEvent) -> None:
        after = TRANSITIONS.get((self.sending, event), self.sending)
        self.dirty |= after is not self.sending
        self.sending = after


def dropped_event(number: int, *values: object) -> Dropped:
    """Return the event of a message that is dropped, with the text of its number."""
    return Dropped(number, RULES[number].text.format(*values))
