"""The transaction of a round, and the statements in it."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import psycopg

from servicebroker.store.direct import Ahead, DirectConnection, run_command
from servicebroker.store.statements import Statement, Steps

Do = Callable[[Steps[Any]], Any]

SOON = 0.02  # seconds until what somebody else holds is tried again, at first


@contextlib.contextmanager
def transaction(connection: DirectConnection) -> Iterator[None]:
    """As the driver's, but BEGIN travels with the first statement."""
    connection.ahead.append(Ahead(b"begin"))
    try:
        yield
        run_command(connection, b"commit")
    except BaseException:
        connection.ahead.clear()
        with contextlib.suppress(psycopg.Error):  # a lost connection has rolled back
            connection.rollback()
        raise


def alone(statement: Statement) -> Steps[None]:
    """A statement without a verb around it."""
    yield statement
