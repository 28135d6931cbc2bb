"""The state machines of a conversation with another instance: stages, events, and the acts that each event asks for.

There are two tables, which do not depend on each other. `LEAVING` is for sending: whether the conversation has an
address, is claimed, and has a link (a connection to the peer). `ARRIVING` is for receiving: whether a batch of received
messages is being stored. A pair of stage and event that is in no table raises `Impossible`: it is a bug. Single
messages have no states here: `Dialog` (`dialog.py`) tracks their sequence numbers.

`broker/conversations.py` reports events, and carries out the acts of the step in their order.

To match a conversation is to find the address of its target by the routes. To claim it is to note in the database that
its target is in another instance, before the first byte leaves (decision 056).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar


class Stage(StrEnum):
    """The progress of a conversation's sending side."""

    FOUND = "FOUND"  # no address, and no message was sent
    MATCHED = "MATCHED"  # an address, but no claim: there is no link, or another session has locked its row
    DELAYED = "DELAYED"  # claimed, but without an address now
    CLAIMED = "CLAIMED"  # claimed, with an address, but without a link
    LINKED = "LINKED"  # with a link; messages are sent when its turn comes
    FORGOTTEN = "FORGOTTEN"  # dropped from memory; waiting messages are found in the database again


class Event(StrEnum):
    """An event of a conversation that sends."""

    ROUTED = "its address is found, or still the same"
    REROUTED = "another address is found"
    UNROUTED = "there is no address for it now"
    AT_HOME = "the routes lead to this instance"
    WON = "it is claimed"
    BUSY = "another session has locked its row"
    UNSECURED = "its required dialog security cannot be set up"
    LINK_FOUND = "there is a link for what it has to send"
    REACHED = "there is a new link to its address"
    UNREACHED = "no link to its address can be made"
    LINK_LOST = "its link is closed"
    HELD_BACK = "it has something to send, and cannot"
    LEFT = "it has ended, or must be read from the database again"


class Act(StrEnum):
    """An action that a step asks for."""

    NOTE_ADDRESS = "note the address"
    TAKE_LINK = "use the link"
    DROP_LINK = "leave the link"
    TRAVEL_AGAIN = "send again from the first unacknowledged message"
    TRY_LATER = "retry with backoff, and set the status"
    GO = "end the backoff"
    LINE_UP = "queue up for sending"
    SAY_WHY = "set transmission_status to the reason"
    SAY_NOTHING = "clear transmission_status"
    MATCH_NOW = "match now"
    MATCH_SOON = "match soon"
    MATCH_LATER = "match later"
    REST = "match when its route expires"
    FORGET = "drop it from memory"
    ACKNOWLEDGE = "acknowledge the stored messages"
    ROLL_BACK = "drop the batch: its peer sends it again"


class Storing(StrEnum):
    """The stage of a conversation's received messages."""

    NOTHING = "NOTHING"  # no batch is being stored
    BATCH = "BATCH"  # a batch is in the transaction of this round
    POSTPONED = "POSTPONED"  # another session has locked the row: the same batch is tried again


class BatchEvent(StrEnum):
    """An event of a batch that is to be stored."""

    GIVEN = "a batch is given to the store"
    ROW_HELD = "another session has locked the row"
    COMMITTED = "it is committed"
    NO_ROOM = "too many batches wait for row locks"


State = TypeVar("State", Stage, Storing)
AnyEvent = TypeVar("AnyEvent", Event, BatchEvent)


class Step(NamedTuple, Generic[State]):
    """The next stage, and the actions on the way to it."""

    after: State
    acts: tuple[Act, ...] = ()


class Impossible(RuntimeError):
    """An event that cannot happen in that stage: a fault of the caller."""

    def __init__(self, before: StrEnum, event: StrEnum) -> None:
        super().__init__(f"A conversation is {before}, and {event}: that cannot be.")


_AWAY = (Act.NOTE_ADDRESS, Act.REST)
_NOWHERE = (Act.NOTE_ADDRESS, Act.SAY_WHY, Act.MATCH_LATER)
_AGAIN = (Act.TRAVEL_AGAIN,)
_OFF_LINK = (Act.DROP_LINK, Act.TRAVEL_AGAIN)

