"""`servicebroker instance dump` and `restore`: between versions of PostgreSQL, with roles or not, all or nothing."""

from __future__ import annotations

import lzma
import os
import shutil
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest
from typer.testing import CliRunner

import landed_copy
import servicebroker as sb
from forked import SHIPPED_SCRYPT_COST
from mirrored_servers import Server
from servicebroker.cli.main import app as command
from servicebroker.store.cluster import programs
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.keys import sealing
from support import ORDER, STOCK_QUEUE, begin, bodies, define_standard_set, query


def run_instance_command(*arguments: object) -> str:
    """Return a function that runs `servicebroker instance` and returns its output, also of a refusal."""
    result = CliRunner().invoke(command, ["instance", *map(str, arguments)])
    return result.output if result.exit_code == 0 else str(result.exception)


def restore(file: Path, missing_folder: object, *options: str) -> str:
    return run_instance_command("restore", file, "--instance", missing_folder, "--identifier", "keep", *options)


@pytest.fixture(scope="module")
def copy(make_instance_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Create a dump with the standard set and two messages."""
    file, url = tmp_path_factory.mktemp("copies") / "copy", make_instance_url()
    with sb.open(url, upkeep=None) as instance:
        database = define_standard_set(instance.database("Shop", create=True))
        handle = begin(database)
        database.send_batch(handle, ORDER, [b"SET transaction_timeout = 0;\n", b"two"])
        database.execute_tsql("CREATE TABLE Lines (Line NVARCHAR(99))")
        database.execute_tsql("INSERT Lines VALUES (N'SET transaction_timeout = 0;'), (N'COMMIT;')")
    assert "The instance is in" in run_instance_command("dump", file, "--instance", url)
    return file


@pytest.fixture
def missing_folder() -> Iterator[Path]:
    """Return the path of a missing folder outside of pytest's folder; conftest.py has the reason."""
    with tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True) as folder:
        yield Path(folder, "deep", "place")


def goes_on(missing_folder: object) -> None:
    """Check that the content of the copy is complete and usable."""
    with sb.open(str(missing_folder), upkeep=None) as instance:
        database = instance.database("Shop")
        assert instance.check().findings == []
        messages = database.receive(STOCK_QUEUE)
        assert bodies(messages) == [b"SET transaction_timeout = 0;\n", b"two"]
        assert database.send(begin(database), ORDER, b"new") == 0
        lines = database.execute_tsql("SELECT Line FROM Lines ORDER BY Line").rows
        assert lines == [("COMMIT;",), ("SET transaction_timeout = 0;",)]


# ---------------------------------------------------------------- versions of PostgreSQL


def programs_of(version: str) -> Path:
    """Return the folder of a PostgreSQL version's programs: two are in wheels, the system may have others."""
    for folder in (*programs().parent.parent.glob("pginstall*/bin"), Path(f"/usr/lib/postgresql/{version}/bin")):
        if (folder / "postgres").is_file() and (folder / "pg_ctl").is_file():
            result = subprocess.run([folder / "postgres", "--version"], capture_output=True, text=True, check=True)
            if result.stdout.split()[2].split(".")[0] == version:
                return folder
    pytest.skip(f"PostgreSQL {version} is not installed")


@pytest.fixture(scope="module", params=["15", "16", "17"])
def older(request: pytest.FixtureRequest) -> Iterator[Callable[[str], str]]:
    """Return a function that creates databases in a server of an older version."""
    with tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        server = Server(Path(folder, "server"), programs_of(request.param))
        server.make(synchronous="")
        server.start()

        def make(name: str) -> str:
            with psycopg.connect(server.url, autocommit=True) as connection:
                connection.execute(f"create database {name}")  # type: ignore[call-overload]
            return server.url.replace(":///postgres?", f":///{name}?")

        yield make
        server.close()


@pytest.mark.slow
@pytest.mark.sampled(1)
def test_a_dump_is_restored_into_older_and_newer_versions_of_postgresql(
    copy: Path, older: Callable[[str], str], make_url: Callable[[], str], tmp_path: Path
) -> None:
    first, again, newer = older("first"), older("again"), make_url()
    assert "is adopted" in restore(copy, first)
    back = tmp_path / "back"
    assert "The instance is in" in run_instance_command("dump", back, "--instance", first)
    for place in (newer, again):
        assert "is adopted" in restore(back, place)
    for place in (first, newer, again):
        goes_on(place)


# ---------------------------------------------------------------- roles


