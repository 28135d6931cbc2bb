"""The state machines of a conversation with another instance: stages, events, and the actions for each.

There are two independent tables. `SENDER_TRANSITIONS` is for sending: whether the conversation has an address, is
claimed, and has a link (a connection to the peer). `ARRIVING` is for receiving: whether a batch of received messages is
being stored. An event that the table does not list for a stage raises `Impossible`: it is a bug. Single messages have
no states here: `Dialog` (`dialog.py`) tracks their sequence numbers.

`broker/conversations.py` reports events, and carries out the actions of each step in order.

To match a conversation is to find the address of its target by the routes. To claim it is to note in the database that
its target is in another instance, before the first byte leaves (decision 056).
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Generic, NamedTuple, TypeVar


class Stage(StrEnum):
    """The progress of a conversation's sending side."""

    UNROUTED = "UNROUTED"  # no address; no message was sent yet
    MATCHED = "MATCHED"  # has an address. The claim waits for a link, or for a row lock of another session
    CLAIMED_UNROUTED = "CLAIMED_UNROUTED"  # claimed, but without an address now
    CLAIMED = "CLAIMED"  # claimed, with an address, but without a link
    LINKED = "LINKED"  # has a link; its messages are sent in turn with those of other conversations
    FORGOTTEN = "FORGOTTEN"  # dropped from memory; a later round reads its waiting messages from the database


class Event(StrEnum):
    """An event of a conversation's sending side."""

    ROUTED = "the routes lead to its first or present address"
    REROUTED = "the routes lead to another address"
    UNROUTED = "no route leads to an address now"
    ROUTED_LOCALLY = "the routes lead to this instance"
    WON = "its row is claimed"
    BUSY = "another session has locked its row"
    UNSECURED = "its required dialog security cannot be set up"
    LINK_FOUND = "there is a link for its waiting messages"
    REACHED = "a new link to its address was made"
    UNREACHED = "its address cannot be reached"
    LINK_LOST = "its link was closed"
    SEND_BLOCKED = "it has messages to send, and the database or a certificate blocks them"
    LEFT = "it has ended, or must be read from the database again"


class Action(StrEnum):
    """An action that a step asks for."""

    NOTE_ADDRESS = "note the address"
    TAKE_LINK = "use the link for its messages"
    DROP_LINK = "leave the link"
    RESEND = "send again from the first unacknowledged message"
    TRY_LATER = "retry with backoff, and set the status"
    END_BACKOFF = "end the backoff"
    ENQUEUE = "queue up for sending"
    SET_STATUS = "set transmission_status to the reason"
    CLEAR_STATUS = "clear transmission_status"
    MATCH_NOW = "match in the next round"
    MATCH_SOON = "match after 20 ms"
    MATCH_LATER = "match after 5 s"
    MATCH_AT_EXPIRY = "match when its route expires"
    FORGET = "drop it from memory"
    ACKNOWLEDGE = "acknowledge the committed messages"
    ROLL_BACK = "drop the batch: the peer sends it again"


class Storing(StrEnum):
    """The progress of a conversation's receiving side."""

    NOTHING = "NOTHING"  # no batch is being stored
    BATCH = "BATCH"  # the transaction of this round stores a batch
    POSTPONED = "POSTPONED"  # another session has locked the row: the batch is retried


class BatchEvent(StrEnum):
    """An event of a batch of received messages."""

    STORE_BEGUN = "the store gets a batch"
    ROW_LOCKED = "another session has locked the row"
    COMMITTED = "the batch is committed"
    TOO_MANY_POSTPONED = "too many batches wait for row locks"


State = TypeVar("State", Stage, Storing)
AnyEvent = TypeVar("AnyEvent", Event, BatchEvent)


class Step(NamedTuple, Generic[State]):
    """The next stage, and the actions on the way to it."""

    after: State
    actions: tuple[Action, ...] = ()