LEAVING: dict[tuple[Stage, Event], Step[Stage]] = {
    (Stage.FOUND, Event.ROUTED): Step(Stage.MATCHED, _AWAY),
    (Stage.FOUND, Event.UNROUTED): Step(Stage.FOUND, _NOWHERE),
    (Stage.FOUND, Event.AT_HOME): Step(Stage.FORGOTTEN, (Act.FORGET,)),
    (Stage.FOUND, Event.HELD_BACK): Step(Stage.FOUND, (Act.TRY_LATER,)),
    (Stage.FOUND, Event.LEFT): Step(Stage.FORGOTTEN, (Act.FORGET,)),
    (Stage.MATCHED, Event.ROUTED): Step(Stage.MATCHED, _AWAY),
    (Stage.MATCHED, Event.REROUTED): Step(Stage.MATCHED, _AGAIN + _AWAY),
    (Stage.MATCHED, Event.UNROUTED): Step(Stage.FOUND, _AGAIN + _NOWHERE),
    (Stage.MATCHED, Event.AT_HOME): Step(Stage.FORGOTTEN, (Act.FORGET,)),
    (Stage.MATCHED, Event.WON): Step(Stage.CLAIMED),
    (Stage.MATCHED, Event.BUSY): Step(Stage.MATCHED, (Act.MATCH_SOON,)),
    (Stage.MATCHED, Event.UNSECURED): Step(Stage.FOUND, _NOWHERE),
    (Stage.MATCHED, Event.LINK_FOUND): Step(Stage.MATCHED, (Act.MATCH_SOON,)),
    (Stage.MATCHED, Event.REACHED): Step(Stage.MATCHED, (Act.GO, Act.MATCH_NOW, Act.LINE_UP)),
    # another instance may have the service
    (Stage.MATCHED, Event.UNREACHED): Step(Stage.MATCHED, (Act.MATCH_NOW, Act.TRY_LATER)),
    (Stage.MATCHED, Event.HELD_BACK): Step(Stage.MATCHED, (Act.TRY_LATER,)),
    (Stage.MATCHED, Event.LEFT): Step(Stage.FORGOTTEN, (Act.FORGET,)),
    (Stage.DELAYED, Event.ROUTED): Step(Stage.CLAIMED, _AWAY),
    (Stage.DELAYED, Event.UNROUTED): Step(Stage.DELAYED, _NOWHERE),
    (Stage.DELAYED, Event.AT_HOME): Step(Stage.DELAYED, _NOWHERE),
    (Stage.DELAYED, Event.HELD_BACK): Step(Stage.DELAYED, (Act.TRY_LATER,)),
    (Stage.DELAYED, Event.LEFT): Step(Stage.FORGOTTEN, (Act.FORGET,)),
    (Stage.CLAIMED, Event.ROUTED): Step(Stage.CLAIMED, _AWAY),
    (Stage.CLAIMED, Event.REROUTED): Step(Stage.CLAIMED, _AGAIN + _AWAY),
    (Stage.CLAIMED, Event.UNROUTED): Step(Stage.DELAYED, _AGAIN + _NOWHERE),
    (Stage.CLAIMED, Event.AT_HOME): Step(Stage.DELAYED, _AGAIN + _NOWHERE),
    (Stage.CLAIMED, Event.LINK_FOUND): Step(Stage.LINKED, (Act.TAKE_LINK, Act.GO, Act.SAY_NOTHING)),
    (Stage.CLAIMED, Event.REACHED): Step(Stage.CLAIMED, (Act.GO, Act.LINE_UP)),
    (Stage.CLAIMED, Event.UNREACHED): Step(Stage.CLAIMED, (Act.TRY_LATER,)),
    (Stage.CLAIMED, Event.HELD_BACK): Step(Stage.CLAIMED, (Act.TRY_LATER,)),
    (Stage.CLAIMED, Event.LEFT): Step(Stage.FORGOTTEN, (Act.FORGET,)),
    (Stage.LINKED, Event.ROUTED): Step(Stage.LINKED, _AWAY),
    (Stage.LINKED, Event.REROUTED): Step(Stage.CLAIMED, _OFF_LINK + _AWAY),
    (Stage.LINKED, Event.UNROUTED): Step(Stage.DELAYED, _OFF_LINK + _NOWHERE),
    (Stage.LINKED, Event.AT_HOME): Step(Stage.DELAYED, _OFF_LINK + _NOWHERE),
    (Stage.LINKED, Event.REACHED): Step(Stage.LINKED),  # by another one than its own
    (Stage.LINKED, Event.UNREACHED): Step(Stage.LINKED),
    (Stage.LINKED, Event.LINK_LOST): Step(Stage.CLAIMED, (Act.DROP_LINK, Act.TRY_LATER)),
    (Stage.LINKED, Event.HELD_BACK): Step(Stage.CLAIMED, (Act.DROP_LINK, Act.TRY_LATER)),
    (Stage.LINKED, Event.LEFT): Step(Stage.FORGOTTEN, (Act.DROP_LINK, Act.FORGET)),
}

ARRIVING: dict[tuple[Storing, BatchEvent], Step[Storing]] = {
    (Storing.NOTHING, BatchEvent.GIVEN): Step(Storing.BATCH),
    # read from the database again after its batch was given: the tables have that batch already
    (Storing.NOTHING, BatchEvent.COMMITTED): Step(Storing.NOTHING),
    (Storing.BATCH, BatchEvent.COMMITTED): Step(Storing.NOTHING, (Act.ACKNOWLEDGE,)),
    (Storing.BATCH, BatchEvent.ROW_HELD): Step(Storing.POSTPONED),
    (Storing.POSTPONED, BatchEvent.GIVEN): Step(Storing.BATCH),
    (Storing.POSTPONED, BatchEvent.NO_ROOM): Step(Storing.NOTHING, (Act.ROLL_BACK,)),
}

UNCLAIMED = frozenset({Stage.FOUND, Stage.MATCHED})  # the target may still be created here: no message was sent
UNSETTLED = UNCLAIMED | {Stage.DELAYED}  # these are matched each time they are looked at


def step(table: Mapping[tuple[State, AnyEvent], Step[State]], before: State, event: AnyEvent) -> Step[State]:
    """Return the step that an event leads to.

    Raises:
        Impossible: it cannot happen then.
    """
    found = table.get((before, event))
    if found is None:
        raise Impossible(before, event)
    return found
