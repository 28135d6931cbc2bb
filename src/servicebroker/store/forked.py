"""Connections over a fork: a child must not speak on the sockets of its parent.

A forked child has copies of its parent's sockets. Whatever it sends there reaches the server as if the parent had sent
it: the ROLLBACK at the end of a block, or the goodbye of a connection that is closed, would undo the parent's
transaction. So each socket of ours leads nowhere in a child: writing fails there, and the parent goes on.
"""

from __future__ import annotations

import contextlib
import os
import socket
from typing import Any
from weakref import WeakSet

_CONNECTIONS: WeakSet[Any] = WeakSet()


def protect(connection: Any) -> None:
    """Cut this psycopg connection off in every child that is forked from now on."""
    _CONNECTIONS.add(connection)


def _cut_off() -> None:
    with contextlib.suppress(OSError):
        nowhere, other = socket.socketpair()
        other.close()
        with nowhere:
            for connection in list(_CONNECTIONS):
                with contextlib.suppress(Exception):  # closed already
                    os.dup2(nowhere.fileno(), connection.fileno(), inheritable=False)
    _CONNECTIONS.clear()


os.register_at_fork(after_in_child=_cut_off)
