"""A copy of an instance next to its original: detected, refused everywhere, and fixed by `instance adopt`."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psycopg
import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app as command
from servicebroker.store.cluster import programs
from support import ORDER, STOCK_QUEUE, begin, bodies, define_standard_set

COPY = "holds a copy of an instance, and nobody has adopted it"


def run_command(*arguments: object) -> str:
    """Return a function that runs a command and returns its output or error."""
    result = CliRunner().invoke(command, [*map(str, arguments)])
    return result.output if result.exit_code == 0 else f"{result.output}{result.exception}"


def refusal(url: str | Path) -> str:
    with pytest.raises(sb.InstanceError) as error:
        sb.open(url, upkeep=None)
    return str(error.value)


@pytest.fixture
def original(make_instance_url: Callable[[], str]) -> str:
    """Return the URL of an instance with the standard set, one message and an endpoint."""
    url = make_instance_url()
    with sb.open(url, upkeep=None) as instance:
        database = define_standard_set(instance.database("Shop", create=True))
        database.send(begin(database), ORDER, b"one")
        database.execute_tsql("CREATE ENDPOINT Net STATE = STARTED AS TCP (LISTENER_PORT = 4999) FOR SERVICE_BROKER ()")
    return url


def restore_dump(original: str, url: str, tmp_path: Path) -> str:
    """Restore a dump into another database of the same server with pg_dump and pg_restore."""
    file = tmp_path / "dump"
    subprocess.run([programs() / "pg_dump", "-Fc", "-f", file, original], check=True)
    subprocess.run([programs() / "pg_restore", "--no-owner", "--exit-on-error", "-d", url, file], check=True)
    return url


def of_template(original: str, make_url: Callable[..., str]) -> str:
    return make_url(psycopg.conninfo.conninfo_to_dict(original)["dbname"])


@pytest.fixture(params=["restored", "template"])
def copy(request: pytest.FixtureRequest, original: str, make_url: Callable[..., str], tmp_path: Path) -> str:
    """Return a copy in the cluster of the original."""
    if request.param == "restored":
        return restore_dump(original, make_url(), tmp_path)
    return of_template(original, make_url)


def test_a_copy_refuses_every_command_and_names_the_cure(copy: str, original: str) -> None:
    for arguments in (
        ["serve"],
        ["doctor"],
        ["check"],
        ["check", "--mend"],
        ["status"],
        ["queue", "list", "-d", "Shop"],
    ):
        refused = run_command(*arguments, "--instance", copy)
        assert COPY in refused, refused
        assert "servicebroker instance adopt --identifier new" in refused
    assert COPY in refusal(copy)
    with sb.open(original, upkeep=None) as instance:
        assert bodies(instance.database("Shop").receive(STOCK_QUEUE)) == [b"one"]


def test_an_adopted_copy_works_and_its_endpoint_is_stopped_beside_the_original(copy: str, original: str) -> None:
    assert "it is stopped: give it a port of its own" in run_command(
        "instance", "adopt", "--identifier", "new", "--instance", copy
    )
    for url, state in ((original, "STARTED"), (copy, "STOPPED")):
        with sb.open(url, upkeep=None) as instance:
            query = "SELECT state_desc FROM sys.tcp_endpoints WHERE name = N'Net'"
            assert instance.database("Shop").execute_tsql(query).rows == [(state,)]
    with sb.open(copy, upkeep=None) as instance:
        database = instance.database("Shop")
        database.send(begin(database), ORDER, b"mine")
        assert bodies(database.receive(STOCK_QUEUE)) == [b"mine"]


@pytest.mark.parametrize("identifier", ["new", "error"])
def test_an_original_is_adopted_only_after_a_question(original: str, identifier: str) -> None:
    adopt = ["instance", "adopt", "--identifier", identifier, "--instance", original]
    result = CliRunner().invoke(command, adopt, input="n\n")
    assert result.exit_code == 1
    assert "looks like an original, not like a copy: all its conversations" in result.output
    with sb.open(original, upkeep=None) as instance:
        assert bodies(instance.database("Shop").receive(STOCK_QUEUE)) == [b"one"]
        instance.database("Shop").send(begin(instance.database("Shop")), ORDER, b"two")
    assert "The instance is adopted." in run_command(*adopt, "--yes")
    with sb.open(original, upkeep=None) as instance:
        left = instance.database("Shop").receive(STOCK_QUEUE)
        assert [message.is_error for message in left] == ([] if identifier == "new" else [True, False])


def test_a_copy_that_takes_the_place_of_the_original_keeps_its_endpoint(copy: str) -> None:
    run_command("instance", "adopt", "--identifier", "keep", "--instance", copy)
    with sb.open(copy, upkeep=None) as instance:
        query = "SELECT state_desc FROM sys.tcp_endpoints WHERE name = N'Net'"
        assert instance.database("Shop").execute_tsql(query).rows == [("STARTED",)]


def test_sequences_that_logical_replication_has_not_copied_are_set(copy: str) -> None:
    with psycopg.connect(copy, autocommit=True) as connection:
        names = connection.execute(
            "select format('servicebroker.%I', relname) from pg_class "
            "where relkind = 'S' and relnamespace = 'servicebroker'::regnamespace"
        ).fetchall()
        for (name,) in names:
            connection.execute(f"alter sequence {name} restart")  # type: ignore[call-overload]
    run_command("instance", "adopt", "--identifier", "keep", "--instance", copy)
    with sb.open(copy, upkeep=None) as instance:
        database = instance.database("Shop")
        handle = begin(database)
        assert database.send(handle, ORDER, b"two") == 0
        assert sorted(bodies([*database.receive(STOCK_QUEUE), *database.receive(STOCK_QUEUE)])) == [b"one", b"two"]
        database.create_queue("New")
        define_standard_set(instance.database("Another", create=True))
        assert instance.check().findings == []


def test_a_database_under_another_name_stays_at_home(original: str) -> None:
    name = psycopg.conninfo.conninfo_to_dict(original)["dbname"]
    server = original.replace(f"/{name}?", "/postgres?")
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"alter database {name} rename to {name}_else")  # type: ignore[call-overload]
    try:
        with sb.open(original.replace(name, f"{name}_else"), upkeep=None) as instance:
            assert bodies(instance.database("Shop").receive(STOCK_QUEUE)) == [b"one"]
    finally:
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"alter database {name}_else rename to {name}")  # type: ignore[call-overload]


def test_pg_upgrade_is_told_and_mended_by_check(original: str) -> None:
    # The state after pg_upgrade: PostgreSQL's object ids are unchanged, the system identifier is new.
    with psycopg.connect(original, autocommit=True) as connection:
        connection.execute("update servicebroker.instance set system_identifier = 1")
    said_so = refusal(original)
    assert "pg_upgrade" in said_so
    assert "servicebroker check --mend" in said_so
    assert "0 problems found" in run_command("check", "--mend", "--instance", original)
    sb.open(original, upkeep=None).close()


def test_an_owner_without_access_to_the_servers_identifier_is_at_home(original: str) -> None:
    with psycopg.connect(original) as connection, connection.transaction(force_rollback=True):
        connection.execute("create role no_superuser nologin")
        connection.execute("revoke execute on function pg_control_system() from public")
        connection.execute("alter function servicebroker.home() owner to no_superuser")
        connection.execute("grant usage on schema servicebroker to no_superuser")
        connection.execute("grant select on servicebroker.instance to no_superuser")
        connection.execute("grant execute on function servicebroker.system_identifier() to no_superuser")
        connection.execute("set local role no_superuser")
        assert connection.execute("select servicebroker.system_identifier()").fetchone() == (None,)
        assert connection.execute("select servicebroker.home()").fetchone() == ("here",)


# ---------------------------------------------------------------- data folders


def copy_folder(folder: Path) -> Path:
    copy = folder.with_name("copy")
    subprocess.run(["cp", "-a", folder, copy], check=True)
    return copy


@pytest.fixture
def folder() -> Iterator[Path]:
    """Return the data folder of a closed instance, outside of pytest's folder; conftest.py has the reason."""
    with tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True) as folder_path:
        folder = Path(folder_path, "data")
        with sb.open(folder, upkeep=None) as instance:
            instance.database("Shop", create=True)
        yield folder


