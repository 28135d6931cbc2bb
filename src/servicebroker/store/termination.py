"""Terminate a connection from another thread, whatever its own thread does with it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

import psycopg


def terminate(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Cancel its statement and shut its socket down, so that the server rolls its transaction back.

    Its own thread gets an error from the driver, and must close it like any lost connection.
    """
    with suppress(psycopg.Error, OSError):
        connection.pgconn.get_cancel().cancel()
        with socket.socket(fileno=os.dup(connection.fileno())) as other:
            other.shutdown(socket.SHUT_RDWR)