@pytest.fixture
def of_a_role(make_instance_url: Callable[[], str], tmp_path: Path) -> Iterator[Path]:
    """Create a dump with rights of a role that was dropped meanwhile."""
    url, role, file = make_instance_url(), 'clerk "of" tests', tmp_path / "copy"
    with psycopg.connect(url, autocommit=True) as connection:
        name = psycopg.sql.Identifier(role)
        connection.execute(psycopg.sql.SQL("create role {}").format(name))
        grants = (
            "grant usage on schema servicebroker to {} with grant option",
            "grant execute on function servicebroker.send to {}",
            "alter default privileges in schema sys grant select on tables to {}",
        )
        for grant in grants:
            connection.execute(psycopg.sql.SQL(grant).format(name))
        assert "The instance is in" in run_instance_command("dump", file, "--instance", url)
        for rest in ("drop owned by {} cascade", "drop role {}"):
            connection.execute(psycopg.sql.SQL(rest).format(name))
    yield file
    with psycopg.connect(url, autocommit=True) as connection:
        for rest in ("drop owned by {} cascade", "drop role {}"):
            if query_roles(url, role):
                connection.execute(psycopg.sql.SQL(rest).format(name))


def query_roles(url: str, role: str) -> list[Any]:
    with psycopg.connect(url) as connection:
        return connection.execute("select from pg_roles where rolname = %s", (role,)).fetchall()


RIGHTS = (
    "select has_function_privilege(%s, 'servicebroker.send(uuid, text, bytea)', 'execute'), "
    "has_schema_privilege(%s, 'tsql', 'usage')"
)


@pytest.mark.feature(204)
def test_roles_that_do_not_exist_are_named_before_anything_is_made(of_a_role: Path, missing_folder: Path) -> None:
    refusal = restore(of_a_role, missing_folder)
    assert 'clerk "of" tests' in refusal
    assert "--no-privileges" in refusal
    assert not missing_folder.parent.exists()


def test_a_restore_without_privileges_keeps_the_rights_of_public(of_a_role: Path, make_url: Callable[[], str]) -> None:
    """The functions of the broker are closed in the copy, too."""
    url = make_url()
    assert "does not have" in restore(of_a_role, url)
    assert "is adopted" in restore(of_a_role, url, "--no-privileges")
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create role nobody_special")
        try:
            rights = connection.execute(RIGHTS, ("nobody_special", "nobody_special")).fetchone()
            assert rights == (False, True)
        finally:
            connection.execute("drop role nobody_special")


def test_roles_that_are_there_have_their_rights(of_a_role: Path, make_url: Callable[[], str]) -> None:
    url, role = make_url(), 'clerk "of" tests'
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(psycopg.sql.SQL("create role {}").format(psycopg.sql.Identifier(role)))
        assert "is adopted" in restore(of_a_role, url)
        assert connection.execute(RIGHTS, (role, role)).fetchone() == (True, True)
        connection.execute(psycopg.sql.SQL("drop owned by {} cascade").format(psycopg.sql.Identifier(role)))


# ---------------------------------------------------------------- all or nothing


