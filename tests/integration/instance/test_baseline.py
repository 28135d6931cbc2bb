"""The schema baseline: upgraded and new instances have the same schema, and older instances are refused."""

from __future__ import annotations

import lzma
import re
import subprocess
from collections.abc import Callable
from pathlib import Path
from uuid import uuid4

import psycopg
import pytest
from typer.testing import CliRunner

import landed_copy
import servicebroker as sb
from servicebroker.cli.main import app as command
from servicebroker.store import migrations
from servicebroker.store.cluster import programs
from servicebroker.store.migrations import BASELINE_NUMBER

ENTRY = re.compile(r"^--\n-- Name: (.+); Type: (.+); Schema: (\S+); Owner: .*\n--\n", re.MULTILINE)
SCHEMAS = ("servicebroker", "servicebroker_fence", "sys", "tsql")
OF_A_QUEUE = re.compile(r"_\d+(_|\b)")  # `check` compares these with the template


def entries(url: str) -> dict[tuple[str, str, str], str]:
    """Return the definitions of all objects of the broker except those of queues."""
    schemas = [f"--schema={name}" for name in SCHEMAS]
    result = subprocess.run(
        [programs() / "pg_dump", "--schema-only", *schemas, url], capture_output=True, text=True, check=True
    )
    parts = ENTRY.split(result.stdout.split("-- PostgreSQL database dump complete")[0])[1:]
    found = zip(parts[::4], parts[1::4], parts[2::4], parts[3::4], strict=True)
    return {
        (schema, kind, name): text
        for name, kind, schema, text in found
        if schema != "servicebroker" or not OF_A_QUEUE.search(name)
    }


def restore(file: Path, url: str) -> str:
    """Restore a copy, and return the output of the command or its error."""
    result = CliRunner().invoke(command, ["instance", "restore", str(file), "--instance", url, "--identifier", "keep"])
    return result.output if result.exit_code == 0 else str(result.exception)


def test_an_upgraded_instance_of_the_landed_version_has_the_schema_of_a_new_one(
    make_instance_url: Callable[[], str], make_url: Callable[[], str], tmp_path: Path
) -> None:
    """The comparison includes the order of columns."""
    file, url = tmp_path / "landed", make_url()
    file.write_bytes(lzma.decompress(landed_copy.FILE.read_bytes()))
    assert "is adopted" in restore(file, url)
    sb.open(url, upkeep=None).close()
    upgraded, new = entries(url), entries(make_instance_url())
    assert ("servicebroker", "TABLE", "conversation_endpoints") in new
    assert len(new) > 1000
    assert upgraded.keys() == new.keys()
    assert {name: text for name, text in upgraded.items() if text != new[name]} == {}


def test_a_view_with_for_xml_outlives_an_upgrade(make_instance_url: Callable[[], str]) -> None:
    """Library functions and views of applications call library functions, so none can simply be dropped."""
    url = make_instance_url()
    with psycopg.connect(url) as connection:
        connection.execute(
            "create function tsql.refuse_zero(number integer, said text) returns text language sql return said; "
            "create or replace function tsql.xml_document(said text) returns text language sql immutable parallel safe "
            "return tsql.refuse_zero(6841, said); "
            "create or replace function tsql.xml_value(said text) returns text language sql immutable parallel safe "
            "return tsql.refuse_zero(9420, said); "
            "create view public.documents as select tsql.xml_document('<a>' || chr(1) || '</a>') as document; "
            "delete from servicebroker.migrations where number = 496"
        )
    sb.open(url, upkeep=None).close()
    with psycopg.connect(url) as connection:
        assert connection.execute("select document from public.documents").fetchall() == [("<a>&#x01;</a>",)]
        assert connection.execute("select from pg_proc where proname = 'refuse_zero'").fetchall() == []


