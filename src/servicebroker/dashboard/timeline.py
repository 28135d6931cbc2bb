"""The timeline of a conversation: the events of its two sides in two lanes, and messages as arrows between them."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.cli.commands.trail import told
from servicebroker.engine.diagnosis.trail import EVENT_WORDS, Event
from servicebroker.model.names import short
from servicebroker.model.states import STATE_WORDS

_ARRIVED, _WAITS, _FAILED, _SET_ASIDE, _STATE, _BEGAN, _GONE = "A", "W", "F", "P", "S", "B", "G"


class TimelineRow(NamedTuple):
    """An event in one lane.

    `arrow` is in, for a message that arrives from the other side, out, for one that waits to go there, or none.
    `pause_s` is the time since the event before; None for the first one.
    """

    at: datetime
    transaction: int
    is_near: bool
    arrow: str
    text: str
    is_failure: bool
    pause_s: float | None


def drawn(events: Sequence[Event], handle: UUID) -> list[TimelineRow]:
    """Return the rows of a timeline that is seen from the side with this handle."""
    rows: list[TimelineRow] = []
    for event in events:
        pause_s = (event.at - rows[-1].at).total_seconds() if rows else None
        arrow = {_ARRIVED: "in", _WAITS: "out"}.get(event.what, "")
        rows.append(
            TimelineRow(
                event.at,
                event.transaction,
                event.handle == handle,
                arrow,
                _text(event),
                event.what in (_FAILED, _SET_ASIDE) or (event.what == _STATE and event.detail.endswith("ER")),
                pause_s,
            )
        )
    return rows


def _text(event: Event) -> str:
    """Return an event as the trail tells it, with states in words and short names of system messages."""
    if event.what == _STATE:
        before, _, after = event.detail.partition(" ")
        return f"{STATE_WORDS.get(before, before)} → {STATE_WORDS.get(after, after)}"
    if event.what in (_BEGAN, _GONE):
        return f"{EVENT_WORDS[event.what]}, {STATE_WORDS.get(event.detail, event.detail)}"
    return told(event._replace(message_type=short(event.message_type)))
