"""The state machine of one share (partition) besides the daemon's own: stages, events, and the actions for each.

A share runs rounds in a thread of the daemon or in a process of its own. The caller (`broker/shares.py`) carries out
the actions of a step in order. If an action ends with an event, the actions of that event's step follow, and the
remaining actions of the first step are dropped.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple


class Stage(StrEnum):
    """The stage of a share."""

    OPENING = "OPENING"  # its connection, or its process, is not ready
    SERVING = "SERVING"  # running rounds
    PAUSING = "PAUSING"  # its process was killed; a pause before the next one is started
    ENDED = "ENDED"  # ended after a request
    FAILED = "FAILED"  # all shares restart from the database


class Event(StrEnum):
    """An event of a share."""

    READY = "its connection is ready"
    EXITED = "its process has exited without a report"
    EXITED_AT_END = "its process has exited without a report after a request to end"
    UNSTARTABLE = "no process can be started"
    ERROR = "something else has failed"
    PAUSED = "the pause is over"
    STOP_REQUESTED = "the daemon requests its end"


class ShareAction(StrEnum):
    """An action that a step asks for."""

    AWAIT = "wait until it is ready"
    RUN_ROUNDS = "run rounds"
    CLOSE = "close its connection, or end its process and the process's session"
    COUNT_KILLED = "count the killed process"
    PAUSE = "pause"
    REPLACE = "start another process"
    OPEN_IN_DAEMON = "continue in the daemon's process"
    REPORT_PROBLEM = "report the failure to the daemon"


class Step(NamedTuple):
    """The next stage, and the actions on the way to it."""

    after: Stage
    actions: tuple[ShareAction, ...] = ()


FIRST_ACTIONS = (ShareAction.AWAIT,)
_FAILURE = Step(Stage.FAILED, (ShareAction.CLOSE, ShareAction.REPORT_PROBLEM))
_KILLED = Step(Stage.PAUSING, (ShareAction.CLOSE, ShareAction.COUNT_KILLED, ShareAction.PAUSE))

STEPS: dict[tuple[Stage, Event], Step] = {
    (Stage.OPENING, Event.READY): Step(Stage.SERVING, (ShareAction.RUN_ROUNDS,)),
    (Stage.OPENING, Event.EXITED): _KILLED,
    (Stage.OPENING, Event.EXITED_AT_END): _FAILURE,
    (Stage.OPENING, Event.UNSTARTABLE): Step(
        Stage.OPENING, (ShareAction.CLOSE, ShareAction.OPEN_IN_DAEMON, ShareAction.AWAIT)
    ),
    (Stage.OPENING, Event.ERROR): _FAILURE,
    (Stage.SERVING, Event.EXITED): _KILLED,
    (Stage.SERVING, Event.EXITED_AT_END): _FAILURE,  # without a wait for its last commit, which a standby may lack
    (Stage.SERVING, Event.ERROR): _FAILURE,
    (Stage.SERVING, Event.STOP_REQUESTED): Step(Stage.ENDED, (ShareAction.CLOSE,)),
    (Stage.PAUSING, Event.PAUSED): Step(Stage.OPENING, (ShareAction.REPLACE, ShareAction.AWAIT)),
    (Stage.PAUSING, Event.STOP_REQUESTED): Step(Stage.FAILED, (ShareAction.REPORT_PROBLEM,)),  # as above
    (Stage.PAUSING, Event.ERROR): Step(Stage.FAILED, (ShareAction.REPORT_PROBLEM,)),  # its session could not be ended
    (Stage.ENDED, Event.ERROR): Step(Stage.FAILED, (ShareAction.REPORT_PROBLEM,)),
    (Stage.FAILED, Event.ERROR): Step(Stage.FAILED, (ShareAction.REPORT_PROBLEM,)),
}


class ShareLife:
    """The stage of one share."""

    def __init__(self) -> None:
        self.stage = Stage.OPENING

    def on_event(self, event: Event) -> tuple[ShareAction, ...]:
        """Handle an event: enter the next stage, and return the acts to carry out.

        Raises:
            RuntimeError: the event cannot happen in this stage.
        """
        step = STEPS.get((self.stage, event))
        if step is None:
            raise RuntimeError(f"A share is {self.stage}, and {event}: there is no step for this (a bug).")
        self.stage = step.after
        return step.actions
