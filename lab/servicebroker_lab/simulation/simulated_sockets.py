"""The network code of the product over simulated streams: an event loop in simulated time, and transports.

`broker/transport/sockets.py` and `stream.py` run unchanged, without TLS. In runs with certificates `links.py` replaces
them, because TLS handshakes would take longer than a run.
"""

from __future__ import annotations

import asyncio
import errno
from asyncio import events
from collections.abc import Callable, Coroutine
from contextvars import Context
from datetime import datetime
from typing import Any, TypeVarTuple

from servicebroker.broker.inboxes import Answered, Inboxes, Lost, NetworkEvent, Outdated, Reached, Unreached
from servicebroker.broker.policy import Policy
from servicebroker.broker.transport.links import Arrival, Link
from servicebroker.broker.transport.sockets import Network
from servicebroker.broker.transport.stream import Stream
from servicebroker.overriding import override
from servicebroker.protocol.adjacent import Arrived, LocalIdentity
from servicebroker.protocol.routing import Address
from servicebroker_lab.simulation.links import index_of
from servicebroker_lab.simulation.simulated_network import Network as SimulatedNetwork
from servicebroker_lab.simulation.simulated_network import Stream as Bytes
from servicebroker_lab.simulation.simulated_time import Loop

PEER_PORT = 4022

Ts = TypeVarTuple("Ts")
Happening = Answered | Lost | Reached | Unreached | Outdated


