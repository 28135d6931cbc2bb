"""A conversation on its way to another instance: how far it is, what may happen to it then, and what that asks for.

Two tables, since what leaves and what arrives know nothing of each other: `LEAVING` says where what is sent goes and
whether it may travel, `ARRIVING` whether what has come is being stored. A pair that is in none cannot happen, and is
refused. Messages are in no table: those of one conversation are offered, sent, acknowledged and removed at the same
time, by their numbers (`Dialog`).

Whoever drives it (`broker/conversations.py`) tells what happens and carries out, in their order, the acts of the step.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar


class Stage(StrEnum):
    """The stage of what a conversation sends."""

    FOUND = "FOUND"  # without an address, and nothing of it has left
    MATCHED = "MATCHED"  # its address is known; it is not claimed: there is no link, or somebody holds its row
    DELAYED = "DELAYED"  # claimed, for its peer is elsewhere; its address is not known now
    CLAIMED = "CLAIMED"  # its address is known, and there is no link to it
    LINKED = "LINKED"  # its offered messages travel, when its turn comes
    FORGOTTEN = "FORGOTTEN"  # out of memory; what waits is found in the database again


class Event(StrEnum):
    """An event of a conversation that sends."""

    ROUTED = "its address is found, or still the same"
    REROUTED = "another address is found"
    UNROUTED = "there is no address for it now"
    AT_HOME = "its target is to be in this instance"
    WON = "it is claimed"
    BUSY = "somebody holds its row"
    UNSECURED = "it cannot be secured as it has to be"
    LINK_FOUND = "there is a link for what it has to send"
    REACHED = "there is a new link to its address"
    UNREACHED = "no link to its address can be had"
    LINK_LOST = "its link is over"
    HELD_BACK = "it has something to send, and cannot"
    LEFT = "it is gone, or has to be found again"


class Act(StrEnum):
    """An action that a step asks for."""

    NOTE_ADDRESS = "note where it goes"
    TAKE_LINK = "take the link"
    DROP_LINK = "leave the link"
    TRAVEL_AGAIN = "begin again at once"
    TRY_LATER = "begin again later and say why"
    GO = "wait no longer"
    LINE_UP = "get in line"
    SAY_WHY = "say why it waits"
    SAY_NOTHING = "say that all is well"
    MATCH_NOW = "match now"
    MATCH_SOON = "match soon"
    MATCH_LATER = "match later"
    REST = "match when its route expires"
    FORGET = "forget it"
    ACKNOWLEDGE = "acknowledge what is stored"
    ROLL_BACK = "as if it had never arrived: its peer sends it again"


class Storing(StrEnum):
    """The state of what has arrived for a conversation."""

    NOTHING = "NOTHING"  # is being stored
    BATCH = "BATCH"  # is in the transaction of this round
    POSTPONED = "POSTPONED"  # and somebody holds the row: the same batch is tried again


class BatchEvent(StrEnum):
    """An event of a batch that is to be stored."""

    GIVEN = "a batch is given to the store"
    ROW_HELD = "somebody holds the row"
    COMMITTED = "it is committed"
    NO_ROOM = "too much waits for rows"


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
    # found anew after its batch was given: it was made from tables that have the batch already
    (Storing.NOTHING, BatchEvent.COMMITTED): Step(Storing.NOTHING),
    (Storing.BATCH, BatchEvent.COMMITTED): Step(Storing.NOTHING, (Act.ACKNOWLEDGE,)),
    (Storing.BATCH, BatchEvent.ROW_HELD): Step(Storing.POSTPONED),
    (Storing.POSTPONED, BatchEvent.GIVEN): Step(Storing.BATCH),
    (Storing.POSTPONED, BatchEvent.NO_ROOM): Step(Storing.NOTHING, (Act.ROLL_BACK,)),
}

UNCLAIMED = frozenset({Stage.FOUND, Stage.MATCHED})  # no message has left, so its target may still be made here
UNSETTLED = UNCLAIMED | {Stage.DELAYED}  # is matched whenever it is looked at


def step(table: Mapping[tuple[State, AnyEvent], Step[State]], before: State, event: AnyEvent) -> Step[State]:
    """Return the step that an event leads to.

    Raises:
        Impossible: it cannot happen then.
    """
    found = table.get((before, event))
    if found is None:
        raise Impossible(before, event)
    return found
