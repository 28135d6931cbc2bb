"""Terminate a connection from another thread while its own thread uses it."""

from __future__ import annotations

import os
import socket
from contextlib import suppress
from typing import Any

import psycopg


def terminate(connection: psycopg.Connection[Any] | psycopg.AsyncConnection[Any]) -> None:
    """Cancel the running statement and shut the socket down, so that the server rolls the transaction back.

    The thread that uses the connection gets an error from the driver, and must close it like any lost connection.
    """
    with suppress(psycopg.Error, OSError):
        connection.pgconn.get_cancel().cancel()
        with socket.socket(fileno=os.dup(connection.fileno())) as other:
            other.shutdown(socket.SHUT_RDWR)
