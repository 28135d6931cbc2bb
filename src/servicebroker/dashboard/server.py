"""The HTTP server of `servicebroker dashboard`: uvicorn, with deadlines and limits for slow connections.

The server waits for the browser during the TLS handshake, until a request with its body is complete, and while the
browser does not read an answer. Such waiting connections have deadlines and share a limited number of slots
(protocol/admission.py), so silent clients cannot block the dashboard. Complete requests are limited in
`viewer_limits.py`.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from servicebroker.broker.transport.accepting import Acceptor, EndReason, Terms, Visitor
from servicebroker.overriding import override
from servicebroker.protocol.admission import SlotLimits

REQUEST_TIMEOUT_S = 10.0  # the time for the TLS handshake, for the head of a request, and for its body
READ_TIMEOUT_S = 30.0  # the time for the browser to read a part of an answer
LINGER_TIMEOUT_S = 2.0  # the time to read an answer that was sent before its request was complete
TERMS = Terms(SlotLimits(in_all=100, of_network=50), first_step=REQUEST_TIMEOUT_S, max_connections=400)

_INCOMPLETE = (h11.IDLE, h11.SEND_BODY)  # h11's states of a client whose request is incomplete


class Server(uvicorn.Server):
    """A uvicorn server whose connections are accepted, and limited, by an `Acceptor`."""

    @override
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Start to accept connections at these sockets."""
        await super().startup(sockets=[])
        options = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        self._acceptor = Acceptor(partial(_DeadlineProtocol, **options), TERMS, self.config.ssl)
        self._acceptor.listen(sockets or [])

    @override
    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop accepting connections, and close the open ones."""
        self._acceptor.close()
        await super().shutdown(sockets)
        # after force_exit, uvicorn does not end the lifespan; its task would be cancelled with a traceback
        if self.force_exit:
            await self.lifespan.shutdown()


def make_config(app: Any, **options: Any) -> uvicorn.Config:
    """Return a configuration for `Server` without uvicorn's log, WebSockets, and trust in proxy headers."""
    return uvicorn.Config(
        app,
        http=H11Protocol,
        loop="asyncio",
        ws="none",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        **options,
    )


class _DeadlineProtocol(H11Protocol):
    """One connection, with deadlines for the next step of its browser."""

    def __init__(self, visitor: Visitor, **options: Any) -> None:
        super().__init__(**options)
        self._visitor = visitor
        self._step: object = None  # the browser's next step, which has a deadline; None while the server works
        self._is_lingering = False  # answered early: the rest of the request is not read

    @override
    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._visitor.end = self._end
        self._update_deadline()

    @override
    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._update_deadline()

    @override
    def on_response_complete(self) -> None:
        self._step = None  # the next request has a deadline of its own
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._linger()
        self._update_deadline()

    @override
    def send_400_response(self, msg: str) -> None:
        """Refuse a malformed request, and tell the application that the browser of its current request has left.

        Otherwise the application would answer on a connection that takes no answer, and uvicorn log a traceback.
        """
        cycle = self.cycle
        if cycle is not None and not cycle.response_complete:
            cycle.disconnected = True
            cycle.message_event.set()
        try:
            super().send_400_response(msg)
        except h11.LocalProtocolError:  # another answer has begun, or the method is HEAD
            self.transport.close()

    @override
    def pause_writing(self) -> None:
        super().pause_writing()
        self._update_deadline()

    @override
    def resume_writing(self) -> None:
        super().resume_writing()
        self._update_deadline()

    @override
    def connection_lost(self, exc: Exception | None) -> None:
        self._visitor.leave()
        super().connection_lost(exc)

    def _end(self, why: EndReason) -> None:
        self.transport.abort()

    def _linger(self) -> None:
        """Stop reading, and close the connection after `LINGER_TIMEOUT_S`: the rest of the request is useless."""
        self._is_lingering = True
        self._unset_keepalive_if_required()
        self.transport.pause_reading()
        self._visitor.expect(LINGER_TIMEOUT_S)

    def _update_deadline(self) -> None:
        """Set the deadline of the browser's next step. An unchanged step keeps its deadline."""
        if self._is_lingering:
            return
        step: object = None
        if self.transport.is_closing() or self.flow.write_paused:
            step = "read"
        elif self.conn.their_state in _INCOMPLETE:
            step = self.conn.their_state
        if step == self._step:
            return
        self._step = step
        if step is None:
            self._visitor.prove()
        else:
            self._visitor.expect(READ_TIMEOUT_S if step == "read" else REQUEST_TIMEOUT_S)
