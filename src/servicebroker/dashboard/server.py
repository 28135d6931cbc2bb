"""The HTTP server of `servicebroker dashboard`: uvicorn, with deadlines and limits for who has not asked anything yet.

A connection waits for its browser while the TLS handshake, a request or its body has not come whole, and while an
answer is not read. Such connections have deadlines and share places (protocol/admission.py), so that silent sockets
close the dashboard to nobody. What happens with a request that has come whole is ours, and bounded by application.py.
"""

from __future__ import annotations

import socket
from functools import partial
from typing import Any

import h11
import uvicorn
from uvicorn.protocols.http.h11_impl import H11Protocol

from servicebroker.broker.transport.accepting import Acceptor, Terms, Visitor, Why
from servicebroker.protocol.admission import Places

REQUEST_TIME = 10.0  # seconds for the TLS handshake, for the head of a request, and for its body
READING_TIME = 30.0  # seconds in which a browser reads some of an answer that waits for it
LINGERING_TIME = 2.0  # seconds in which a browser reads an answer that came before it had sent its whole request
TERMS = Terms(Places(in_all=100, of_network=50), first_step=REQUEST_TIME, most=400)

_UNFINISHED = (h11.IDLE, h11.SEND_BODY)  # states of a browser whose request has not come whole


class Server(uvicorn.Server):
    """A uvicorn server that accepts for itself."""

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Begin to serve at these sockets."""
        await super().startup(sockets=[])
        made = {"config": self.config, "server_state": self.server_state, "app_state": self.lifespan.state}
        self._acceptor = Acceptor(partial(_Deadlines, **made), TERMS, self.config.ssl)
        self._acceptor.listen(sockets or [])

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept no more, and end what is there."""
        self._acceptor.close()
        await super().shutdown(sockets)
        if (
            self.force_exit
        ):  # uvicorn leaves the application as it is then: its task would be cancelled with a traceback
            await self.lifespan.shutdown()


def configured(app: Any, **options: Any) -> uvicorn.Config:
    """Return a configuration for `Server`: without uvicorn's own log, WebSockets, and faith in headers of proxies."""
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


class _Deadlines(H11Protocol):
    """One connection, with deadlines for what its browser has to do."""

    def __init__(self, visitor: Visitor, **made: Any) -> None:
        super().__init__(**made)
        self._visitor = visitor
        self._step: object = None  # what the browser has to do now
        self._is_ending = False  # the rest of a request is not read: it was answered without it

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        self._visitor.end = self._end
        self._judge()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self._judge()

    def on_response_complete(self) -> None:
        self._step = None  # the next request has its own time
        super().on_response_complete()
        if self.conn.their_state is h11.SEND_BODY:
            self._linger()
        self._judge()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._judge()

    def resume_writing(self) -> None:
        super().resume_writing()
        self._judge()

    def connection_lost(self, exc: Exception | None) -> None:
        self._visitor.leave()
        super().connection_lost(exc)

    def _end(self, why: Why) -> None:
        self.transport.abort()

    def _linger(self) -> None:
        """Read no more, and end the connection soon: uvicorn would parse the rest of the request for nothing."""
        self._is_ending = True
        self._unset_keepalive_if_required()
        self.transport.pause_reading()
        self._visitor.expect(LINGERING_TIME)

    def _judge(self) -> None:
        """Set the deadline of what the browser has to do now. The same step keeps the one that it has."""
        if self._is_ending:
            return
        step: object = None
        if self.transport.is_closing() or self.flow.write_paused:
            step = "read"
        elif self.conn.their_state in _UNFINISHED:
            step = self.conn.their_state
        if step == self._step:
            return
        self._step = step
        if step is None:
            self._visitor.prove()
        else:
            self._visitor.expect(READING_TIME if step == "read" else REQUEST_TIME)
