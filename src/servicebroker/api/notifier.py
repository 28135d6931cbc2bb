# Made from aio/notifier.py by tools/make_sync.py: change that file, then run `make sync`.
"""The notifier: one LISTEN connection of a process, which wakes its readers when messages arrive.

A process with waiting readers registers itself in a table (`waiting_readers`). A SEND that finds a registration runs
NOTIFY, and the notifier wakes a reader.

Messages of one group wake one reader of the process, and the readers that wait for a certain conversation or group.
If sixteen readers woke at once, sixteen polls would follow each message. If messages of several groups may have
arrived, each woken reader wakes the next one as soon as it has found a message. A change of the queue wakes all.

If notifications arrive in a burst while readers are busy, the process removes its registration. Then one of its
sleeping readers polls (polling mode, api/shared/polling_mode.py), until several polls have found nothing.
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

_CLOSE_CHECK_S = 0.5  # the time between two checks whether the instance was closed


class Notifier:
    """One LISTEN connection for all waiting readers of a process. The first reader starts it.

    Attributes:
        service_changes: for queues with waiting readers, how often a service was altered or dropped. An entry is
            removed if its number may have changed.
        losses: how often the connection was lost.
    """

    def __init__(self, url: str, engine: type[OwnerVerbs]) -> None:
        self._url = url
        self._engine = engine
        self._lock = Lock()
        self._waiting: dict[int, list[WaitingReader]] = {}
        self._registered: set[int] = set()
        self._polling: dict[int, PollingMode] = {}
        self.service_changes: dict[int, int] = {}
        self._registrar: psycopg.Connection[Any] | None = None
        self._background: Background | None = None
        self._closed, self._listens = Event(), Event()
        self.losses = 0

    def is_registered(self, queue_id: int) -> bool:
        """Return whether this process waits at the queue already, so that one more reader costs no statement."""
        return queue_id in self._registered or self._is_polled(queue_id)

    @contextlib.contextmanager
    def listening(self, queue_id: int, *, filtered: bool) -> Iterator[WaitingReader]:
        """Register a reader for the block, and wake it when a message was sent to the queue.

        The caller polls after entering, since a message may have arrived before. `filtered`: the reader takes messages
        of a certain conversation or group only.
        """
        reader = WaitingReader(filtered=filtered)
        try:
            self._enter(queue_id, reader)
            yield reader
        finally:
            self._leave(queue_id, reader)

    def keep_waiting(self, queue_id: int, reader: WaitingReader) -> bool:
        """Keep waiting after a message.

        Returns False if the queue was unregistered meanwhile, so that a message may have been missed. This is a
        shortcut for leaving and entering, and writes nothing. A wake-up that has come stays valid for the next poll.
        """
        with self._lock:
            readers = self._waiting[queue_id]
            readers.remove(reader)
            if queue_id in self._polling:
                self._polling[queue_id].note_message()
            if reader.wakes_next:
                reader.wakes_next = False
                _wake_one(readers, wakes_next=True)
            readers.append(reader)  # the reader that sleeps longest stands first
            was_registered = self.is_registered(queue_id)
            if not was_registered:
                self._register()
            return was_registered

    def wake_another(self, queue_id: int) -> None:
        """Wake a sleeping reader, which polls for more messages while the caller processes one."""
        if queue_id in self._waiting:
            with self._lock:
                readers = self._waiting.get(queue_id, ())
                # a single reader that is not asleep is the caller
                if len(readers) > 1 or any(reader.is_asleep for reader in readers):
                    _wake_one(readers, wakes_next=False)

    def count_asleep(self, queue_id: int) -> int:
        """Return the number of readers of this process that sleep until a message arrives."""
        return sum(reader.is_asleep for reader in self._waiting.get(queue_id, ()))

    def stop(self) -> None:
        """Stop listening soon, without waiting for the end."""
        self._closed.set()

    def close(self) -> None:
        """Stop listening. Readers that still wait poll once more, and get the error that the instance is closed."""
        self._closed.set()
        if self._background is not None:
            self._background.stop()
        with self._lock:
            if self._registrar is not None:
                self._registrar.close()
            for reader in itertools.chain(*self._waiting.values()):
                reader.wake()

    def _enter(self, queue_id: int, reader: WaitingReader) -> None:
        with self._lock:
            self._start()
            self._waiting.setdefault(queue_id, []).append(reader)
            if not self.is_registered(queue_id):
                self._register()

    def _leave(self, queue_id: int, reader: WaitingReader) -> None:
        with self._lock:
            readers = self._waiting.get(queue_id, [])
            if reader in readers:  # not if the reader was interrupted before it entered
                readers.remove(reader)
                if queue_id in self._polling:
                    self._polling[queue_id].note_message()
                if not readers:
                    del self._waiting[queue_id]
                    if not self._is_polled(queue_id):
                        self.service_changes.pop(queue_id, None)
                        self._register()
                elif reader.is_woken or reader.wakes_next:
                    _wake_one(readers, wakes_next=reader.wakes_next)

    def _start(self) -> None:
        if self._background is None:
            self._background = Background(self._listen, "servicebroker notifier")
            self._listens.wait(_CLOSE_CHECK_S)

    def _register(self) -> None:
        """Register this process for the queues of its waiting readers, except for queues that it polls.

        If that fails, no notification arrives, and the fallback polls of the readers still find every message.
        """
        self._registered = set()
        for _ in range(2):  # the first attempt may fail because the connection was lost
            if self._closed.is_set():
                return
            try:
                registrar = self._registrar = self._registrar or self._connect()
                wanted = [queue_id for queue_id in self._waiting if not self._is_polled(queue_id)]
                run_alone(registrar, self._engine.register_reader(wanted))
                self._registered = set(wanted)
                return
            except (psycopg.Error, InstanceError):
                if self._registrar is not None:
                    self._registrar.close()
                self._registrar = None

    def _last_number(self, queue_id: int) -> int | None:
        """Return the last arrival number given to a message of the queue; None if the query fails."""
        if self._registrar is not None:
            with contextlib.suppress(psycopg.Error):
                return run_alone(self._registrar, self._engine.last_queuing_order(queue_id))
        return None

    def _connect(self) -> psycopg.Connection[Any]:
        return connect(self._url, application_name="servicebroker waiting readers")

    def _listen(self) -> None:
        while not self._closed.is_set():
            try:
                with connect(self._url, application_name="servicebroker notifier") as connection:
                    connection.interval = _CLOSE_CHECK_S
                    connection.execute("listen servicebroker")
                    lost_sessions.watch_listener(connection)
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

        Its payload is one of: `QUEUE GROUP`: messages of one group arrived; `QUEUE`: messages of several groups may
        have arrived; `-QUEUE`: the queue was altered.
        """
        queue_id, _, group = payload.partition(" ")
        if not re.fullmatch(r"-?\d{1,10}", queue_id):  # anybody may NOTIFY
            return
        changed = queue_id.startswith("-")
        with self._lock:
            readers = self._waiting.get(abs(int(queue_id)), ())
            were_asleep = bool(readers) and all(reader.is_asleep for reader in readers)
            if changed:
                self.service_changes.pop(abs(int(queue_id)), None)
            for reader in readers:
                if changed or reader.is_filtered:
                    reader.wake(changed=changed)
            if not changed:
                _wake_one(readers, wakes_next=not group)
                if not readers and int(queue_id) not in self._polling:
                    return  # anybody may NOTIFY any number
                mode = self._polling.setdefault(int(queue_id), PollingMode())
                mode.note_notification(time.monotonic(), were_asleep=were_asleep)
                if mode.is_on and int(queue_id) in self._registered:
                    self._register()

    def _poll(self) -> None:
        """Wake the filtered readers, and one sleeping reader, of each queue whose poll is due.

        If the reader finds a message, it wakes the next one.
        """
        now = time.monotonic()
        for queue_id, mode in list(self._polling.items()):
            if mode.next_poll <= now:
                with self._lock:
                    readers = self._waiting.get(queue_id, ())
                    mode.last_attended = now if readers else mode.last_attended
                    last_number = self._last_number(queue_id) if mode.needs_count(now) else None
                    if mode.plan_poll(now, last_number):
                        self._register()
                        if not readers:
                            self.service_changes.pop(queue_id, None)
                    for reader in readers:
                        if reader.is_filtered:
                            reader.wake()
                    _wake_one([reader for reader in readers if reader.is_asleep], wakes_next=True)

    def _is_polled(self, queue_id: int) -> bool:
        return queue_id in self._polling and self._polling[queue_id].is_on


