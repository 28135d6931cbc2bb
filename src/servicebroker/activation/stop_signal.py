"""The end of an activated task: a request to stop, and termination if it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from servicebroker.api.activated_session import ActivatedSession
from servicebroker.api.aio.activated_session import AsyncActivatedSession


class StopTarget(NamedTuple):
    """Something that works for a task, and how to end it."""

    request_stop: Callable[[int | None], None]  # to end after the work in progress, with the reason
    terminate: Callable[[], None]  # now


class StopSignal:
    """Asks a task to end after the call in progress, or after the transaction of a form that takes messages.

    When the process ends, a reader that waits for a message ends at once.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self.reason: int | None = None  # 28085 or 28086; None if the process ends
        self._targets: list[StopTarget] = []

    def add_target(self, target: StopTarget) -> None:
        """Pass the request on to a target, also if it was made already."""
        with self._lock:
            self._targets.append(target)
        if self.is_requested():
            target.request_stop(self.reason)

    def add_session(
        self, session: ActivatedSession | AsyncActivatedSession, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        """Let readers of a session stop waiting when the process ends.

        `call_soon` runs the function that wakes them.
        """

        def request_stop(reason: int | None) -> None:
            if reason is None:
                call_soon(session.end_waiting)

        self.add_target(StopTarget(request_stop, session.terminate))

    def request_stop(self, reason: int | None = None) -> None:
        """Ask the task to end. Only the first reason counts."""
        with self._lock:
            if self.is_requested():
                return
            self.reason = reason
            self._event.set()
            targets = tuple(self._targets)
        for target in targets:
            target.request_stop(reason)

    def terminate(self) -> None:
        """End the task now, within its work, which is undone."""
        with self._lock:
            targets = tuple(self._targets)
        for target in targets:
            target.terminate()

    def is_requested(self) -> bool:
        """True if the task is asked to end."""
        return self._event.is_set()