@pytest.mark.parametrize("spoiled", ["no copy", "cut", "empty", "of something else", "of a newer version"])
def test_a_copy_that_is_none_leaves_no_folder(
    copy: Path, missing_folder: Path, tmp_path: Path, make_url: Callable[[], str], spoiled: str
) -> None:
    bad = tmp_path / "bad"
    whole = copy.read_bytes()
    if spoiled == "of a newer version":
        url = make_url()
        assert "is adopted" in restore(copy, url)
        with psycopg.connect(url) as connection:
            connection.execute("insert into servicebroker.migrations values (9999, 'of tomorrow')")
        assert "The instance is in" in run_instance_command("dump", bad, "--instance", url)
    elif spoiled == "of something else":
        subprocess.run([programs() / "pg_dump", "-Fc", "-f", bad, make_url()], check=True)
    else:
        bad.write_bytes({"no copy": b"x" * 1000, "cut": whole[: len(whole) * 9 // 10], "empty": b""}[spoiled])
    words = {"of something else": "but not of an instance", "of a newer version": "upgrade servicebroker"}
    assert words.get(spoiled, "pg_restore failed") in restore(bad, missing_folder)
    assert not missing_folder.parent.exists()


@pytest.mark.feature(204)
def test_a_restore_that_fails_half_way_is_rolled_back(copy: Path, make_url: Callable[[], str]) -> None:
    """A table of the copy exists already."""
    url = make_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create schema shop_dbo")
        assert "psql failed, and nothing was restored" in restore(copy, url)
        text = "select nspname from pg_namespace where nspname in ('servicebroker', 'sys', 'tsql', 'msdb_dbo')"
        assert connection.execute(text).fetchall() == []
        connection.execute("drop schema shop_dbo")
    assert "is adopted" in restore(copy, url)
    goes_on(url)


def test_a_restore_into_a_folder_keeps_its_other_files(copy: Path, missing_folder: Path, tmp_path: Path) -> None:
    missing_folder.mkdir(parents=True)
    (missing_folder / "notes").write_text("mine")
    if os.geteuid() == 0:
        shutil.chown(missing_folder, 0)
    cut = tmp_path / "cut"
    cut.write_bytes(copy.read_bytes()[:-4000])  # found only in the middle
    assert "failed" in restore(cut, missing_folder)
    assert [path.name for path in missing_folder.iterdir()] == ["notes"]
    assert "is adopted" in restore(copy, missing_folder)
    goes_on(missing_folder)
    assert "There is an instance in" in restore(copy, missing_folder)
    assert EmbeddedServer.exists(missing_folder)


def test_a_dump_that_fails_leaves_no_file(make_instance_url: Callable[[], str], tmp_path: Path) -> None:
    url, file = make_instance_url(), tmp_path / "copy"
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create function public.loud() returns int language sql as 'select 1'")
        connection.execute("update pg_proc set prolang = 999999 where proname = 'loud'")  # pg_dump cannot dump it
    assert "pg_dump failed" in run_instance_command("dump", file, "--instance", url)
    assert not file.exists()


# ---------------------------------------------------------------- upgrade


@pytest.mark.feature(204)
def test_an_instance_of_the_last_landed_version_is_upgraded_with_all_it_holds(
    make_url: Callable[[], str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sealing, "SCRYPT_COST", SHIPPED_SCRYPT_COST)
    file, url = tmp_path / "landed", make_url()
    file.write_bytes(lzma.decompress(landed_copy.FILE.read_bytes()))
    assert "is adopted" in restore(file, url)
    with sb.open(url, upkeep=None) as instance:
        shop = instance.database(landed_copy.DATABASE)
        assert instance.check().findings == []
        received: list[bytes | None] = []
        while messages := shop.receive("StockQueue"):
            received += bodies(messages)
        assert received == [b"1", b"2", b"shared", b"<count>7</count>", b"shared"]
        states = "select state, count(*) from sys.conversation_endpoints where broker_database = 'Shop' group by 1"
        assert dict(query(shop, states)) == {"CO": 8}
        assert query(shop, "select to_service_name from sys.transmission_queue where to_service_name = '//elsewhere'")
        (aside,) = shop.set_aside_messages("KeptQueue")
        shop.replay_message(aside.set_aside_id)
        assert bodies(shop.receive("KeptQueue")) == [b"poison"]
        shop.create_service(landed_copy.LATE, "StockQueue", ["//shop/Contract"])
        assert bodies(shop.receive("StockQueue")) == [b"waits"]
        handle = shop.begin_dialog("//shop/Orders", landed_copy.KNOWN, contract="//shop/Contract", encryption=False)
        shop.send(handle, "//shop/Count", "<count>8</count><count>9</count>")
        (message,) = shop.receive("StockQueue")
        assert (message.priority, message.message_body) == (7, b"<count>8</count><count>9</count>")
        shop.send(handle, "//shop/Count", "<count>x</count>")
        (error,) = shop.receive("OrdersQueue")
        assert sb.read_error(error.message_body)[0] == -9615
        assert query(shop, "select status from shop_dbo.keptqueue") == [(0,)] * 3
        clerk = instance.database(landed_copy.DATABASE, user="Clerk")
        assert clerk.receive("StockQueue", top=0) == []
        shop.open_master_key(landed_copy.PASSWORD)
        shop.backup_certificate("own", tmp_path / "own.pem")
        script = "DECLARE @n INT; EXEC Count_Orders @n OUTPUT; INSERT Orders (Body) VALUES (NULL); SELECT dbo.Twice(@n)"
        results = shop.execute_tsql(script)
        assert results.rows == [(2,)]
        assert [message.text for message in results.messages] == ["one more"]
        shop.create_event_notification(  # since then names are unique on their queue
            "Told", on_queue="OrdersQueue", events="BROKER_QUEUE_DISABLED", to_service=landed_copy.KNOWN
        )