class WaitingReader:
    """A reader that waits for messages. Any number of messages that arrive before it polls wake it once.

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
    def is_woken(self) -> bool:
        """Return whether the reader was woken, and has not begun to poll yet."""
        return self._event.is_set()

    def wake(self, *, changed: bool = False, wakes_next: bool = False) -> None:
        """Wake the reader."""
        # a reader that sleeps has polled without a result since its last wake-up, so an earlier `wakes_next` is done
        self.wakes_next = wakes_next or (self.wakes_next and not self.is_asleep)
        self.is_asleep = False
        self._changed = self._changed or changed
        self._event.set()

    def wait(self, seconds: float) -> bool:
        """Sleep until `wake`, at most `seconds`. Return whether the queue itself may have been altered meanwhile."""
        self.is_asleep = not self._event.is_set()
        was_woken = self._event.wait(seconds)
        self.is_asleep = False
        self._event.clear()
        changed, self._changed = self._changed, False
        return changed or not was_woken


def _wake_one(readers: Sequence[WaitingReader], *, wakes_next: bool) -> None:
    """Wake the reader that sleeps longest; if none sleeps, one that will poll again, or pass the wake-up on."""
    unfiltered = (reader for reader in readers if not reader.is_filtered)
    first = min(unfiltered, key=lambda reader: not reader.is_asleep, default=None)
    if first is not None:
        first.wake(wakes_next=wakes_next)
