"""The existing instance that a command works on."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from difflib import get_close_matches
from pathlib import Path

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker.cli.output import waiting_for
from servicebroker.engine.catalog.current_application import find_application
from servicebroker.model.errors import BrokerError, InstanceError, NoInstance, NotAdopted, Unreachable
from servicebroker.model.named_files import BYTES_PER_MIB, read_file
from servicebroker.model.security.certificates import Facts
from servicebroker.store.connection import connect, is_url
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.keys.x509_certificates import certificate_in
from servicebroker.store.migrations import no_instance
from servicebroker.store.running import execute


def must_exist(target: str) -> None:
    """Refuse a target without an instance; none is made there.

    Raises:
        InstanceError: there is none, or the server cannot be reached.
    """
    if not is_url(target):
        EmbeddedServer.must_exist(target)
        return
    with connect(target) as connection:
        # not to_regclass, which fails without rights on the schema: opening the instance reports those
        if not execute(
            connection,
            "existing_instance.must_exist",
            "select from pg_tables where (schemaname, tablename) = ('servicebroker', 'migrations')",
        ):
            raise no_instance(connection.info.dbname)


def opening(target: str) -> str:
    """Return the words for the wait while a command opens an instance."""
    return "Connecting to PostgreSQL" if is_url(target) else EmbeddedServer.step(target)


_KINDS = {
    "message type": "message_types",
    "contract": "contracts",
    "queue": "queues",
    "service": "services",
    "route": "routes",
    "user": "users",
    "role": "roles",
}
_UNKNOWN = {15151, 8423, 8425, 8428}  # errors for unknown names
_REFUSED = re.compile(rf".*?\b({'|'.join(_KINDS)}) ['\"](.*?)['\"]")


@contextmanager
def open_existing(target: str, keys: str | None = None) -> Iterator[Instance]:
    """Open an instance that exists: a mistyped folder must not become a new one. `keys`: see `open`.

    Raises:
        InstanceError: there is none.
    """
    with waiting_for(opening(target)):
        must_exist(target)
    with open_instance(target, upkeep=None, keys=keys) as opened:
        yield opened


@contextmanager
def open_database(target: str, database: str) -> Iterator[Database]:
    """Open a broker database of an instance that exists.

    Raises:
        InstanceError: there is no instance.
        BrokerError: 911 no such database.
    """
    with open_existing(target) as instance:
        opened = find_database(instance, database)
        try:
            yield opened
        except BrokerError as refused:
            if refused.number not in _UNKNOWN or not (near := _near(opened, refused.text)):
                raise
            raise InstanceError(f"{refused.text} Did you mean '{near}'?") from None


def find_database(instance: Instance, database: str) -> Database:
    """Return a broker database of an instance.

    Raises:
        BrokerError: 911 no such database.
        InstanceError: the same, with a similar name that exists.
    """
    try:
        return instance.database(database)
    except BrokerError as refused:
        if refused.number != 911:
            raise
        with instance.connection() as connection:
            rows = execute(connection, "existing_instance.find_database", "select name from sys.databases")
        spelling = {name.lower(): name for (name,) in rows}
        near = get_close_matches(database.lower(), spelling, 1)
        if not near:
            raise
        raise InstanceError(f"{refused.text} Did you mean '{spelling[near[0]]}'?") from None


def _near(database: Database, text: str) -> str | None:
    """Return the name most similar to the one in a refusal, among the objects of that kind; None without one."""
    said = _REFUSED.match(text)
    if said is None:
        return None
    there = getattr(database._do(find_application(database.database_id, database.name)), _KINDS[said[1]])
    return next(iter(get_close_matches(said[2], there, 1)), None)


def is_down(target: str, problem: InstanceError) -> bool:
    """Return whether the PostgreSQL of the instance cannot be reached, or an embedded one does not start."""
    if isinstance(problem, NotAdopted | NoInstance):
        return False
    return isinstance(problem, Unreachable) or (not is_url(target) and EmbeddedServer.exists(target))


def kept_certificates(target: str) -> list[Facts]:
    """Return the certificates beside their keys in the data folder, which are readable without a database."""
    if is_url(target):
        return []
    files = sorted(Path(target, "keys").glob("*.pem"))
    return [facts for file in files if (facts := certificate_in(read_file(file, BYTES_PER_MIB))) is not None]
