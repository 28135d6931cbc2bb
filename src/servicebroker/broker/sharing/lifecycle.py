"""The state machine of one share (shard) beside the daemon's first: stages, events, and the acts that each asks for.

A share runs rounds in a thread of the daemon or in a process of its own. The caller (`broker/shares.py`) carries out
the acts of a step in their order. If an act ends with an event, the acts of that event's step follow, and the remaining
acts of the first step are dropped.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Stage(StrEnum):
    """The stage of a share."""

    OPENING = "OPENING"  # its connection, or its process, is not ready
    SERVING = "SERVING"  # running rounds
    PAUSING = "PAUSING"  # its process was killed; a pause before the next one is started
    ENDED = "ENDED"  # ended, as it was told
    FAILED = "FAILED"  # all shares restart from the database


class Event(StrEnum):
    """An event of a share."""

    READY = "its connection is there"
    EXITED = "its process has exited without a report"
    EXITED_AT_END = "its process has exited without a report when it was told to end"
    UNSTARTABLE = "no process can be started"
    ERROR = "something else has failed"
    PAUSED = "the pause is over"
    TOLD_TO_END = "it is told to end"


class Act(StrEnum):
    """An action that a step asks for."""

    AWAIT = "wait until it is ready"
    RUN_ROUNDS = "run rounds"
    CLOSE = "close its connection, or end its process and the session of that"
    NOTE_KILLED = "count the killed process"
    PAUSE = "pause"
    REPLACE = "start a process in its place"
    OPEN_HERE = "go on in the daemon's process"
    TELL_PROBLEM = "tell the daemon what has failed"


class Step(NamedTuple):
    """The next stage, and the actions on the way to it."""

    after: Stage
    acts: tuple[Act, ...] = ()


FIRST_ACTS = (Act.AWAIT,)
_FAILURE = Step(Stage.FAILED, (Act.CLOSE, Act.TELL_PROBLEM))
_KILLED = Step(Stage.PAUSING, (Act.CLOSE, Act.NOTE_KILLED, Act.PAUSE))

STEPS: dict[tuple[Stage, Event], Step] = {
    (Stage.OPENING, Event.READY): Step(Stage.SERVING, (Act.RUN_ROUNDS,)),
    (Stage.OPENING, Event.EXITED): _KILLED,
    (Stage.OPENING, Event.EXITED_AT_END): _FAILURE,
    (Stage.OPENING, Event.UNSTARTABLE): Step(Stage.OPENING, (Act.CLOSE, Act.OPEN_HERE, Act.AWAIT)),
    (Stage.OPENING, Event.ERROR): _FAILURE,
    (Stage.SERVING, Event.EXITED): _KILLED,
    (Stage.SERVING, Event.EXITED_AT_END): _FAILURE,  # without a wait for its last commit, which a standby may lack
    (Stage.SERVING, Event.ERROR): _FAILURE,
    (Stage.SERVING, Event.TOLD_TO_END): Step(Stage.ENDED, (Act.CLOSE,)),
    (Stage.PAUSING, Event.PAUSED): Step(Stage.OPENING, (Act.REPLACE, Act.AWAIT)),
    (Stage.PAUSING, Event.TOLD_TO_END): Step(Stage.FAILED, (Act.TELL_PROBLEM,)),  # as above
    (Stage.PAUSING, Event.ERROR): Step(Stage.FAILED, (Act.TELL_PROBLEM,)),  # its session could not be ended
    (Stage.ENDED, Event.ERROR): Step(Stage.FAILED, (Act.TELL_PROBLEM,)),
    (Stage.FAILED, Event.ERROR): Step(Stage.FAILED, (Act.TELL_PROBLEM,)),
}


class ShareLife:
    """The stage of one share."""

    def __init__(self) -> None:
        self.stage = Stage.OPENING

    def happens(self, event: Event) -> tuple[Act, ...]:
        """Handle an event: enter the next stage, and return the acts to carry out.

        Raises:
            RuntimeError: that event cannot happen in this stage.
        """
        step = STEPS.get((self.stage, event))
        if step is None:
            raise RuntimeError(f"A share is {self.stage}, and {event}: that cannot be.")
        self.stage = step.after
        return step.acts
