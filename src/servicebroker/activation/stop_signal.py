"""Stop an activated task: by a request, or by termination."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from servicebroker.api.activated_session import ActivatedSession
from servicebroker.api.aio.activated_session import AsyncActivatedSession


class StopTarget(NamedTuple):
    """Two functions that stop a part of a task.

    Attributes:
        request_stop: stop after the work in progress. The argument is the reason, 28085 or 28086, or None.
        terminate: stop now.
    """

    request_stop: Callable[[int | None], None]
    terminate: Callable[[], None]


class StopSignal:
    """Asks a task to end after the call in progress, or in the forms "message" and "batch" after the transaction.

    If the process ends, a reader that waits for a message ends immediately.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self.reason: int | None = None  # 28085 or 28086; None if the process ends
        self._targets: list[StopTarget] = []

    def add_target(self, target: StopTarget) -> None:
        """Add a target, which gets the request to stop, also if that was made already."""
        with self._lock:
            self._targets.append(target)
        if self.is_requested():
            target.request_stop(self.reason)

    def add_session(
        self, session: ActivatedSession | AsyncActivatedSession, call_soon: Callable[[Callable[[], None]], object]
    ) -> None:
        """Add a session, whose readers stop waiting if the process ends.

        `call_soon` calls the function that wakes these readers, in their thread or event loop.
        """

        def request_stop(reason: int | None) -> None:
            if reason is None:
                call_soon(session.end_waiting)

        self.add_target(StopTarget(request_stop, session.terminate))

    def request_stop(self, reason: int | None = None) -> None:
        """Ask the task to end. Later calls have no effect."""
        with self._lock:
            if self.is_requested():
                return
            self.reason = reason
            self._event.set()
            targets = tuple(self._targets)
        for target in targets:
            target.request_stop(reason)

    def terminate(self) -> None:
        """End the task during its work, which is rolled back."""
        with self._lock:
            targets = tuple(self._targets)
        for target in targets:
            target.terminate()

    def is_requested(self) -> bool:
        """Check whether the task was asked to end."""
        return self._event.is_set()
