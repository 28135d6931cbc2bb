"""The home of an instance: the PostgreSQL database in which it was created or adopted (decision 350).

A restored dump, a database made from a template and a subscriber of logical replication have the same rows in another
database. Such a copy has the identity of the original. So it is refused until `servicebroker instance adopt`.
"""

from __future__ import annotations

from typing import Any

import psycopg

from servicebroker.model.errors import NotAdopted
from servicebroker.store.running import execute

HERE, UPGRADED, COPY = "here", "upgraded", "copy"  # results of servicebroker.home()

COPY_ADVICE = (
    "servicebroker instance adopt --identifier new makes it another instance beside the original, keep or error put it "
    "in the original's place."
)


def find_home(connection: psycopg.Connection[Any]) -> str:
    """Compare this database with the home of the instance: HERE, UPGRADED or COPY."""
    ((home,),) = execute(connection, "home.find_home", "select servicebroker.home()")
    return str(home)


def settle(connection: psycopg.Connection[Any]) -> None:
    """Record this database as the home of the instance."""
    execute(connection, "home.settle", "select servicebroker.settle()")


def check_home(home: str, database: str) -> None:
    """Refuse a database that is not the home of its instance. `home` is the result of `find_home`.

    Raises:
        NotAdopted: it has a copy of an instance, or pg_upgrade has moved it.
    """
    if home == UPGRADED:
        raise NotAdopted(
            f"The PostgreSQL server of database '{database}' is not the one that the instance was made in. If "
            "pg_upgrade has moved it and the old server is gone: servicebroker check --mend. If it is a copy: "
            f"{COPY_ADVICE}"
        )
    if home != HERE:
        raise NotAdopted(
            f"The PostgreSQL database '{database}' holds a copy of an instance, and nobody has adopted it: nothing is "
            f"sent, received or served. {COPY_ADVICE}"
        )
