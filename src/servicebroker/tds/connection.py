"""A connection of a client: its socket in the event loop, its requests in worker threads.

The event loop reads and writes. A request runs in a thread, which hands its response over in parts. If the client reads
slowly, the thread waits. One request runs at a time. The next one may come when the response has left and its thread
is not done yet; it waits. Otherwise only an attention is expected meanwhile.
"""

from __future__ import annotations

import asyncio
import itertools
import logging
import re
import ssl
import threading
from collections.abc import Callable, Sequence
from functools import partial
from typing import TYPE_CHECKING

from servicebroker.model.errors import InstanceError
from servicebroker.model.events import LOGOUT_CLASS
from servicebroker.model.security.client_refusals import ClientRefusal
from servicebroker.model.wording import cleaned
from servicebroker.overriding import override
from servicebroker.tds import tokens
from servicebroker.tds.byte_reader import ProtocolError
from servicebroker.tds.dialect import Dialect
from servicebroker.tds.handshake import EncryptionRequired, Handshake
from servicebroker.tds.login import Login, parse_login
from servicebroker.tds.packets import DEFAULT_PACKET_BYTES, Message, PacketType, PacketWriter, message_of
from servicebroker.tds.reporter import ReportedClient
from servicebroker.tds.sign_in import SignInError

if TYPE_CHECKING:
    from servicebroker.tds.client_session import ClientSession
    from servicebroker.tds.server import TdsServer

_log = logging.getLogger("servicebroker.tds")

SIGN_IN_TIMEOUT_S = 15.0  # the time from the connection to its login
PARK_DELAY_S = 5.0  # the idle time after which a session gives its PostgreSQL connection back
_MAX_WAITING_BYTES = 1024 * 1024  # the most bytes of responses that the client has not read
_WRITE_TIMEOUT_S = 600.0  # the time for a client to continue reading
_CLOSE_TIMEOUT_S = 5.0  # the time for a client to read what was written before the end
_MAX_UNREAD_BYTES = 4 * 1024 * 1024  # the most bytes of answers to a client that sends and does not read
_MESSAGE_TIMEOUT_S = 60.0  # the time for a message to arrive, plus a second for each _MIN_BYTES_PER_S
_MIN_BYTES_PER_S = 64 * 1024
_CERTIFICATE_ALERT = re.compile(r"ALERT_(UNKNOWN_CA|BAD_CERTIFICATE|CERTIFICATE_)")  # sent by the client
_FULL = "Could not connect because the maximum number of user connections has already been reached."
_SHUTDOWN = "SHUTDOWN is in progress."


_numbers = itertools.count(1)  # the numbers of connections


class ClientGone(Exception):
    """The client has closed the connection, or does not read its response."""


class Outbox:
    """Hands the bytes of a worker thread over to the event loop, and makes the thread wait for a slow client."""

    def __init__(self, connection: ClientConnection, loop: asyncio.AbstractEventLoop) -> None:
        self._connection, self._loop = connection, loop
        self._condition = threading.Condition()
        self._waiting_bytes = 0
        self.is_paused = self._is_closed = False

    def send(self, data: bytes) -> None:
        """Send bytes from a worker thread.

        Raises:
            ClientGone: there is nobody to read them.
        """
        with self._condition:
            is_free = self._condition.wait_for(
                lambda: self._is_closed or (not self.is_paused and self._waiting_bytes < _MAX_WAITING_BYTES),
                _WRITE_TIMEOUT_S,
            )
            if self._is_closed or not is_free:
                raise ClientGone
            self._waiting_bytes += len(data)
        self._loop.call_soon_threadsafe(self._write, data)

    def _write(self, data: bytes) -> None:
        with self._condition:
            self._waiting_bytes -= len(data)
            self._condition.notify_all()
        self._connection.write(data)

    def pause(self, *, is_paused: bool) -> None:
        """Make threads wait, or let them go on."""
        with self._condition:
            self.is_paused = is_paused
            self._condition.notify_all()

    def close(self) -> None:
        """End the wait of threads, because the client has gone."""
        with self._condition:
            self._is_closed = True
            self._condition.notify_all()