class Impossible(RuntimeError):
    """The error for an event that cannot happen in a stage: a bug of the caller."""

    def __init__(self, before: StrEnum, event: StrEnum) -> None:
        super().__init__(f"A conversation is {before}, and {event}: there is no step for this (a bug).")


_ROUTE_NOTED = (Action.NOTE_ADDRESS, Action.MATCH_AT_EXPIRY)
_NO_ROUTE = (Action.NOTE_ADDRESS, Action.SET_STATUS, Action.MATCH_LATER)
_RESEND = (Action.RESEND,)
_LINK_DROPPED = (Action.DROP_LINK, Action.RESEND)

SENDER_TRANSITIONS: dict[tuple[Stage, Event], Step[Stage]] = {
    (Stage.UNROUTED, Event.ROUTED): Step(Stage.MATCHED, _ROUTE_NOTED),
    (Stage.UNROUTED, Event.UNROUTED): Step(Stage.UNROUTED, _NO_ROUTE),
    (Stage.UNROUTED, Event.ROUTED_LOCALLY): Step(Stage.FORGOTTEN, (Action.FORGET,)),
    (Stage.UNROUTED, Event.SEND_BLOCKED): Step(Stage.UNROUTED, (Action.TRY_LATER,)),
    (Stage.UNROUTED, Event.LEFT): Step(Stage.FORGOTTEN, (Action.FORGET,)),
    (Stage.MATCHED, Event.ROUTED): Step(Stage.MATCHED, _ROUTE_NOTED),
    (Stage.MATCHED, Event.REROUTED): Step(Stage.MATCHED, _RESEND + _ROUTE_NOTED),
    (Stage.MATCHED, Event.UNROUTED): Step(Stage.UNROUTED, _RESEND + _NO_ROUTE),
    (Stage.MATCHED, Event.ROUTED_LOCALLY): Step(Stage.FORGOTTEN, (Action.FORGET,)),
    (Stage.MATCHED, Event.WON): Step(Stage.CLAIMED),
    (Stage.MATCHED, Event.BUSY): Step(Stage.MATCHED, (Action.MATCH_SOON,)),
    (Stage.MATCHED, Event.UNSECURED): Step(Stage.UNROUTED, _NO_ROUTE),
    (Stage.MATCHED, Event.LINK_FOUND): Step(Stage.MATCHED, (Action.MATCH_SOON,)),
    (Stage.MATCHED, Event.REACHED): Step(Stage.MATCHED, (Action.END_BACKOFF, Action.MATCH_NOW, Action.ENQUEUE)),
    # another instance may have the service
    (Stage.MATCHED, Event.UNREACHED): Step(Stage.MATCHED, (Action.MATCH_NOW, Action.TRY_LATER)),
    (Stage.MATCHED, Event.SEND_BLOCKED): Step(Stage.MATCHED, (Action.TRY_LATER,)),
    (Stage.MATCHED, Event.LEFT): Step(Stage.FORGOTTEN, (Action.FORGET,)),
    (Stage.CLAIMED_UNROUTED, Event.ROUTED): Step(Stage.CLAIMED, _ROUTE_NOTED),
    (Stage.CLAIMED_UNROUTED, Event.UNROUTED): Step(Stage.CLAIMED_UNROUTED, _NO_ROUTE),
    (Stage.CLAIMED_UNROUTED, Event.ROUTED_LOCALLY): Step(Stage.CLAIMED_UNROUTED, _NO_ROUTE),
    (Stage.CLAIMED_UNROUTED, Event.SEND_BLOCKED): Step(Stage.CLAIMED_UNROUTED, (Action.TRY_LATER,)),
    (Stage.CLAIMED_UNROUTED, Event.LEFT): Step(Stage.FORGOTTEN, (Action.FORGET,)),
    (Stage.CLAIMED, Event.ROUTED): Step(Stage.CLAIMED, _ROUTE_NOTED),
    (Stage.CLAIMED, Event.REROUTED): Step(Stage.CLAIMED, _RESEND + _ROUTE_NOTED),
    (Stage.CLAIMED, Event.UNROUTED): Step(Stage.CLAIMED_UNROUTED, _RESEND + _NO_ROUTE),
    (Stage.CLAIMED, Event.ROUTED_LOCALLY): Step(Stage.CLAIMED_UNROUTED, _RESEND + _NO_ROUTE),
    (Stage.CLAIMED, Event.LINK_FOUND): Step(Stage.LINKED, (Action.TAKE_LINK, Action.END_BACKOFF, Action.CLEAR_STATUS)),
    (Stage.CLAIMED, Event.REACHED): Step(Stage.CLAIMED, (Action.END_BACKOFF, Action.ENQUEUE)),
    (Stage.CLAIMED, Event.UNREACHED): Step(Stage.CLAIMED, (Action.TRY_LATER,)),
    (Stage.CLAIMED, Event.SEND_BLOCKED): Step(Stage.CLAIMED, (Action.TRY_LATER,)),
    (Stage.CLAIMED, Event.LEFT): Step(Stage.FORGOTTEN, (Action.FORGET,)),
    (Stage.LINKED, Event.ROUTED): Step(Stage.LINKED, _ROUTE_NOTED),
    (Stage.LINKED, Event.REROUTED): Step(Stage.CLAIMED, _LINK_DROPPED + _ROUTE_NOTED),
    (Stage.LINKED, Event.UNROUTED): Step(Stage.CLAIMED_UNROUTED, _LINK_DROPPED + _NO_ROUTE),
    (Stage.LINKED, Event.ROUTED_LOCALLY): Step(Stage.CLAIMED_UNROUTED, _LINK_DROPPED + _NO_ROUTE),
    (Stage.LINKED, Event.REACHED): Step(Stage.LINKED),  # a second link to the address: it keeps the one it has
    (Stage.LINKED, Event.UNREACHED): Step(Stage.LINKED),
    (Stage.LINKED, Event.LINK_LOST): Step(Stage.CLAIMED, (Action.DROP_LINK, Action.TRY_LATER)),
    (Stage.LINKED, Event.SEND_BLOCKED): Step(Stage.CLAIMED, (Action.DROP_LINK, Action.TRY_LATER)),
    (Stage.LINKED, Event.LEFT): Step(Stage.FORGOTTEN, (Action.DROP_LINK, Action.FORGET)),
}