class EventLoop(asyncio.AbstractEventLoop):
    """An event loop in simulated time, with the methods that the network needs."""

    def __init__(self, loop: Loop, connect: Callable[[Address, Callable[[Bytes | None], None]], None]) -> None:
        self._loop = loop
        self._connect = connect
        self.streams: list[Bytes] = []
        self._tasks: list[asyncio.Task[Any]] = []
        self.is_over = False

    @override
    def time(self) -> float:
        """Return the simulated time of the run."""
        return self._loop.now

    @override
    def call_soon(
        self, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.Handle:
        """Call a function after the running one."""
        handle = asyncio.Handle(callback, args, self, context)
        self._loop.after(0.0, lambda: self._run(handle))
        return handle

    call_soon_threadsafe = call_soon

    @override
    def call_later(
        self,
        delay: float,
        callback: Callable[[*Ts], object],
        *args: *Ts,
        context: Context | None = None,
    ) -> asyncio.TimerHandle:
        """Call a function after `delay` seconds."""
        return self.call_at(self._loop.now + delay, callback, *args, context=context)

    @override
    def call_at(
        self, when: float, callback: Callable[[*Ts], object], *args: *Ts, context: Context | None = None
    ) -> asyncio.TimerHandle:
        """Call a function at a time."""
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        self._loop.at(when, lambda: self._run(handle))
        return handle

    @override
    def create_future(self) -> asyncio.Future[Any]:
        """Return a future of this loop."""
        return asyncio.Future(loop=self)

    @override
    def create_task(self, coro: Coroutine[Any, Any, Any], **named: Any) -> asyncio.Task[Any]:  # type: ignore[override]
        """Return a task of this loop."""
        task = asyncio.Task(coro, loop=self, **named)
        self._tasks = [known for known in self._tasks if not known.done()] + [task]
        return task

    def end(self) -> None:
        """End all streams and tasks."""
        self.is_over = True
        for stream in self.streams:
            stream.close()
        for task in self._tasks:
            if not task.done():
                task._log_destroy_pending = False  # type: ignore[attr-defined]
                task.get_coro().close()

    @override
    def get_debug(self) -> bool:
        """Return False: there is no debug mode."""
        return False

    @override
    def is_closed(self) -> bool:
        """Return False. After `end` no function is called any more."""
        return False

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        """Do nothing, because `_run` skips cancelled timers."""

    @override
    def call_exception_handler(self, context: dict[str, Any]) -> None:
        """Let the run fail."""
        raise context.get("exception") or RuntimeError(context["message"])

    @override
    async def create_connection(  # type: ignore[override]
        self, factory: Callable[[], Stream], host: str, port: int
    ) -> tuple[asyncio.Transport, Stream]:
        """Connect to an instance of the run.

        Raises:
            OSError: the address has no listener.
        """
        address = Address(host, port)
        future: asyncio.Future[Bytes | None] = self.create_future()

        def on_connected(stream: Bytes | None) -> None:
            if not future.done() and not self.is_over:
                future.set_result(stream)
            elif stream is not None:
                stream.close()

        self._connect(address, on_connected)
        stream = await future
        if stream is None or not stream.twin_is_open:
            raise OSError(errno.ECONNREFUSED, "refused")
        protocol = factory()
        transport = Transport(self, stream, protocol)
        return transport, protocol

    def _run(self, handle: asyncio.Handle) -> None:
        if handle.cancelled() or self.is_over:
            return
        before = events._get_running_loop()
        events._set_running_loop(self)
        try:
            handle._run()
        finally:
            events._set_running_loop(before)


class Transport(asyncio.Transport):
    """A socket, over one side of a simulated stream."""

    def __init__(self, loop: EventLoop, stream: Bytes, protocol: Stream) -> None:
        super().__init__()
        self._loop = loop
        self._stream = stream
        self._protocol = protocol
        loop.streams.append(stream)
        self._is_closing = False
        self._is_reading = True
        self._unread: list[bytes] = []
        stream.on_bytes, stream.on_end = self._on_data, self._on_eof
        protocol.connection_made(self)

    @override
    def get_extra_info(self, name: str, default: Any = None) -> Any:
        """Return the address of the peer."""
        return (f"sim{self._stream.other}", PEER_PORT) if name == "peername" else default

    @override
    def write(self, data: bytes | bytearray | memoryview) -> None:
        """Send bytes."""
        self._stream.write(bytes(data))

    @override
    def write_eof(self) -> None:
        """Do nothing: the end comes with `close`."""

    @override
    def get_write_buffer_size(self) -> int:
        """Return 0: the stream takes all bytes."""
        return 0

    @override
    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        """Do nothing, for the same reason."""

    @override
    def is_closing(self) -> bool:
        """Check whether the transport is closed."""
        return self._is_closing

    @override
    def is_reading(self) -> bool:
        """Check whether the protocol reads."""
        return self._is_reading

    @override
    def pause_reading(self) -> None:
        """Buffer received bytes."""
        self._is_reading = False

    @override
    def resume_reading(self) -> None:
        """Give the buffered bytes to the protocol."""
        self._is_reading = True
        unread, self._unread = self._unread, []
        for data in unread:
            self._on_data(data)

    @override
    def close(self) -> None:
        """End the stream."""
        if not self._is_closing:
            self._is_closing = True
            self._stream.close()
            self._loop.call_soon(self._protocol.connection_lost, None)

    @override
    def abort(self) -> None:
        """End the stream."""
        self.close()

    def _on_data(self, data: bytes) -> None:
        if self._loop.is_over or self._is_closing:
            return
        if self._is_reading:
            self._protocol.data_received(data)
        else:
            self._unread.append(data)

    def _on_eof(self) -> None:
        if not self._loop.is_over:
            self._protocol.eof_received()
            self.close()


class InOrder(dict[Stream, None]):
    """A set in insertion order, so that a seed repeats its run. `all` has all former members."""

    def __init__(self) -> None:
        super().__init__()
        self.all: list[Stream] = []  # weak references to a stream end with the run, and not at a collection

    def add(self, stream: Stream) -> None:
        """Add a stream."""
        self[stream] = None
        self.all.append(stream)

    def discard(self, stream: Stream) -> None:
        """Remove a stream if it is a member."""
        self.pop(stream, None)


class FaultyInboxes(Inboxes):
    """The inboxes of a daemon with faults: `tell` and `bring` decide whether an event or message enters an inbox."""

    def __init__(
        self,
        seconds: Callable[[], float],
        taker: Callable[[], int],
        tell: Callable[[Happening], None],
        bring: Callable[[Link, Arrived], None],
    ) -> None:
        super().__init__(seconds, taker)
        self._tell = tell
        self._bring = bring

    @override
    def put(self, item: NetworkEvent) -> None:
        """Receive an event or message."""
        if isinstance(item, Arrival):
            self._bring(item.link, Arrived(item.body, item.is_forwarded))
        else:
            self._tell(item)

    def enter(self, item: NetworkEvent) -> None:
        """Put an event or message into its inbox, and wake the share."""
        super().put(item)


class ShippedNetwork(Network):
    """The network of the daemon of an instance."""

    def __init__(
        self, network: SimulatedNetwork, index: int, me: LocalIdentity, inboxes: Inboxes, clock: Callable[[], datetime]
    ) -> None:
        self._simulated = network
        self._index = index
        self._events = EventLoop(network.loop, self._open)  # type: ignore[abstract]
        super().__init__(me.daemon_id, me.incarnation, inboxes, clock, me.instance, lambda: network.loop.now)
        self.streams = InOrder()  # type: ignore[assignment]
        self.corrupted = 0  # is not counted

    def __len__(self) -> int:
        return len(self.streams)

    @override
    def _start_loop(self) -> asyncio.AbstractEventLoop:
        return self._events

    def _open(self, address: Address, on_done: Callable[[Bytes | None], None]) -> None:
        self._simulated.connect(self._index, index_of(address), on_done)

    @override
    def apply(self, policy: Policy) -> int | None:
        """Apply a network policy. Without a real port the coroutine ends without waiting."""
        try:
            self._apply(policy).send(None)
        except StopIteration as error:
            port: int | None = error.value
            return port
        raise AssertionError

    def accept(self, stream: Bytes) -> None:
        """Accept a connection of a peer."""
        Transport(self._events, stream, Stream(self, None))

    def begin_to_close(self) -> None:
        """Begin to close all connections, and notify the peers."""
        self._start(self._close())

    def crash(self) -> None:
        """Close all streams without any further event."""
        self._events.end()

    @override
    def _start(self, work: Coroutine[Any, Any, object]) -> None:
        self._events.create_task(work)
