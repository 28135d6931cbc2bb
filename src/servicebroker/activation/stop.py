"""How an activated task is ended: asked to, and cut when it does not."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import NamedTuple

from servicebroker.api.activated_session import ActivatedSession
from servicebroker.api.aio.activated_session import AsyncActivatedSession


class Ending(NamedTuple):
    """How something that works for a task is ended."""

    ask: Callable[[int | None], None]  # to end after the work in progress, and why
    cut: Callable[[], None]  # now


class Stop:
    """Asks a task to end once the call in progress, or the transaction of a form that takes messages, is over.

    A reader that waits for a message ends at once when the process does.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._event = threading.Event()
        self.reason: int | None = None  # 28085 or 28086; None: the process ends
        self._endings: list[Ending] = []

    def ends(self, ending: Ending) -> None:
        """Ask this, too, when the task is asked to end, also when it was already."""
        with self._lock:
            self._endings.append(ending)
        if self.is_asked():
            ending.ask(self.reason)

    def ends_session(
        self, session: ActivatedSession | AsyncActivatedSession, do: Callable[[Callable[[], None]], object]
    ) -> None:
        """Have the readers of a session wait no more when the process ends; `do` calls what wakes them."""

        def ask(reason: int | None) -> None:
            if reason is None:
                do(session.end_waiting)

        self.ends(Ending(ask, session.cut))

    def ask(self, reason: int | None = None) -> None:
        """The first reason counts."""
        with self._lock:
            if self.is_asked():
                return
            self.reason = reason
            self._event.set()
            endings = tuple(self._endings)
        for ending in endings:
            ending.ask(reason)

    def cut(self) -> None:
        """End it now, in the middle of its work, which is undone."""
        with self._lock:
            endings = tuple(self._endings)
        for ending in endings:
            ending.cut()

    def is_asked(self) -> bool:
        """Whether it is to end."""
        return self._event.is_set()