def test_views_on_the_catalog_outlive_an_upgrade(
    make_instance_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The order of their making does not count. Rights, comments and indexes stay, too.

    A materialized view is filled with the rights of its owner, since it may call any function.
    """
    url, keeper = make_instance_url(), f"keeper_{uuid4().hex}"
    with psycopg.connect(url) as connection:
        connection.execute(
            "create view public.second as select 'none'::text collate \"C\" as name; "
            "create view public.first as select name from tsql.objects; "
            "create or replace view public.second as select name from public.first; "
            "grant select on public.second to pg_monitor; comment on view public.second is 'told'; "
            "create materialized view public.kept as select name, current_user::text as filler from tsql.objects; "
            "create index of_kept on public.kept (name); comment on materialized view public.kept is 'told, too'; "
            "create view public.served as select name from sys.services; "
            f"create role {keeper} superuser; alter materialized view public.kept owner to {keeper}"  # type: ignore[arg-type]
        )
    known = migrations.migrations()
    later = migrations.Migration(9001, "later.sql", "drop view sys.services cascade")
    monkeypatch.setattr(migrations, "migrations", lambda: [*known, later])
    sb.open(url, upkeep=None).close()
    with psycopg.connect(url) as connection:
        (kept,) = connection.execute(
            "select (select count(*) > 0 from public.kept), to_regclass('public.of_kept') is not null, "
            "obj_description('public.kept'::regclass), (select count(*) > 0 from public.served), "
            "(select min(filler) from public.kept)"
        ).fetchall()
        (found,) = connection.execute(
            "select count(*) > 0, has_table_privilege('pg_monitor', 'public.second', 'select'), "
            "obj_description('public.second'::regclass) from public.second"
        ).fetchall()
        connection.execute(f"drop owned by {keeper}; drop role {keeper}")  # type: ignore[arg-type]
    assert kept == (True, True, "told, too", True, keeper)
    assert found == (True, True, "told")


def test_a_catalog_view_changes_its_columns_in_an_upgrade(make_instance_url: Callable[[], str]) -> None:
    """The upgrade adds columns before the last one. Grants of the view, and the views that read it, stay."""
    url = make_instance_url()
    new = entries(url)
    with psycopg.connect(url) as connection:
        connection.execute(
            "drop view sys.service_contracts cascade; "
            "create view sys.service_contracts as select null::text as name, null::text as broker_database; "
            "grant select on sys.service_contracts, sys.services to pg_monitor with grant option; "
            "create view public.contracts as select name from sys.service_contracts; "
            "grant select on public.contracts to pg_monitor; "
            "delete from servicebroker.migrations where number = 496"
        )
    sb.open(url, upkeep=None).close()
    with psycopg.connect(url) as connection:
        (found,) = connection.execute(
            "select count(*) > 0, has_table_privilege('pg_monitor', 'public.contracts', 'select'), "
            "has_table_privilege('pg_monitor', 'sys.service_contracts', 'select with grant option'), "
            "has_table_privilege('pg_monitor', 'sys.services', 'select with grant option') from public.contracts"
        ).fetchall()
        assert found == (True, True, True, True)
        connection.execute("revoke all on sys.service_contracts, sys.services from pg_monitor")
    assert entries(url) == new


@pytest.mark.parametrize("last", [7, BASELINE_NUMBER - 1])
def test_an_instance_from_before_the_baseline_is_left_alone(
    make_instance_url: Callable[[], str], make_url: Callable[[], str], tmp_path: Path, last: int
) -> None:
    """The refusal names the version that opens it. A copy of it is refused before anything is created."""
    url, file, place = make_instance_url(), tmp_path / "copy", make_url()
    applied = [(number,) for number in range(1, last + 1)]
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("delete from servicebroker.migrations")
        connection.cursor().executemany("insert into servicebroker.migrations values (%s, 'of before')", applied)
        with pytest.raises(
            sb.InstanceError, match=f"number {last}, .* version whose schema is number {BASELINE_NUMBER}"
        ):
            sb.open(url)
        assert connection.execute("select number from servicebroker.migrations order by 1").fetchall() == applied
    dumped = CliRunner().invoke(command, ["instance", "dump", str(file), "--instance", url])
    assert dumped.exit_code == 0
    assert f"with a version whose schema is number {BASELINE_NUMBER}" in restore(file, place)
    with psycopg.connect(place) as connection:
        assert connection.execute("select to_regnamespace('servicebroker')").fetchall() == [(None,)]
