# Made from aio/doorbell.py by tools/make_sync.py: change that file, then run `make sync`.
"""The doorbell: it wakes readers that wait for messages.

A waiting reader lists itself in a table, a SEND that sees it there notifies, and the reader's bell rings.

Messages of one group wake one reader of the process, and the readers that wait for a certain conversation or group.
Woken all at once, sixteen readers would poll sixteen times for each message. If messages of several groups may have
come, each woken reader wakes the next one as soon as it has found a message. A change of the queue itself wakes all.

If notifications follow each other closely and find readers at work, the process leaves the table. One of its sleeping
readers polls instead (api/shared/polling_mode.py), until a few polls have found nothing.
"""

from __future__ import annotations

import contextlib
import itertools
import math
import re
import time
from collections.abc import Iterator, Sequence
from typing import Any

import psycopg

from servicebroker.api.shared.polling_mode import PollingMode
from servicebroker.engine.conversation.owner_verbs import OwnerVerbs
from servicebroker.model.errors import InstanceError
from servicebroker.store import lost_sessions
from servicebroker.store.concurrency import Background, Event, Lock
from servicebroker.store.connection import connect
from servicebroker.store.direct import wait_for_notifications
from servicebroker.store.running import run_alone

_CLOSE_CHECK_S = 0.5  # between two looks at whether the instance was closed


class Doorbell:
    """One LISTEN connection for all waiting readers of a process, started by the first.

    Attributes:
        service_changes: for queues with waiting readers, how often a service was altered or dropped; removed if that
            number may have changed.
        losses: how often the connection was lost.
    """

    def __init__(self, url: str, engine: type[OwnerVerbs]) -> None:
        self._url = url
        self._engine = engine
        self._lock = Lock()
        self._waiting: dict[int, list[Bell]] = {}
        self._registered: set[int] = set()
        self._polling: dict[int, PollingMode] = {}
        self.service_changes: dict[int, int] = {}
        self._registrar: psycopg.Connection[Any] | None = None
        self._background: Background | None = None
        self._closed, self._listens = Event(), Event()
        self.losses = 0

    def is_registered(self, queue_id: int) -> bool:
        """Return whether readers of this process wait at the queue: then listening before polling costs nothing."""
        return queue_id in self._registered or self._is_polled(queue_id)

    @contextlib.contextmanager
    def listening(self, queue_id: int, *, filtered: bool) -> Iterator[Bell]:
        """Give the block a bell that rings when a message was sent to the queue. The caller polls after entering.

        `filtered`: the reader takes messages of a certain conversation or group only.
        """
        bell = Bell(filtered=filtered)
        try:
            self._enter(queue_id, bell)
            yield bell
        finally:
            self._leave(queue_id, bell)

    def keep_waiting(self, queue_id: int, bell: Bell) -> bool:
        """Keep waiting after a message.

        Returns False if the queue was unregistered meanwhile, so that a message may have been missed. The effect is
        that of leaving and entering again, but nothing is written. If the bell has rung, it stays so for the next poll.
        """
        with self._lock:
            bells = self._waiting[queue_id]
            bells.remove(bell)
            if queue_id in self._polling:
                self._polling[queue_id].note_message()
            if bell.wakes_next:
                bell.wakes_next = False
                _wake_one(bells, wakes_next=True)
            bells.append(bell)  # the reader that sleeps longest stands first
            was_listed = self.is_registered(queue_id)
            if not was_listed:
                self._register()
            return was_listed

    def wake_another(self, queue_id: int) -> None:
        """Let a sleeping reader poll for more, while another reader is busy with a message."""
        if queue_id in self._waiting:
            with self._lock:
                bells = self._waiting.get(queue_id, ())
                # a single bell that is not asleep is the caller's own
                if len(bells) > 1 or any(bell.is_asleep for bell in bells):
                    _wake_one(bells, wakes_next=False)

    def count_asleep(self, queue_id: int) -> int:
        """Return how many readers of this process sleep until a message comes to the queue."""
        return sum(bell.is_asleep for bell in self._waiting.get(queue_id, ()))

    def stop(self) -> None:
        """Let listening end, without waiting for it."""
        self._closed.set()

    def close(self) -> None:
        """Stop listening. Readers that still wait poll once more, and find the instance closed."""
        self._closed.set()
        if self._background is not None:
            self._background.stop()
        with self._lock:
            if self._registrar is not None:
                self._registrar.close()
            for bell in itertools.chain(*self._waiting.values()):
                bell.ring()

    def _enter(self, queue_id: int, bell: Bell) -> None:
        with self._lock:
            self._start()
            self._waiting.setdefault(queue_id, []).append(bell)
            if not self.is_registered(queue_id):
                self._register()

    def _leave(self, queue_id: int, bell: Bell) -> None:
        with self._lock:
            bells = self._waiting.get(queue_id, [])
            if bell in bells:  # not if the reader was interrupted before it entered
                bells.remove(bell)
                if queue_id in self._polling:
                    self._polling[queue_id].note_message()
                if not bells:
                    del self._waiting[queue_id]
                    if not self._is_polled(queue_id):
                        self.service_changes.pop(queue_id, None)
                        self._register()
                elif bell.is_ringing or bell.wakes_next:
                    _wake_one(bells, wakes_next=bell.wakes_next)

    def _start(self) -> None:
        if self._background is None:
            self._background = Background(self._listen, "servicebroker doorbell")
            self._listens.wait(_CLOSE_CHECK_S)

    def _register(self) -> None:
        """Store the queues whose messages notify this process, and no others.

        If that fails, no notification comes, and the readers' own polls still find every message.
        """
        self._registered = set()
        for _ in range(2):  # the first may find that the connection was lost
            if self._closed.is_set():
                return
            try:
                registrar = self._registrar = self._registrar or self._connect()
                wanted = [queue_id for queue_id in self._waiting if not self._is_polled(queue_id)]
                run_alone(registrar, self._engine.wait_for(wanted))
                self._registered = set(wanted)
                return
            except (psycopg.Error, InstanceError):
                if self._registrar is not None:
                    self._registrar.close()
                self._registrar = None

    def _last_number(self, queue_id: int) -> int | None:
        """Return the last number of arrival that a message of the queue has drawn; None if it cannot be found out."""
        if self._registrar is not None:
            with contextlib.suppress(psycopg.Error):
                return run_alone(self._registrar, self._engine.drawn(queue_id))
        return None

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self._url, application_name="servicebroker waiting readers")

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                with connect(self._url, application_name="servicebroker doorbell") as connection:
                    connection.interval = _CLOSE_CHECK_S
                    connection.execute("listen servicebroker")
                    lost_sessions.note_listener(connection)
                    self._listens.set()
                    if self.losses:
                        with self._lock:
                            self._register()  # a server that crashed has lost it
                    while not self._closed.is_set():
                        next_poll = min((mode.next_poll for mode in self._polling.values()), default=math.inf)
                        pause = max(0.001, min(_CLOSE_CHECK_S, next_poll - time.monotonic()))
                        for payload in wait_for_notifications(connection, pause):
                            self._notified(payload)
                        self._poll()
            except (psycopg.Error, InstanceError):
                self.losses += 1
                self._polling.clear()
                self.service_changes.clear()
                self._closed.wait(_CLOSE_CHECK_S)

    def _notified(self, payload: str) -> None:
        """Wake readers for a notification.

        `QUEUE GROUP`: messages of a group came; `QUEUE`: messages of several groups, perhaps; `-QUEUE`: the queue was
        changed.
        """
        queue_id, _, group = payload.partition(" ")
        if not re.fullmatch(r"-?\d{1,10}", queue_id):  # anybody may NOTIFY
            return
        changed = queue_id.startswith("-")
        with self._lock:
            bells = self._waiting.get(abs(int(queue_id)), ())
            were_asleep = bool(bells) and all(bell.is_asleep for bell in bells)
            if changed:
                self.service_changes.pop(abs(int(queue_id)), None)
            for bell in bells:
                if changed or bell.is_filtered:
                    bell.ring(changed=changed)
            if not changed:
                _wake_one(bells, wakes_next=not group)
                if not bells and int(queue_id) not in self._polling:
                    return  # anybody may NOTIFY any number
                mode = self._polling.setdefault(int(queue_id), PollingMode())
                mode.note_notification(time.monotonic(), were_asleep=were_asleep)
                if mode.is_on and int(queue_id) in self._registered:
                    self._register()

    def _poll(self) -> None:
        """In polling mode and after it, let one sleeping reader poll; it wakes the next one if it finds a message."""
        now = time.monotonic()
        for queue_id, mode in list(self._polling.items()):
            if mode.next_poll <= now:
                with self._lock:
                    bells = self._waiting.get(queue_id, ())
                    mode.last_attended = now if bells else mode.last_attended
                    last_number = self._last_number(queue_id) if mode.needs_count(now) else None
                    if mode.plan_poll(now, last_number):
                        self._register()
                        if not bells:
                            self.service_changes.pop(queue_id, None)
                    for bell in bells:
                        if bell.is_filtered:
                            bell.ring()
                    _wake_one([bell for bell in bells if bell.is_asleep], wakes_next=True)

    def _is_polled(self, queue_id: int) -> bool:
        return queue_id in self._polling and self._polling[queue_id].is_on


