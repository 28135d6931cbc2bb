"""Frames of conversations that make sense, and their changes."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any, NamedTuple
from uuid import UUID

from msgspec import structs

from servicebroker.model.messages import error_body
from servicebroker.protocol.dialog import GONE
from servicebroker.protocol.envelope import (
    Acknowledgement,
    Content,
    Exchange,
    Header,
    Kind,
    Opening,
    Part,
    Payload,
    encode,
)
from servicebroker.protocol.forwarding import Passage, wrap
from servicebroker.protocol.integrity import CHECKSUM
from servicebroker.protocol.limits import Limits
from servicebroker_lab.fuzzing.mutations import mutate

TARGET, STRANGER, CONTRACT, MESSAGE_TYPE = "//target", "//stranger", "//contract", "//type"
MAX_OPEN = 12  # conversations that a sequence has at a time
NUMBERS = (0, 1, 2, 3, 7, 63, 64, 65, 1_000, 2**14, 2**21 - 1, 2**31 - 1, 2**40)
HEADER_CHANGE_RATE, BYTE_CHANGE_RATE, REPEAT_RATE, FORWARD_RATE = 0.35, 0.08, 0.12, 0.1  # probabilities for each frame


class Frame(NamedTuple):
    """The body of a frame, the place of the link that brings it, and whether it comes as one that is passed on."""

    body: bytes
    link: int
    is_forwarded: bool


class Conversation:
    """A conversation of a stranger, as its initiator knows it."""

    def __init__(self, draw: Random, broker: UUID) -> None:
        self.identifier = UUID(int=draw.getrandbits(128))
        self.broker = broker
        self.next = 0
        self.fragment, self.fragments = 0, draw.choice((2, 3, 70, 28_800))


class Sequence:
    """The frames of one case. `limits` are those of the relay."""

    def __init__(self, draw: Random, limits: Limits, links: int) -> None:
        self._draw = draw
        self._limits = limits
        self._links = links
        self._brokers = [UUID(int=draw.getrandbits(128)) for _ in range(links)]
        self._conversations: list[Conversation] = []
        self._sent: list[Frame] = []

    def frame(self) -> Frame:
        """Return the next frame."""
        draw = self._draw
        link = draw.randrange(self._links)
        if self._sent and draw.random() < REPEAT_RATE:
            return draw.choice(self._sent)._replace(link=link)
        header, payload = self._valid(link)
        if draw.random() < HEADER_CHANGE_RATE:
            header = self._change_fields(header)
        body = encode(header, payload, CHECKSUM)
        if draw.random() < BYTE_CHANGE_RATE:
            body = mutate(body, draw)[:65_536]
        is_forwarded = draw.random() < FORWARD_RATE
        if is_forwarded:
            passage = Passage(
                UUID(int=draw.getrandbits(128)), draw.choice((0, 1, 16, 255)), draw.choice((0, 60, 2**31))
            )
            body = wrap(structs.replace(passage, time_to_live=min(passage.time_to_live, 2**31 - 1)), body)
        frame = Frame(body, link, is_forwarded)
        self._sent = [*self._sent[-50:], frame]
        return frame

    def _valid(self, link: int) -> tuple[Header, Payload]:
        draw = self._draw
        if len(self._conversations) < MAX_OPEN or draw.random() < 0.05:
            self._conversations = [*self._conversations[1 - MAX_OPEN :], Conversation(draw, self._brokers[link])]
        conversation = draw.choice(self._conversations)
        header = Header(
            *(
                conversation.identifier,
                True,
                Kind.RUN,
                False,
                TARGET,
                None,
                STRANGER,
                conversation.broker,
                conversation.next,
            ),
            opening=Opening(CONTRACT, draw.choice((0, 60, 2**31 - 1)), encryption=False),
        )
        make: Callable[[Conversation, Header], tuple[Header, Payload]] = draw.choices(
            (self._run, self._fragment, self._ahead, self._acknowledgement, self._failure, self._end),
            (8, 8, 4, 2, 1, 1),
        )[0]
        return make(conversation, header)

    def _run(self, conversation: Conversation, header: Header) -> tuple[Header, Payload]:
        parts = tuple(self._part(self._draw.choice((0, 1, 100))) for _ in range(self._draw.choice((1, 1, 3))))
        conversation.next += len(parts)
        return header, parts

    def _fragment(self, conversation: Conversation, header: Header) -> tuple[Header, Payload]:
        fragment, last = conversation.fragment, conversation.fragments - 1
        conversation.fragment += self._draw.choice((1, 1, 1, 2))
        if conversation.fragment > last:
            conversation.fragment, conversation.next = 0, conversation.next + 1
        size = self._draw.randint(1, self._limits.fragment_size) if fragment >= last else self._limits.fragment_size
        fragment_index = min(fragment, last)
        return self._as_fragment(header, fragment_index, conversation.fragments), (self._part(size),)

    def _ahead(self, conversation: Conversation, header: Header) -> tuple[Header, Payload]:
        number = conversation.next + self._draw.choice((1, 2, 5, 100, 16_383, 16_384))
        return structs.replace(header, number=number), (self._part(self._draw.choice((0, 10, 1_000))),)

    def _acknowledgement(self, conversation: Conversation, header: Header) -> tuple[Header, Payload]:
        return structs.replace(
            header, kind=Kind.ACKNOWLEDGEMENT, number=0, acknowledgement=self._random_acknowledgement()
        ), None

    def _failure(self, conversation: Conversation, header: Header) -> tuple[Header, Payload]:
        return structs.replace(header, kind=Kind.FAILURE, number=0), GONE

    def _end(self, conversation: Conversation, header: Header) -> tuple[Header, Payload]:
        is_error = self._draw.random() < 0.5
        body = error_body(1, "it ends") if is_error else None
        content = Content.ERROR if is_error else Content.END
        return header, (Part(MESSAGE_TYPE, content, body, self._draw.randbytes(8)),)

    def _part(self, size: int) -> Part:
        return Part(MESSAGE_TYPE, Content.DATA, bytes(size), self._draw.randbytes(8))

    @staticmethod
    def _as_fragment(header: Header, fragment: int, fragments: int) -> Header:
        return structs.replace(header, kind=Kind.FRAGMENT, fragment=fragment, fragments=fragments)

    def _random_acknowledgement(self) -> Acknowledgement:
        draw = self._draw
        ranges = tuple((n, n + draw.randrange(3)) for n in sorted(draw.sample(range(1_000), draw.randrange(4))))
        parts = tuple((number, first, first) for number, first in ranges)
        return Acknowledgement(draw.choice(NUMBERS), ranges, parts, draw.choice((None, draw.randbytes(8))))

    def _change_fields(self, header: Header) -> Header:
        """Return the header with new random values of the right types in one or two fields."""
        draw = self._draw
        number: Callable[[], int] = lambda: draw.choice(NUMBERS)  # noqa: E731
        address = f"tcp://host{draw.randrange(1_000)}:4022/x"
        key = draw.randbytes(draw.choice((0, 32, 64)))
        makers: dict[str, Callable[[], Any]] = {
            "conversation_id": lambda: UUID(int=draw.getrandbits(128)),
            "is_from_initiator": lambda: draw.random() < 0.5,
            "kind": lambda: draw.choice(list(Kind)),
            "is_secured": lambda: True,
            "to_service": lambda: draw.choice(
                ("", "//nobody", f"tcp://host{draw.randrange(1_000)}:4022/x", "\0", "x" * 300)
            ),
            "to_broker": lambda: draw.choice((None, UUID(int=0))),
            "from_service": lambda: draw.choice(("", address, "//other", "\u202e")),
            "from_broker": lambda: UUID(int=draw.getrandbits(128)),
            "number": number,
            "fragment": lambda: min(number(), 2**21 - 1),
            "fragments": lambda: min(number(), 2**21 - 1),
            "acknowledgement": self._random_acknowledgement,
            "opening": lambda: draw.choice((None, Opening("//nothing", 60, encryption=True, sealed_at=2**33))),
            "exchange": lambda: Exchange(UUID(int=0), key, key, key, key, key),
            "traces": lambda: tuple((index, bytes(25)) for index in range(draw.choice((1, 30)))),
            "floor": number,
            "before": lambda: draw.randbytes(8),
            "clock": lambda: draw.choice((0, 2**33)),
            "capabilities": lambda: ("a", "b"),
        }
        names = draw.sample(list(makers), draw.choice((1, 1, 2)))
        return structs.replace(header, **{name: makers[name]() for name in names})