ARRIVING: dict[tuple[Storing, BatchEvent], Step[Storing]] = {
    (Storing.NOTHING, BatchEvent.STORE_BEGUN): Step(Storing.BATCH),
    # The conversation was reloaded while its batch was stored: the reloaded state includes the batch.
    (Storing.NOTHING, BatchEvent.COMMITTED): Step(Storing.NOTHING),
    (Storing.BATCH, BatchEvent.COMMITTED): Step(Storing.NOTHING, (Action.ACKNOWLEDGE,)),
    (Storing.BATCH, BatchEvent.ROW_LOCKED): Step(Storing.POSTPONED),
    (Storing.POSTPONED, BatchEvent.STORE_BEGUN): Step(Storing.BATCH),
    (Storing.POSTPONED, BatchEvent.TOO_MANY_POSTPONED): Step(Storing.NOTHING, (Action.ROLL_BACK,)),
}

# no message was sent: a local service may still become the target
UNCLAIMED = frozenset({Stage.UNROUTED, Stage.MATCHED})
NEEDS_MATCHING = UNCLAIMED | {Stage.CLAIMED_UNROUTED}  # matched in each round that handles them


def step(table: Mapping[tuple[State, AnyEvent], Step[State]], before: State, event: AnyEvent) -> Step[State]:
    """Return the step for an event in the stage `before`.

    Raises:
        Impossible: the event cannot happen in this stage.
    """
    following = table.get((before, event))
    if following is None:
        raise Impossible(before, event)
    return following
