"""What one instance has committed: the tables of the real store, as plain Python. It survives every crash.

Every method is one transaction's work on one endpoint.
"""

from __future__ import annotations

from copy import copy
from typing import NamedTuple
from uuid import UUID

from servicebroker.model.states import EndpointState
from servicebroker.protocol.dialog import Acknowledged, Identity, Sending, TransmissionState
from servicebroker.protocol.dialog_keys import SessionKeys
from servicebroker.protocol.envelope import BrokerFailure, Content, Part
from servicebroker.protocol.incoming import Batch, Complete, Deliver, Discard, Keep, Kept

Key = tuple[int, bool]  # conversation, is_initiator; a number, since it is looked up all the time

_OPEN = (EndpointState.STARTED_OUTBOUND, EndpointState.STARTED_INBOUND, EndpointState.CONVERSING)


class Lost(AssertionError):
    """A promise was broken: the run has found a defect."""


class Received(NamedTuple):
    """A row of the queue."""

    number: int
    content: Content
    body: bytes


class Endpoint:
    """A row of conversation_endpoints, with its messages."""

    def __init__(self, identity: Identity, priority: int, session: SessionKeys) -> None:
        self.identity = identity
        self.session = session
        self.priority = priority
        self.state = EndpointState.STARTED_OUTBOUND if identity.is_initiator else EndpointState.STARTED_INBOUND
        self.far_broker: UUID | None = None
        self.is_acknowledged = False
        self.send_sequence = 0
        self.rows: dict[int, Part] = {}  # the transmission queue
        self.next = 0
        self.final: int | None = None
        self.token: bytes | None = None  # of the last message that has arrived in order
        self.kept: dict[int, dict[int, Part]] = {}
        self.fragments: dict[int, int] = {}
        self.queue: list[Received] = []
        self.failed: list[int] = []
        self.refused: BrokerFailure | None = None  # what the peer is told

    # --- the application

    def send(self, content: Content, body: bytes, token: bytes) -> int:
        """SEND, END CONVERSATION, or END CONVERSATION WITH ERROR. Returns the number."""
        if content is Content.ERROR:
            self.rows.clear()
        number, self.send_sequence = self.send_sequence, self.send_sequence + 1
        self.rows[number] = Part("//sim/type", content, body or None, token)
        self.state = EndpointState.CONVERSING if content is Content.DATA else EndpointState.DISCONNECTED_OUTBOUND
        return number

    def close(self) -> None:
        """Nothing is sent or received any more: what waits for either goes."""
        self.rows.clear()
        self.kept.clear()
        self.fragments.clear()
        self.state = EndpointState.CLOSED

    def copy(self) -> Endpoint:
        """What it is now, for later."""
        twin = copy(self)
        twin.rows, twin.fragments = self.rows.copy(), self.fragments.copy()
        twin.kept = {number: parts.copy() for number, parts in self.kept.items()}
        twin.queue, twin.failed = self.queue.copy(), self.failed.copy()
        return twin

    @property
    def is_open(self) -> bool:
        """Whether the application may send."""
        return self.state in (EndpointState.STARTED_OUTBOUND, EndpointState.CONVERSING)

    @property
    def is_over(self) -> bool:
        """Whether its application is done with it; or has never seen it, since a late fragment has made it."""
        is_unseen = self.state is EndpointState.STARTED_INBOUND and not self.queue
        return self.state is EndpointState.CLOSED or is_unseen

    @property
    def has_error(self) -> bool:
        """Whether its application was told that something is wrong."""
        return bool(self.failed) or any(row.content is Content.ERROR for row in self.queue)

    # --- the broker

    def transmission_state(self) -> TransmissionState:
        """What a transmission object starts from."""
        base = min(self.rows, default=self.send_sequence)
        kept = {
            number: Kept(
                self.fragments[number],
                sum(1 << fragment for fragment in parts),
                sum(len(part.body or b"") for part in parts.values()),
                next(iter(parts.values())).content,
                next(iter(parts.values())).token,
            )
            for number, parts in self.kept.items()
        }
        sending = Sending.FAILED if self.failed else Sending.FLOWING
        if self.state is EndpointState.DISCONNECTED_OUTBOUND:
            sending = Sending.ENDING
        elif self.state is EndpointState.CLOSED:
            sending = Sending.CLOSED
        return TransmissionState(
            base,
            self.send_sequence,
            0,
            sending,
            self.far_broker,
            self.is_acknowledged,
            self.next,
            self.final,
            self.token,
            kept,
        )

    def acknowledged(self, event: Acknowledged) -> None:
        """Rows leave only here."""
        self.far_broker, self.is_acknowledged = event.far_broker, True
        for number in [number for number in self.rows if number < event.below]:
            del self.rows[number]
        if self.state is EndpointState.DISCONNECTED_OUTBOUND and not self.rows:
            self.close()

    def fail(self, code: int) -> None:
        """A broker's error has come."""
        if self.state in (*_OPEN, EndpointState.DISCONNECTED_INBOUND):
            self.state = EndpointState.ERROR
        elif self.state is EndpointState.DISCONNECTED_OUTBOUND:
            self.close()
        self.failed.append(code)

    def store(self, batch: Batch) -> None:
        """A batch of arrivals."""
        if batch.expected != self.next:
            raise Lost(f"a batch expects {batch.expected}, stored is {self.next}")
        self.token = batch.token
        if self.state is EndpointState.CLOSED:
            self.next = batch.reached
            return
        for step in batch.steps:
            match step:
                case Deliver(first, run):
                    for number, part in enumerate(run, first):
                        self._deliver(number, part.content, part.body or b"")
                case Keep(number, fragment, fragments, part):
                    self._keep(number, fragment, fragments, part)
                case Complete(number):
                    parts = self.kept.pop(number)
                    body = b"".join(parts[place].body or b"" for place in range(self.fragments.pop(number)))
                    self._deliver(number, parts[0].content, body)
                case Discard(below):
                    self._discard(below)
        if self.next != batch.reached:
            raise Lost(f"a batch says that it reaches {batch.reached}, stored is {self.next}")

    def _keep(self, number: int, fragment: int, fragments: int, part: Part) -> None:
        if fragment in self.kept.setdefault(number, {}):
            raise Lost(f"fragment {fragment} of message {number} is kept twice")
        self.kept[number][fragment] = part
        self.fragments[number] = fragments
        if part.content is not Content.DATA:
            self.final = number

    def _discard(self, below: int) -> None:
        for number in [number for number in self.kept if number < below]:
            del self.kept[number], self.fragments[number]

    def _deliver(self, number: int, content: Content, body: bytes) -> None:
        if number < self.next or (number > self.next and content is not Content.ERROR):
            raise Lost(f"message {number} is delivered when {self.next} is next")
        self.next = number + 1
        if content is not Content.DATA:
            self.final = number
        if self.state in (EndpointState.DISCONNECTED_OUTBOUND, EndpointState.CLOSED):
            return  # the application has ended and takes no more
        self.queue.append(Received(number, content, body))
        if self.state is EndpointState.STARTED_INBOUND:
            self.state = EndpointState.CONVERSING
        if content is not Content.DATA:
            ended = content is Content.END
            self.state = EndpointState.DISCONNECTED_INBOUND if ended else EndpointState.ERROR
