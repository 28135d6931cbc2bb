"""A proxy for PostgreSQL that assigns a session for each transaction, as pgbouncer with pool_mode = transaction."""

from __future__ import annotations

import queue
import socket
import struct
import threading
from contextlib import suppress

from psycopg.conninfo import conninfo_to_dict, make_conninfo

_ENCRYPTION = (80877103, 80877104)  # SSLRequest, GSSENCRequest


class PoolingProxy:
    """A context manager that yields a URL, whose clients share a limited number of sessions."""

    def __init__(self, url: str, sessions: int = 1) -> None:
        self._target = {name: str(value) for name, value in conninfo_to_dict(url).items()}
        self._count = sessions
        self._free: queue.Queue[_Stream] = queue.Queue()
        self._greeting = b""
        self._listener = socket.create_server(("127.0.0.1", 0))

    def __enter__(self) -> str:
        threading.Thread(target=self._accept, daemon=True).start()
        return make_conninfo(
            host="127.0.0.1",
            port=self._listener.getsockname()[1],
            dbname=self._target["dbname"],
            user=self._target["user"],
            sslmode="disable",
        )

    def __exit__(self, *_: object) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        while not self._free.empty():
            self._free.get().close()

    def _accept(self) -> None:
        with suppress(OSError):
            while True:
                client, _ = self._listener.accept()
                threading.Thread(target=self._serve, args=(_Stream(client),), daemon=True).start()

    def _serve(self, client: _Stream) -> None:
        session: _Stream | None = None
        with suppress(OSError, EOFError):
            self._greet(client, client.startup())
            while True:
                kind, message = client.message()
                if kind == b"X":
                    break
                session = session or self._free.get()
                session.send(message)
                if kind in b"QS" and _answer(session, client) == b"I":
                    self._free.put(session)
                    session = None
        client.close()
        if session is not None:
            session.close()

    def _greet(self, client: _Stream, startup: bytes) -> None:
        """Answer a client's startup. All sessions have the settings of the first client."""
        if not self._greeting:
            for _ in range(self._count):
                session = _Stream(socket.socket(socket.AF_UNIX))
                session.connect(f"{self._target['host']}/.s.PGSQL.{self._target['port']}")
                session.send(startup)
                self._greeting = session.greeting()
                self._free.put(session)
        client.send(self._greeting)


def _answer(session: _Stream, client: _Stream) -> bytes:
    """Forward the answer, and return the transaction's status after it."""
    while True:
        kind, message = session.message()
        client.send(message)
        if kind == b"Z":
            return message[-1:]


class _Stream:
    """Reads and writes the messages of PostgreSQL's protocol."""

    def __init__(self, stream: socket.socket) -> None:
        self._socket = stream

    def connect(self, path: str) -> None:
        self._socket.connect(path)

    def send(self, data: bytes) -> None:
        self._socket.sendall(data)

    def close(self) -> None:
        self._socket.close()

    def startup(self) -> bytes:
        while True:
            length = self._read(4)
            rest = self._read(struct.unpack(">I", length)[0] - 4)
            if struct.unpack_from(">I", rest)[0] not in _ENCRYPTION:
                return length + rest
            self.send(b"N")

    def message(self) -> tuple[bytes, bytes]:
        head = self._read(5)
        return head[:1], head + self._read(struct.unpack(">I", head[1:])[0] - 4)

    def greeting(self) -> bytes:
        """Return the messages of a session until it is ready, with another cancellation key."""
        said = b""
        while True:
            kind, message = self.message()
            said += b"K" + struct.pack(">III", 12, 1, 1) if kind == b"K" else message
            if kind == b"Z":
                return said

    def _read(self, count: int) -> bytes:
        data = b""
        while len(data) < count:
            part = self._socket.recv(count - len(data))
            if not part:
                raise EOFError
            data += part
        return data
