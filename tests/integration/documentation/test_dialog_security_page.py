"""The commands of the how-to 'Dialog security' run as printed between two daemons."""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import servicebroker as sb
from daemons import Site
from forked import run_command
from support import eventually, query

PAGE = Path(__file__).parents[3] / "docs/how-to/dialog-security.md"
SERVICES = {"shop": "//example/Shop", "warehouse": "//example/Warehouse"}


@pytest.fixture
def sites(make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[dict[str, Site]]:
    both = {name: Site(name, make_instance_url(), tmp_path) for name in SERVICES}
    yield both
    for site in both.values():
        site.close()


def define(site: Site, other: Site) -> sb.Database:
    database = site.instance.database(site.name.title(), create=True)
    database.create_message_type("//example/Order")
    database.create_contract("//example/Ordering", {"//example/Order": "INITIATOR"})
    database.create_queue("Inbox")
    database.create_service(SERVICES[site.name], "Inbox", ["//example/Ordering"])
    database.create_route("There", service_name=SERVICES[other.name], address=other.address)
    site.endpoint(encryption="DISABLED")
    return database


@pytest.mark.feature(158, 163)
def test_the_page(sites: dict[str, Site], tmp_path: Path) -> None:
    shop, warehouse = sites.values()
    databases = {"shop": define(shop, warehouse), "warehouse": define(warehouse, shop)}
    for console in re.findall(r"```console\n(.*?)```", PAGE.read_text(), flags=re.DOTALL):
        for line in console.splitlines():
            where, _, command = line.partition("$ servicebroker ")
            site = sites[where]
            result = run_command(
                *shlex.split(command),
                cwd=tmp_path,
                env=os.environ
                | {
                    "SERVICEBROKER_INSTANCE": site.url,
                    "SERVICEBROKER_KEYS": str(site.keys),
                    "SERVICEBROKER_MASTER_KEY_PASSWORD": "correct horse",
                },
            )
            assert result.returncode == 0, (line, result.stderr)
    for site in sites.values():
        site.serve()
    (program,) = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    exec(program, {"shop": databases["shop"]})
    (message,) = databases["warehouse"].receive("Inbox", wait=30)
    assert message.message_body == b"a teapot"
    names = (
        "select p.name from sys.conversation_endpoints e join sys.database_principals p "
        "on p.broker_database = e.broker_database and p.principal_id = e.far_principal_id"
    )
    assert query(databases["warehouse"], names) == [("Shop",)]
    eventually(lambda: not query(databases["shop"], "select from sys.transmission_queue"))


def test_a_certificate_needs_a_master_key(sites: dict[str, Site]) -> None:
    shop = sites["shop"]
    environment = os.environ | {"SERVICEBROKER_INSTANCE": shop.url, "SERVICEBROKER_KEYS": str(shop.keys)}
    result = run_command("certificate", "create", "x", "--database", "Test", env=environment)
    assert result.returncode == 1
    assert "15581" in result.stderr
    assert "servicebroker certificate master-key --database Test" in result.stderr
