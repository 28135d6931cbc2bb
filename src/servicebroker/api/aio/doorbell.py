"""How a reader that waits is woken: it lists itself, a SEND that sees it notifies, and its bell rings.

Messages of one group wake one reader of the process, and with it those that wait for a certain conversation or group:
woken all at once, sixteen readers would look sixteen times for each message. Where several groups may have got
messages, who was woken wakes the next as soon as it has found something. What changes the queue itself wakes all.

Where notifications follow each other closely the process takes itself off the list, and one of its sleepers looks from
time to time instead (api/shared/rush.py), until a few have found nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

import psycopg

from servicebroker.api.shared.rush import Rush
from servicebroker.engine.conversation.plain_verbs import Direct
from servicebroker.model.errors import InstanceError
from servicebroker.store.aio.concurrency import Background, Event, Lock, finish
from servicebroker.store.aio.connection import connect
from servicebroker.store.aio.running import run_alone

_LOOK = 0.5  # seconds between looks at whether the instance was closed


class Doorbell:
    """One LISTEN connection for all waiting readers of a process, started by the first.

    Attributes:
        service_changes: of queues at which readers wait, how often a service was altered or dropped; forgotten when
            that may have changed.
    """

    def __init__(self, url: str, engine: type[Direct]) -> None:
        self._url = url
        self._engine = engine
        self._lock = Lock()
        self._waiting: dict[int, list[Bell]] = {}
        self._registered: set[int] = set()
        self._rushes: dict[int, Rush] = {}
        self.service_changes: dict[int, int] = {}
        self._registrar: psycopg.AsyncConnection[Any] | None = None
        self._background: Background | None = None
        self._closed, self._listens = Event(), Event()
        self.losses = 0

    def hears(self, queue_id: int) -> bool:
        """Whether others of this process wait at the queue: then it costs nothing to listen before the first look."""
        return queue_id in self._registered or self._is_rushed(queue_id)

    @contextlib.asynccontextmanager
    async def listening(self, queue_id: int, *, choosy: bool) -> AsyncIterator[Bell]:
        """A bell that rings when a message was sent to the queue. The caller looks again after entering.

        `choosy` is who does not take the first message that comes, but one of a certain conversation or group.
        """
        bell = Bell(choosy=choosy)
        try:
            await self._enter(queue_id, bell)
            yield bell
        finally:
            await finish(self._leave(queue_id, bell))

    async def found(self, queue_id: int, bell: Bell) -> bool:
        """The bell's reader is done with what it has found, and waits on. Whether it was listed all the while.

        As if it had left and come back, but that nothing is written. What the bell rings for is for its own next look.
        """
        async with self._lock:
            bells = self._waiting[queue_id]
            bells.remove(bell)
            if queue_id in self._rushes:
                self._rushes[queue_id].found()
            if bell.is_one_of_several:
                bell.is_one_of_several = False
                _wake_one(bells, several=True)
            bells.append(bell)  # who sleeps longest stands first
            was_listed = self.hears(queue_id)
            if not was_listed:
                await self._register()
            return was_listed

    async def share(self, queue_id: int) -> None:
        """A reader has found something and is busy with it: one that sleeps looks whether there is more."""
        if queue_id in self._waiting:
            async with self._lock:
                bells = self._waiting.get(queue_id, ())
                if len(bells) > 1 or any(bell.sleeps for bell in bells):  # else it would ring its own
                    _wake_one(bells, several=False)

    def waiting(self, queue_id: int) -> int:
        """How many readers of this process sleep until a message comes to the queue."""
        return sum(bell.sleeps for bell in self._waiting.get(queue_id, ()))

    async def close(self) -> None:
        """Stop listening; who still waits looks once more, and finds the instance closed."""
        self._closed.set()
        if self._background is not None:
            await self._background.stop()
        async with self._lock:
            if self._registrar is not None:
                await self._registrar.close()
            for bell in itertools.chain(*self._waiting.values()):
                bell.ring()

    async def _enter(self, queue_id: int, bell: Bell) -> None:
        async with self._lock:
            await self._start()
            self._waiting.setdefault(queue_id, []).append(bell)
            if not self.hears(queue_id):
                await self._register()

    async def _leave(self, queue_id: int, bell: Bell) -> None:
        async with self._lock:
            bells = self._waiting.get(queue_id, [])
            if bell in bells:  # not when it was interrupted before it entered
                bells.remove(bell)
                if queue_id in self._rushes:
                    self._rushes[queue_id].found()
                if not bells:
                    del self._waiting[queue_id]
                    if not self._is_rushed(queue_id):
                        self.service_changes.pop(queue_id, None)
                        await self._register()
                elif bell.is_ringing or bell.is_one_of_several:
                    _wake_one(bells, several=bell.is_one_of_several)

    async def _start(self) -> None:
        if self._background is None:
            self._background = Background(self._listen, "servicebroker doorbell")
            await self._listens.wait(_LOOK)

    async def _register(self) -> None:
        """List the queues whose messages we are to be notified of, and no others.

        Where that fails nobody notifies us, and the reader's own poll still finds every message.
        """
        self._registered = set()
        for _ in range(2):  # the first may find that the connection was lost
            if self._closed.is_set():
                return
            try:
                registrar = self._registrar = self._registrar or await self._connect()
                wanted = [queue_id for queue_id in self._waiting if not self._is_rushed(queue_id)]
                await run_alone(registrar, self._engine.wait_for(wanted))
                self._registered = set(wanted)
                return
            except (psycopg.Error, InstanceError):
                if self._registrar is not None:
                    await self._registrar.close()
                self._registrar = None

    async def _drawn(self, queue_id: int) -> int | None:
        """The last number of arrival that a message of the queue has drawn; None where it cannot be told."""
        if self._registrar is not None:
            with contextlib.suppress(psycopg.Error):
                return await run_alone(self._registrar, self._engine.drawn(queue_id))
        return None

    async def _connect(self) -> psycopg.AsyncConnection[Any]:
        return await connect(self._url, application_name="servicebroker waiting readers")

    async def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                async with await connect(self._url, application_name="servicebroker doorbell") as connection:
                    connection.interval = _LOOK
                    await connection.execute("listen servicebroker")
                    self._listens.set()
                    if self.losses:
                        async with self._lock:
                            await self._register()  # a server that crashed has forgotten
                    while not self._closed.is_set():
                        due = min((rush.due for rush in self._rushes.values()), default=math.inf)
                        pause = max(0.001, min(_LOOK, due - time.monotonic()))
                        async for notice in connection.notifies(timeout=pause, stop_after=1):
                            await self._notified(notice.payload)
                        await self._look()
            except (psycopg.Error, InstanceError):
                self.losses += 1
                self._rushes.clear()
                self.service_changes.clear()
                await self._closed.wait(_LOOK)

    async def _notified(self, payload: str) -> None:
        """`QUEUE GROUP`: messages of a group came; `QUEUE`: of several, perhaps; `-QUEUE`: the queue has changed."""
        queue_id, _, group = payload.partition(" ")
        if not re.fullmatch(r"-?\d{1,10}", queue_id):  # anybody may NOTIFY
            return
        changed = queue_id.startswith("-")
        async with self._lock:
            bells = self._waiting.get(abs(int(queue_id)), ())
            if changed:
                self.service_changes.pop(abs(int(queue_id)), None)
            for bell in bells:
                if changed or bell.is_choosy:
                    bell.ring(changed=changed)
            if not changed:
                _wake_one(bells, several=not group)
                if not bells and int(queue_id) not in self._rushes:
                    return  # anybody may NOTIFY any number
                rush = self._rushes.setdefault(int(queue_id), Rush())
                rush.notified(time.monotonic())
                if rush.is_on and int(queue_id) in self._registered:
                    await self._register()

    async def _look(self) -> None:
        """In a rush, and after it, let one who sleeps look; it wakes the next when it has found something."""
        now = time.monotonic()
        for queue_id, rush in list(self._rushes.items()):
            if rush.due <= now:
                async with self._lock:
                    bells = self._waiting.get(queue_id, ())
                    rush.attended = now if bells else rush.attended
                    drawn = await self._drawn(queue_id) if rush.asks(now) else None
                    if rush.look(now, drawn):
                        await self._register()
                        if not bells:
                            self.service_changes.pop(queue_id, None)
                    for bell in bells:
                        if bell.is_choosy:
                            bell.ring()
                    _wake_one([bell for bell in bells if bell.sleeps], several=True)

    def _is_rushed(self, queue_id: int) -> bool:
        return queue_id in self._rushes and self._rushes[queue_id].is_on


class Bell:
    """Rings once for any number of messages that came.

    Attributes:
        is_choosy: its reader waits for a certain conversation or group.
        sleeps: its reader sleeps; otherwise it looks, or is busy with what it has found.
        is_one_of_several: it rang for several groups, perhaps, and rings the next when its reader has found one.
    """

    def __init__(self, *, choosy: bool) -> None:
        self.is_choosy = choosy
        self.sleeps = False
        self.is_one_of_several = False
        self._changed = False
        self._event = Event()

    @property
    def is_ringing(self) -> bool:
        """Whether its reader has not begun to look since it rang."""
        return self._event.is_set()

    def ring(self, *, changed: bool = False, several: bool = False) -> None:
        """Wake the reader."""
        self.sleeps = False
        self.is_one_of_several = self.is_one_of_several or several
        self._changed = self._changed or changed
        self._event.set()

    async def wait(self, seconds: float) -> bool:
        """Sleep until the bell rings, at most `seconds`: whether the queue itself may have changed meanwhile."""
        self.sleeps = not self._event.is_set()
        rang = await self._event.wait(seconds)
        self.sleeps = False
        self._event.clear()
        changed, self._changed = self._changed, False
        return changed or not rang


def _wake_one(bells: Sequence[Bell], *, several: bool) -> None:
    """The one that sleeps longest; where none sleeps, one that will look again or, when it leaves, ring the next."""
    able = (bell for bell in bells if not bell.is_choosy)
    first = min(able, key=lambda bell: not bell.sleeps, default=None)
    if first is not None:
        first.ring(several=several)
