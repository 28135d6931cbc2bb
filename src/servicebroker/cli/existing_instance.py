"""Open an existing instance or broker database for a command, and suggest similar names after a typo."""

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


def check_exists(target: str) -> None:
    """Refuse a data folder or URL without an instance, so that a typo creates nothing.

    Raises:
        InstanceError: there is no instance, or the server cannot be reached.
    """
    if not is_url(target):
        EmbeddedServer.check_exists(target)
        return
    with connect(target) as connection:
        # not to_regclass, which fails without rights on the schema; opening the instance reports missing rights
        if not execute(
            connection,
            "existing_instance.check_exists",
            "select from pg_tables where (schemaname, tablename) = ('servicebroker', 'migrations')",
        ):
            raise no_instance(connection.info.dbname)


def opening(target: str) -> str:
    """Return the text to print if opening the instance takes long."""
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
_UNKNOWN_NAME_ERRORS = {15151, 8423, 8425, 8428}
_KIND_AND_NAME = re.compile(rf".*?\b({'|'.join(_KINDS)}) ['\"](.*?)['\"]")


@contextmanager
def open_existing(target: str, keys: str | None = None) -> Iterator[Instance]:
    """Open an existing instance. A folder or URL without one is refused. `keys` is the key folder, as for `open`.

    Raises:
        InstanceError: there is no instance, or it cannot be opened.
    """
    with waiting_for(opening(target)):
        check_exists(target)
    with open_instance(target, upkeep=None, keys=keys) as opened:
        yield opened


@contextmanager
def open_database(target: str, database: str) -> Iterator[Database]:
    """Open a broker database of an existing instance.

    If the block raises an error about an unknown name, the error suggests a similar name.

    Raises:
        InstanceError: there is no instance.
        BrokerError: 911 there is no such database.
    """
    with open_existing(target) as instance:
        opened = find_database(instance, database)
        try:
            yield opened
        except BrokerError as refused:
            if refused.number not in _UNKNOWN_NAME_ERRORS or not (similar := _similar_name(opened, refused.text)):
                raise
            raise InstanceError(f"{refused.text} Did you mean '{similar}'?") from None


def find_database(instance: Instance, database: str) -> Database:
    """Return a broker database of an instance.

    Raises:
        BrokerError: 911 there is no such database.
        InstanceError: there is no such database, but one with a similar name.
    """
    try:
        return instance.database(database)
    except BrokerError as refused:
        if refused.number != 911:
            raise
        with instance.connection() as connection:
            rows = execute(connection, "existing_instance.find_database", "select name from sys.databases")
        spelling = {name.lower(): name for (name,) in rows}
        similar = get_close_matches(database.lower(), spelling, 1)
        if not similar:
            raise
        raise InstanceError(f"{refused.text} Did you mean '{spelling[similar[0]]}'?") from None


def _similar_name(database: Database, error: str) -> str | None:
    """Return the existing name that is most similar to the unknown name in an error's text; None without one."""
    match = _KIND_AND_NAME.match(error)
    if match is None:
        return None
    kind, unknown_name = match[1], match[2]
    names = getattr(database._do(find_application(database.database_id, database.name)), _KINDS[kind])
    return next(iter(get_close_matches(unknown_name, names, 1)), None)


def is_down(target: str, problem: InstanceError) -> bool:
    """Return whether an error means that PostgreSQL cannot be reached, or that an embedded one does not start."""
    if isinstance(problem, NotAdopted | NoInstance):
        return False
    return isinstance(problem, Unreachable) or (not is_url(target) and EmbeddedServer.exists(target))


def kept_certificates(target: str) -> list[Facts]:
    """Return the certificates in the key folder of a data folder, which are readable while the database is down."""
    if is_url(target):
        return []
    files = sorted(Path(target, "keys").glob("*.pem"))
    return [facts for file in files if (facts := certificate_in(read_file(file, BYTES_PER_MIB))) is not None]
