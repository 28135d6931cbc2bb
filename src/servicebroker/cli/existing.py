"""An instance that a command works on, and does not make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.open import open_instance
from servicebroker.model.certificates import Facts
from servicebroker.model.errors import InstanceError, Unreachable
from servicebroker.store.connection import connect, is_url
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.running import execute
from servicebroker.store.x509_certificates import certificate_in


def must_exist(target: str) -> None:
    """Refuse what holds no instance; nothing is made there.

    Raises:
        InstanceError: there is none, or the server cannot be reached.
    """
    if not is_url(target):
        EmbeddedServer.must_exist(target)
        return
    with connect(target) as connection:
        # not to_regclass: a role without rights is told of those, by who opens it
        if not execute(
            connection,
            "existing.must_exist",
            "select from pg_tables where (schemaname, tablename) = ('servicebroker', 'migrations')",
        ):
            raise InstanceError(
                f"There is no instance in the PostgreSQL database '{connection.info.dbname}': make one with "
                "servicebroker init."
            )


@contextmanager
def open_existing(target: str, keys: str | None = None) -> Iterator[Instance]:
    """An instance that exists: a new one in a mistyped folder would help nobody. `keys`: see `open`.

    Raises:
        InstanceError: there is none.
    """
    must_exist(target)
    with open_instance(target, upkeep=None, keys=keys) as opened:
        yield opened


@contextmanager
def open_database(target: str, database: str) -> Iterator[Database]:
    """A broker database of an instance that exists.

    Raises:
        InstanceError: there is no instance.
        BrokerError: 911 no such database.
    """
    with open_existing(target) as instance:
        yield instance.database(database)


def is_down(target: str, problem: InstanceError) -> bool:
    """Whether that is because its PostgreSQL cannot be had: it does not answer, or an embedded one does not start."""
    return isinstance(problem, Unreachable) or (not is_url(target) and EmbeddedServer.exists(target))


def kept_certificates(target: str) -> list[Facts]:
    """The certificates that lie with their keys in the data folder: they can be read without a database."""
    if is_url(target):
        return []
    files = sorted(Path(target, "keys").glob("*.pem"))
    return [facts for file in files if (facts := certificate_in(file.read_bytes())) is not None]