def test_a_copied_folder_is_refused_until_it_is_adopted(folder: Path) -> None:
    copy = copy_folder(folder)
    assert f"is a copy of '{folder}'" in refusal(copy)
    assert "is a copy of" in run_command("doctor", "--instance", copy)
    assert "it is stopped: give it a port of its own" in run_command(
        "instance", "adopt", "--identifier", "new", "--instance", copy
    )
    for place in (copy, folder):
        sb.open(place, upkeep=None).close()


def test_a_folder_that_was_copied_while_it_ran_is_refused_also_by_adopt(folder: Path) -> None:
    with sb.open(folder, upkeep=None):
        copy = copy_folder(folder)
        (copy / "home").unlink()  # as the previous version left it
        for refused in (refusal(copy), run_command("instance", "adopt", "--identifier", "new", "--instance", copy)):
            assert f"was copied from '{folder}' while the server there ran" in refused
    assert "while the server there ran" in refusal(copy)


@pytest.mark.parametrize("killed", [False, True])
@pytest.mark.sampled(1)
def test_a_folder_that_was_moved_goes_on(folder: Path, killed: bool) -> None:
    if killed:
        opener = "import os, sys, servicebroker as sb; sb.open(sys.argv[1], upkeep=None); os._exit(0)"
        subprocess.run([sys.executable, "-c", opener, folder], check=True)
        postmaster = int((folder / "postgresql/postmaster.pid").read_text().split()[0])
        os.kill(postmaster, signal.SIGKILL)
        while Path(f"/proc/{postmaster}/cwd").exists():
            time.sleep(0.05)
    moved = folder.with_name("moved")
    folder.rename(moved)
    for _ in range(2):
        sb.open(moved, upkeep=None).close()
    moved.rename(folder)
    sb.open(folder, upkeep=None).close()