class ClientConnection(asyncio.Protocol):
    """One connection. All methods run in the event loop, except for those named `_in_thread`."""

    def __init__(self, server: TdsServer) -> None:
        self._server, self._loop = server, server.loop
        self._handshake = Handshake(server.contexts, requires_encryption=True)
        self._outbox = Outbox(self, self._loop)
        self.transport: asyncio.Transport
        self._session: ClientSession | None = None
        self._address, self._dialect = "", Dialect.TDS_7_4
        self._is_busy = self._is_closing = self._has_attention = False
        self._is_cancelling = False
        self._end_request: Callable[[], None] | None = None  # waits for the end of the cancellation
        self._next: Message | None = None  # the request that waits for the end of the last one
        self._timer: asyncio.TimerHandle | None = None
        self._arrival_timer: asyncio.TimerHandle | None = None  # the timer of a message whose rest is missing
        self._arriving_since = 0.0
        self._running_bytes = self._held_bytes = 0  # the bytes of the running request, and of all that is in memory
        self.signed_in_as = ""
        self.number = next(_numbers)
        self._was_refused = False
        self._login: Login | None = None

    # ------------------------------------------------------------ the socket

    @override
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Begin with a new client."""
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport
        peer = transport.get_extra_info("peername")
        self._address = str(peer[0]) if peer else "local"
        required = self._server.requires_encryption(self._address)
        self._handshake = Handshake(self._server.contexts, requires_encryption=required)
        self._set_timer(SIGN_IN_TIMEOUT_S, self.abort)
        self._server.add(self, self._address)

    @override
    def data_received(self, data: bytes) -> None:
        """Take bytes of the client."""
        if self._is_closing:
            return
        try:
            if self.transport.get_write_buffer_size() > _MAX_UNREAD_BYTES:
                raise ProtocolError("The client sends requests, and does not read the answers.")
            for message in self._handshake.receive(data):
                self._arriving_since = self._loop.time()
                self._take(message)
            self._count_bytes()
            self._watch_arrival()
            self._flush()
        except (ProtocolError, ssl.SSLError) as problem:
            self._flush()
            self._note_refusal(problem)
            self._log_end(str(problem))
            self.abort()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        """End the session of a client that has gone. Its transaction is rolled back."""
        self._is_closing = True
        self._set_timer(0.0, None)
        if self._arrival_timer is not None:
            self._arrival_timer.cancel()
        self._outbox.close()
        self._server.remove(self)
        if not self._is_busy:
            self._release_bytes()
        if not self._was_refused and (kind := self._handshake.likely_refusal) is not None:
            self._server.reporter.note_refusal(kind, self._address)
        session = self._session
        if session is not None:
            self._server.in_thread(session.terminate if self._is_busy else session.close)
        if (login := self._login) is not None:
            text = f"Logout of user '{cleaned(login.user)}'. [CLIENT: {self._address}]"
            self._server.in_thread(lambda: self._server.sign_in.tell(LOGOUT_CLASS, login, text))

    def _note_refusal(self, problem: Exception) -> None:
        kind: ClientRefusal | None = None
        if isinstance(problem, ssl.SSLError):
            kind = ClientRefusal.CERTIFICATE if _CERTIFICATE_ALERT.search(problem.reason or "") else ClientRefusal.TLS
        elif isinstance(problem, EncryptionRequired):
            kind = ClientRefusal.ENCRYPTION
        if kind is not None:
            self._server.reporter.note_refusal(kind, self._address)
        self._was_refused = True

    @override
    def pause_writing(self) -> None:
        """Make the worker wait: the client reads slowly."""
        self._outbox.pause(is_paused=True)

    @override
    def resume_writing(self) -> None:
        """Let the worker go on."""
        self._outbox.pause(is_paused=False)

    def write(self, data: bytes) -> None:
        """Send bytes to the client, encrypted if the client asked for that."""
        if not self._is_closing:
            self._handshake.send(data)
            self._flush()

    def _flush(self) -> None:
        if (data := self._handshake.take()) and not self.transport.is_closing():
            self.transport.write(data)

    def abort(self) -> None:
        """Close the connection. A client that does not read what was written loses it after a short time."""
        if not self._is_closing:
            self.transport.close()
            self._set_timer(_CLOSE_TIMEOUT_S, self.transport.abort)
        self._is_closing = True
        self._outbox.close()

    def _count_bytes(self) -> None:
        """Charge the server's memory of requests with what this connection holds.

        Raises:
            ProtocolError: the requests of all clients take too much memory.
        """
        held = self._handshake.buffered_bytes + self._running_bytes + (len(self._next.data) if self._next else 0)
        change, self._held_bytes = held - self._held_bytes, held
        if not self._server.memory.charge(change, held):
            raise ProtocolError("The requests of all clients take too much memory. Send it again later.")

    def _release_bytes(self) -> None:
        self._server.memory.charge(-self._held_bytes, 0)
        self._held_bytes = 0

    def _watch_arrival(self) -> None:
        """Begin to watch a message whose rest is missing: each byte of it takes memory until it has arrived."""
        is_arriving = self._session is not None and self._handshake.buffered_bytes > 0
        if self._arrival_timer is not None and not is_arriving:
            self._arrival_timer.cancel()
            self._arrival_timer = None
        if self._arrival_timer is None and is_arriving:
            self._arriving_since = self._loop.time()
            self._arrival_timer = self._loop.call_later(_MESSAGE_TIMEOUT_S, self._check_arrival)

    def _check_arrival(self) -> None:
        self._arrival_timer = None
        buffered = self._handshake.buffered_bytes
        if self._is_closing or not buffered:
            return
        left_s = self._arriving_since + _MESSAGE_TIMEOUT_S + buffered / _MIN_BYTES_PER_S - self._loop.time()
        if left_s > 0:
            self._arrival_timer = self._loop.call_later(left_s, self._check_arrival)
        else:
            self._log_end("The rest of a request did not arrive.")
            self.abort()

    def _log_end(self, reason: str) -> None:
        """Log why the server closes the connection. `cli/log.py` limits these lines by their fields."""
        text = f"The connection of {self._address} was closed: {reason}"
        _log.info("%s", text, extra={"fields": {"event": "Audit Logout", "peer": f"{self._address}:"}})

    def _set_timer(self, seconds: float, act: object) -> None:
        if self._timer is not None:
            self._timer.cancel()
        self._timer = self._loop.call_later(seconds, act) if callable(act) else None

    @property
    def reported(self) -> ReportedClient | None:
        """The client for reports, None before its login."""
        login, session = self._login, self._session
        if login is None or session is None:
            return None
        user, host, program, library = map(cleaned, (login.user, login.host, login.program, login.library))
        is_encrypted = self._handshake.is_encrypted
        return ReportedClient(
            user, host, program, library, self._address, is_encrypted, session.database, session.backend
        )

    # ------------------------------------------------------------ messages

    def _take(self, message: Message) -> None:
        if message.type == PacketType.ATTENTION:
            self._attend()
        elif self._is_busy and (self._session is None or self._next is not None):
            raise ProtocolError("A request while another one runs; MARS is not supported.")
        elif self._is_busy:
            self._next = message
        elif self._session is not None:
            self._begin(message)
        elif message.type == PacketType.LOGIN:
            self._sign_in(parse_login(message.data))
        else:
            raise ProtocolError(f"A message of type {message.type} instead of a login.")

    def _sign_in(self, login: Login) -> None:
        self._dialect = login.dialect
        if self._server.is_full:
            self._server.reporter.note_refusal(ClientRefusal.LIMIT, self._address, login.user)
            self._write_end(((17809, 20, _FULL),))
            self.abort()
            return
        self._is_busy = True
        self._server.sign_ins.add(self, self._address, lambda: self._sign_in_in_thread(login))

    def _sign_in_in_thread(self, login: Login) -> None:
        session: ClientSession | None = None
        try:
            session = self._server.sign_in.open(login, self._address, has_gone=lambda: self._is_closing)
            reports: tuple[tuple[int, int, str], ...] = ()
        except SignInError as refused:
            reports = refused.reports
            self._server.reporter.note_refusal(refused.kind, self._address, login.user, refused.reason)
        except InstanceError as problem:
            reports = ((17197, 20, f"Login failed: {problem}"),)
        except Exception:
            _log.exception("The login of a client failed.")
            reports = ((17197, 20, "Login failed because of an internal error."),)
        self._server.in_loop(lambda: self._signed_in(login, session, reports))

    def _signed_in(
        self, login: Login, session: ClientSession | None, reports: tuple[tuple[int, int, str], ...]
    ) -> None:
        self._is_busy = False
        if session is None:
            self._write_end(reports)
            self.abort()
            return
        if self._is_closing:
            self._server.in_thread(session.close)
            return
        self._session, self.signed_in_as, self._login = session, login.user, login
        self._server.note_signed_in(self)
        self._handshake.allow_requests(login.packet_bytes)
        self.write(message_of(self._login_response(login, session)))
        self._rest()

    def _write_end(self, reports: tuple[tuple[int, int, str], ...]) -> None:
        """Write the last message: number, level and text of its errors."""
        errors = [tokens.error(number, text, level=level, dialect=self._dialect) for number, level, text in reports]
        self.write(message_of(b"".join(errors) + self._done(tokens.Status.ERROR)))

    def _done(self, status: tokens.Status) -> bytes:
        return tokens.done(tokens.DONE_STATEMENT, status, dialect=self._dialect)

    def _login_response(self, login: Login, session: ClientSession) -> bytes:
        database, server, dialect = session.database, self._server.name, self._dialect
        moved = f"Changed database context to '{database}'."
        parts = [
            tokens.database_change(database, "master"),
            tokens.info(5701, moved, state=2, server=server, line=1, dialect=dialect),
            tokens.collation_change(),
            tokens.language_change("us_english"),
            tokens.info(5703, "Changed language setting to us_english.", server=server, line=1, dialect=dialect),
            tokens.login_ack(dialect),
            tokens.packet_size_change(self._handshake.packet_bytes, DEFAULT_PACKET_BYTES),
            tokens.feature_ack() if login.features else b"",
            self._done(tokens.Status.FINAL),
        ]
        return b"".join(parts)

    def _begin(self, message: Message) -> None:
        """Run a request in a thread."""
        self._is_busy = True
        self._set_timer(0.0, None)
        self._running_bytes = len(message.data)
        self._server.in_thread(lambda: self._run_in_thread(message))

    def _run_in_thread(self, message: Message) -> None:
        session = self._session
        assert session is not None
        last = list[bytes]()  # travels with the news that the request has ended: a hop between threads costs 100 µs
        writer = PacketWriter(self._outbox.send, packet_bytes=self._handshake.packet_bytes, send_last=last.append)
        problem: Exception | None = None
        try:
            session.run(message, writer)
        except ClientGone:  # its response ends in the middle
            self._server.in_loop(self.transport.abort)
        except ProtocolError as malformed:
            problem = malformed
        except Exception:
            _log.exception("A request of a client failed.")
            problem = RuntimeError("An internal error. The log of the server has more.")
        self._server.in_loop(lambda: self._ended(problem, last))

    def _ended(self, problem: Exception | None, last: Sequence[bytes] = ()) -> None:
        """Send the last packet of a response, and continue after its request."""
        if self._is_cancelling:  # the cancellation would end the next request
            self._end_request = partial(self._ended, problem, last)
            return
        for data in last:
            self.write(data)
        self._is_busy, self._running_bytes = False, 0
        session = self._session
        assert session is not None
        if self._is_closing:
            self._release_bytes()
            self._server.in_thread(session.close)
            return
        self._count_bytes()
        if problem is not None or self._server.is_stopping:
            text = _SHUTDOWN if problem is None else f"The server ends the connection: {problem}"
            number = 6005 if problem is None else 4002
            self._write_end(((number, 20, text),))
            self._server.in_thread(session.close)
            self._session = None
            self.abort()
            return
        if self._has_attention:
            self._acknowledge()
        self._rest()

    def _rest(self) -> None:
        """Begin the next request, or wait for it. After a while, the session gives back its PostgreSQL connection."""
        message, self._next = self._next, None
        if message is not None:
            self._begin(message)
        else:
            self._set_timer(PARK_DELAY_S, self._park)

    def _park(self) -> None:
        if self._session is not None and not self._is_busy and not self._is_closing:
            self._is_busy = True  # a request that comes now is early
            self._server.in_thread(self._park_in_thread)

    def _park_in_thread(self) -> None:
        assert self._session is not None
        try:
            self._session.park()
        except Exception:
            _log.exception("A session could not be parked.")
        self._server.in_loop(self._parked)

    def _parked(self) -> None:
        self._is_busy = False
        if self._is_closing and self._session is not None:
            self._server.in_thread(self._session.close)
        elif self._next is not None or self._has_attention:
            self._ended(None)

    # ------------------------------------------------------------ attention and the end

    def _attend(self) -> None:
        """Cancel the running request. Its response ends first, then the attention is acknowledged.

        Further attentions until then ask for the same.
        """
        if self._has_attention:
            return
        self._has_attention = True
        if self._next is not None:  # its response has not begun
            self._next = None
            return
        if not self._is_busy or self._session is None:
            self._acknowledge()
            return
        self._is_cancelling = True
        self._server.in_thread(partial(self._cancel_in_thread, self._session))

    def _cancel_in_thread(self, session: ClientSession) -> None:
        try:
            session.cancel()
        finally:
            self._server.in_loop(partial(self._cancelled, session))

    def _cancelled(self, session: ClientSession) -> None:
        """Continue after a cancellation, which may have come later than the end of its request."""
        self._is_cancelling = False
        end_request, self._end_request = self._end_request, None
        if end_request is not None:
            session.end_cancelling()
            end_request()

    def _acknowledge(self) -> None:
        self._has_attention = False
        self.write(message_of(self._done(tokens.Status.ATTENTION)))

    def stop(self) -> None:
        """End the connection because the server stops. A running request is cancelled, and its client told."""
        if self._is_busy and self._session is not None:
            self._server.in_thread(self._session.cancel)
        else:
            self.abort()
