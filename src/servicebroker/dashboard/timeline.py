"""The timeline of a conversation, from its event log (trail).

The events of each side have a lane; messages between the sides are arrows.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple
from uuid import UUID

from servicebroker.cli.commands.trail import describe_event
from servicebroker.engine.diagnosis.trail import EVENT_WORDS, Event
from servicebroker.model.names import short
from servicebroker.model.states import STATE_WORDS

# codes of events (engine/diagnosis/trail.py)
_ARRIVED, _WAITS, _FAILED, _DEAD_LETTER, _STATE, _BEGAN, _REMOVED = "A", "W", "F", "P", "S", "B", "G"


class TimelineRow(NamedTuple):
    """An event in one lane.

    `is_this_side`: the event happened at the side whose page is shown, else at the other side. `arrow` is "in" for a
    message that has arrived from the other side, "out" for a message that waits to be delivered, else "". `pause_s` is
    the time since the previous event; None for the first one.
    """

    at: datetime
    transaction: int
    is_this_side: bool
    arrow: str
    text: str
    is_failure: bool
    pause_s: float | None


def timeline_rows(events: Sequence[Event], handle: UUID) -> list[TimelineRow]:
    """Return a row for each event. `handle` is the handle of this side."""
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
                event.what in (_FAILED, _DEAD_LETTER) or (event.what == _STATE and event.detail.endswith("ER")),
                pause_s,
            )
        )
    return rows


def _text(event: Event) -> str:
    """Return an event in words, as `servicebroker trail show`, but with states in words and short system names."""
    if event.what == _STATE:
        before, _, after = event.detail.partition(" ")
        return f"{STATE_WORDS.get(before, before)} → {STATE_WORDS.get(after, after)}"
    if event.what in (_BEGAN, _REMOVED):
        return f"{EVENT_WORDS[event.what]}, {STATE_WORDS.get(event.detail, event.detail)}"
    return describe_event(event._replace(message_type=short(event.message_type)))
