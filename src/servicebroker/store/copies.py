"""Dump an instance into a file, and restore it, with PostgreSQL's own programs of the embedded server.

A dump works for other versions of PostgreSQL: pg_restore's script goes to psql without the setting that servers before
17 do not know. A restore is one transaction.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.store.cluster import programs

_GRANTS = re.compile(r"\d+; \d+ \d+ (DEFAULT )?ACL ")
_STATEMENT = re.compile(r"GRANT |REVOKE |ALTER DEFAULT PRIVILEGES |(SET|RESET) SESSION AUTHORIZATION\b")
# lock functions depend on the database: `store/lock_functions.py` grants them when the copy is adopted
_LOCK_FUNCTION = re.compile(r" ON FUNCTION pg_catalog\.pg_(try_)?advisory_\w+\(integer, integer\) ")
_NAME = r'("(?:[^"]|"")+"|[^\s";]+)'
_ROLES = re.compile(
    rf"\b(?:TO|FROM|FOR ROLE|SESSION AUTHORIZATION) {_NAME}(?=;$| WITH GRANT| IN SCHEMA| GRANT| REVOKE)"
)
_UNKNOWN_BEFORE_17 = b"SET transaction_timeout = 0;\n"
_HEADER_LINES = 40  # lines that may contain the setting


class Archive(NamedTuple):
    """A dump that pg_dump has written.

    Attributes:
        migrations: the numbers of the schema's migrations.
        grants: statements that grant and revoke rights, one in each line.
    """

    file: Path
    migrations: frozenset[int]
    grants: Sequence[str]

    @property
    def roles(self) -> list[str]:
        """The roles that rights were granted to."""
        return sorted({role for grant in self.grants for role in _roles(grant)})


def dump(url: str, file: Path) -> None:
    """Dump a snapshot of a whole PostgreSQL database into a new file.

    Raises:
        InstanceError: pg_dump failed; no file is left.
    """
    try:
        _run("pg_dump", "--format=custom", f"--file={file}", url)
    except BaseException:
        with suppress(OSError):
            file.unlink()
        raise


def read(file: Path) -> Archive:
    """Read the contents of a dump.

    Raises:
        InstanceError: it is no dump of pg_dump, or has no instance.
    """
    entries = _run("pg_restore", "--list", str(file)).splitlines()
    migrations = [entry for entry in entries if " TABLE DATA servicebroker migrations " in entry]
    if not migrations:
        raise InstanceError(f"There is no instance in the copy '{file}'.")
    steps = re.findall(r"^(\d+)\t", _script(file, migrations), flags=re.MULTILINE)
    rights = [entry for entry in entries if _GRANTS.match(entry)]
    lines = _script(file, rights).splitlines() if rights else []
    grants = [line for line in lines if _STATEMENT.match(line) and not _LOCK_FUNCTION.search(line)]
    return Archive(file, frozenset(map(int, steps)), grants)


def restore(archive: Archive, url: str, *, privileges: bool) -> None:
    """Restore a dump into an empty PostgreSQL database, in one transaction.

    Without `privileges` grants to roles are left out; the rights of public are restored.

    Raises:
        InstanceError: it failed, and nothing was restored.
    """
    grants = [one for one in archive.grants if privileges or not (_roles(one) or one.startswith("RESET SESSION"))]
    quiet = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file=-", f"--dbname={url}")
    script = [str(programs() / "pg_restore"), "--no-owner", "--no-privileges", "--file=-", str(archive.file)]
    with tempfile.TemporaryFile() as said, tempfile.TemporaryFile() as answered:
        reading = subprocess.Popen(script, stdout=subprocess.PIPE, stderr=said)
        making = subprocess.Popen(
            [programs() / "psql", *quiet], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=answered
        )
        assert reading.stdout is not None
        assert making.stdin is not None
        with reading, making, suppress(BrokenPipeError), making.stdin as statements:
            statements.write(b"BEGIN;\n")
            _copy(reading.stdout, statements)
            if not reading.wait():  # a truncated script is never committed
                statements.write("".join(f"{one}\n" for one in (*grants, "COMMIT;")).encode())
        for program, done, errors in (("psql", making, answered), ("pg_restore", reading, said)):
            if done.returncode:
                errors.seek(0)
                raise InstanceError(f"{program} failed, and nothing was restored: {_gist(errors.read().decode())}")


def _copy(script: IO[bytes], statements: IO[bytes]) -> None:
    for _ in range(_HEADER_LINES):
        line = script.readline()
        if line == _UNKNOWN_BEFORE_17:
            break
        statements.write(line)
    shutil.copyfileobj(script, statements, 2**20)


def _roles(grant: str) -> list[str]:
    """Return the roles that a statement about rights names, except PUBLIC."""
    found = _ROLES.findall(grant)
    return [name[1:-1].replace('""', '"') if name.startswith('"') else name for name in found if name != "PUBLIC"]


def _script(file: Path, entries: Sequence[str]) -> str:
    """Return the script of these entries of a dump's list."""
    with tempfile.NamedTemporaryFile("w", suffix=".list") as chosen:
        chosen.write("".join(f"{entry}\n" for entry in entries))
        chosen.flush()
        return _run("pg_restore", "--no-owner", f"--use-list={chosen.name}", "--file=-", str(file))


def _run(program: str, *arguments: str) -> str:
    """Run a program of PostgreSQL and return its output.

    Raises:
        InstanceError: it failed.
    """
    done = subprocess.run(
        [programs() / program, *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    if done.returncode:
        raise InstanceError(f"{program} failed: {_gist(done.stderr)}")
    return done.stdout


def _gist(errors: str) -> str:
    return " ".join(errors.split())
