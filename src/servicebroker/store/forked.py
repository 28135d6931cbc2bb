"""Connections after a fork: a child must not speak on the sockets of its parent.

A forked child has copies of its parent's sockets. Everything it sends there reaches the server as if the parent had
sent it: the ROLLBACK at the end of a block, or the Terminate of a closed connection, would undo the parent's
transaction. So in a child each socket of ours is replaced by a dead one: writing fails there, and the parent goes on.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any
from weakref import WeakSet

_CONNECTIONS: WeakSet[Any] = WeakSet()
process_id = os.getpid()  # without a system call, since every verb asks


def protect(connection: Any) -> None:
    """Cut off this psycopg connection in every child that is forked from now on."""
    _CONNECTIONS.add(connection)


def _cut_off() -> None:
    global process_id
    process_id = os.getpid()
    with contextlib.suppress(OSError):
        nowhere, other = socket.socketpair()
        other.close()
        with nowhere:
            for connection in list(_CONNECTIONS):
                with contextlib.suppress(Exception):  # already closed
                    os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)
    _CONNECTIONS.clear()


os.register_at_fork(after_in_child=_cut_off)
