"""Who is at the end of a connection: an instance on the server that holds it."""

from __future__ import annotations

import socket
from typing import Any
from uuid import UUID, uuid5

import psycopg

from servicebroker.store.running import execute


def seat(connection: psycopg.Connection[Any]) -> UUID:
    """The identifier under which the daemon of an instance greets others.

    The instance's own is the same in a primary and its standbys, and two of them may be connected to one peer at a
    time; so it is derived from that and from where the daemon and its server are.
    """
    ((instance,),) = execute(connection, "select instance_id from servicebroker.instance")
    return uuid5(UUID(str(instance)), f"{socket.gethostname()} {connection.info.host} {connection.info.port}")
