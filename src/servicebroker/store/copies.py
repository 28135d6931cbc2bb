"""Dump an instance into a file, and restore it, with pg_dump, pg_restore and psql of the embedded server.

A restore is one transaction. A dump can be restored into another version of PostgreSQL: `restore` removes SET
transaction_timeout from the script, because servers before 17 refuse it.
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
# rights on these functions are not restored: `servicebroker instance adopt`, which makes the copy an instance of its
# own, grants them (`store/lock_functions.py`)
_LOCK_FUNCTION = re.compile(r" ON FUNCTION pg_catalog\.pg_(try_)?advisory_\w+\(integer, integer\) ")
_NAME = r'("(?:[^"]|"")+"|[^\s";]+)'
_ROLES = re.compile(
    rf"\b(?:TO|FROM|FOR ROLE|SESSION AUTHORIZATION) {_NAME}(?=;$| WITH GRANT| IN SCHEMA| GRANT| REVOKE)"
)
_UNKNOWN_BEFORE_17 = b"SET transaction_timeout = 0;\n"
_HEADER_LINES = 40  # lines that may contain the setting


class Archive(NamedTuple):
    """A file of pg_dump with an instance.

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
        InstanceError: it is not a dump of pg_dump, or has no instance.
    """
    entries = _run("pg_restore", "--list", str(file)).splitlines()
    migrations = [entry for entry in entries if " TABLE DATA servicebroker migrations " in entry]
    if not migrations:
        raise InstanceError(
            f"The file '{file}' is a PostgreSQL dump, but not of an instance: give one of servicebroker instance dump."
        )
    steps = re.findall(r"^(\d+)\t", _script(file, migrations), flags=re.MULTILINE)
    rights = [entry for entry in entries if _GRANTS.match(entry)]
    lines = _script(file, rights).splitlines() if rights else []
    grants = [line for line in lines if _STATEMENT.match(line) and not _LOCK_FUNCTION.search(line)]
    return Archive(file, frozenset(map(int, steps)), grants)


def restore(archive: Archive, url: str, *, privileges: bool) -> None:
    """Restore a dump into an empty PostgreSQL database, in one transaction.

    Without `privileges`, grants to roles are skipped. Grants to PUBLIC are restored.

    Raises:
        InstanceError: it failed, and nothing was restored.
    """
    grants = [
        grant for grant in archive.grants if privileges or not (_roles(grant) or grant.startswith("RESET SESSION"))
    ]
    options = ("--no-psqlrc", "--quiet", "--set=ON_ERROR_STOP=1", "--file=-", f"--dbname={url}")
    command = [str(programs() / "pg_restore"), "--no-owner", "--no-privileges", "--file=-", str(archive.file)]
    with tempfile.TemporaryFile() as restore_errors, tempfile.TemporaryFile() as psql_errors:
        pg_restore = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=restore_errors)
        psql = subprocess.Popen(
            [programs() / "psql", *options], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, stderr=psql_errors
        )
        assert pg_restore.stdout is not None
        assert psql.stdin is not None
        with pg_restore, psql, suppress(BrokenPipeError), psql.stdin as statements:
            statements.write(b"BEGIN;\n")
            _copy(pg_restore.stdout, statements)
            if not pg_restore.wait():  # a truncated script is never committed
                statements.write("".join(f"{statement}\n" for statement in (*grants, "COMMIT;")).encode())
        for name, process, errors in (("psql", psql, psql_errors), ("pg_restore", pg_restore, restore_errors)):
            if process.returncode:
                errors.seek(0)
                raise InstanceError(f"{name} failed, and nothing was restored: {_one_line(errors.read().decode())}")


def _copy(script: IO[bytes], statements: IO[bytes]) -> None:
    """Copy a script, without the setting that servers before 17 do not know."""
    for _ in range(_HEADER_LINES):
        line = script.readline()
        if line == _UNKNOWN_BEFORE_17:
            break
        statements.write(line)
    shutil.copyfileobj(script, statements, 2**20)


def _roles(grant: str) -> list[str]:
    """Return the roles in a statement that grants or revokes rights, except PUBLIC."""
    names = _ROLES.findall(grant)
    return [name[1:-1].replace('""', '"') if name.startswith('"') else name for name in names if name != "PUBLIC"]


def _script(file: Path, entries: Sequence[str]) -> str:
    """Return the SQL of some entries of the dump's table of contents."""
    with tempfile.NamedTemporaryFile("w", suffix=".list") as list_file:
        list_file.write("".join(f"{entry}\n" for entry in entries))
        list_file.flush()
        return _run("pg_restore", "--no-owner", f"--use-list={list_file.name}", "--file=-", str(file))


def _run(program: str, *arguments: str) -> str:
    """Run a program of PostgreSQL and return its output.

    Raises:
        InstanceError: it failed.
    """
    result = subprocess.run(
        [programs() / program, *arguments], capture_output=True, text=True, errors="replace", check=False
    )
    if result.returncode:
        raise InstanceError(f"{program} failed: {_one_line(result.stderr)}")
    return result.stdout


def _one_line(errors: str) -> str:
    return " ".join(errors.split())
