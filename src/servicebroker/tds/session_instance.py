"""An instance for one client: its own connection to PostgreSQL, and waits that a cancellation ends."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator

from servicebroker.api.instance import Instance
from servicebroker.api.notifier import WaitingReader
from servicebroker.overriding import override
from servicebroker.store.connection import connect
from servicebroker.store.direct import DirectConnection
from servicebroker.store.termination import terminate
from servicebroker.tsql.interpreter.machine import Cancelled


class SessionInstance(Instance):
    """An open instance, as one client uses it. It is neither opened nor closed.

    The client's connection is lent to its T-SQL session. Statements that need another one take it from the pool.
    """

    def __init__(self, instance: Instance, application_name: str) -> None:
        self.__dict__.update(instance.__dict__)
        self._is_closed = True  # dropped while the instance stays open
        self._application_name = application_name
        self._own: DirectConnection | None = None
        self._is_lent = False
        self._reader: WaitingReader | None = None
        self.cancelled = threading.Event()  # ends waits for messages

    @override
    @contextlib.contextmanager
    def connection(self) -> Iterator[DirectConnection]:
        """Lend the client's connection for a `with` block, which is opened if need be; else one of the pool."""
        if self._is_lent:
            with super().connection() as other:
                yield other
            return
        if self._own is None or self._own.closed:
            self._own = connect(self.url, application_name=self._application_name)
        self._is_lent = True
        try:
            yield self._own
        finally:
            self._is_lent = False

    @override
    def sleep(self, reader: WaitingReader, seconds: float) -> bool:
        """Wait until the reader is woken.

        Raises:
            Cancelled: the client has cancelled its request.
        """
        self._reader = reader  # first: `wake` wakes it, or the check below sees that it was called
        try:
            self.check_cancelled()
            changed = super().sleep(reader, seconds)
            self.check_cancelled()
            return changed
        finally:
            self._reader = None

    def check_cancelled(self) -> None:
        """Raise an exception if the client has cancelled its request.

        Raises:
            Cancelled: it has.
        """
        if self.cancelled.is_set():
            raise Cancelled

    @property
    def backend(self) -> int | None:
        """The pid of the client's session of PostgreSQL, None without one. Any thread may call this."""
        own = self._own
        return None if own is None or own.closed else own.info.backend_pid

    def cancel_wait(self) -> None:
        """End the wait for a message. Any thread may call this."""
        self.cancelled.set()
        if (reader := self._reader) is not None:
            reader.wake()

    def terminate(self) -> None:
        """Close the connection at once, so that PostgreSQL rolls back. Any thread may call this."""
        if self._own is not None:
            terminate(self._own)

    def disconnect(self) -> None:
        """Close the connection."""
        if self._own is not None:
            self._own.close()
            self._own = None