class Bell:
    """The bell of a waiting reader. It rings once for any number of messages that came.

    Attributes:
        is_filtered: the reader waits for a certain conversation or group.
        is_asleep: the reader sleeps; otherwise it polls, or is busy with a message.
        wakes_next: messages of several groups may have come, so a reader that finds one wakes the next reader.
    """

    def __init__(self, *, filtered: bool) -> None:
        self.is_filtered = filtered
        self.is_asleep = False
        self.wakes_next = False
        self._changed = False
        self._event = Event()

    @property
    def is_ringing(self) -> bool:
        """Return whether the reader has not begun to poll since the bell rang."""
        return self._event.is_set()

    def ring(self, *, changed: bool = False, wakes_next: bool = False) -> None:
        """Wake the reader."""
        self.wakes_next = wakes_next or (self.wakes_next and not self.is_asleep)  # a sleeper has found nothing since
        self.is_asleep = False
        self._changed = self._changed or changed
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep until the bell rings, at most `seconds`. Return whether the queue itself may have changed meanwhile."""
        self.is_asleep = not self._event.is_set()
        rang = self._event.wait(seconds)
        self.is_asleep = False
        self._event.clear()
        changed, self._changed = self._changed, False
        return changed or not rang


def _wake_one(bells: Sequence[Bell], *, wakes_next: bool) -> None:
    """Wake the reader that sleeps longest; else one that will poll again or, when it leaves, wake the next."""
    unfiltered = (bell for bell in bells if not bell.is_filtered)
    first = min(unfiltered, key=lambda bell: not bell.is_asleep, default=None)
    if first is not None:
        first.ring(wakes_next=wakes_next)
