"""Who is at the end of a connection: an instance on the server that holds it."""

from __future__ import annotations

import socket
from typing import Any
from uuid import UUID, uuid5

import psycopg

from servicebroker.store.running import execute


def instance_of(connection: psycopg.Connection[Any]) -> UUID:
    """The identifier of the instance: the same in a primary and its standbys."""
    ((instance,),) = execute(connection, "seat.instance_of", "select instance_id from servicebroker.instance")
    return UUID(str(instance))


def seat(connection: psycopg.Connection[Any]) -> UUID:
    """The identifier under which the daemon of an instance greets others.

    Two servers of one instance may be connected to one peer at a time; so it is derived from the instance's and from
    where the daemon and its server are.
    """
    place = f"{socket.gethostname()} {connection.info.host} {connection.info.port}"
    return uuid5(instance_of(connection), place)
