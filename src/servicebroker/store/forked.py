"""Connections after a fork: a child must not use the connections of its parent.

A forked child has copies of its parent's sockets. If the child sent a ROLLBACK at the end of a block, or closed a
connection, the server would undo the parent's transaction. So each of these sockets is replaced in the child by a
closed one, on which writing fails.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any
from weakref import WeakSet

_CONNECTIONS: WeakSet[Any] = WeakSet()
process_id = os.getpid()  # read by every verb, without a system call


def protect(connection: Any) -> None:
    """Disconnect this psycopg connection in every child that is forked from now on."""
    _CONNECTIONS.add(connection)


def _disconnect() -> None:
    global process_id
    process_id = os.getpid()
    with contextlib.suppress(OSError):
        dead_socket, other_end = socket.socketpair()
        other_end.close()
        with dead_socket:
            for connection in list(_CONNECTIONS):
                with contextlib.suppress(Exception):  # the connection is closed already
                    os.dup2(dead_socket.fileno(), connection.fileno(), inheritable=False)
    _CONNECTIONS.clear()


os.register_at_fork(after_in_child=_disconnect)
