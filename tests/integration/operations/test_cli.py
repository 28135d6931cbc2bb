"""The command line, as used by scripts and by people."""

import json
import os
import subprocess
import sys
from pathlib import Path

import servicebroker as sb


def servicebroker(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "servicebroker.cli.main", *arguments],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env=os.environ | {"COLUMNS": "200"} | environment,
    )


def test_init_makes_an_instance_once_and_status_shows_its_queues(tmp_path: Path) -> None:
    folder = str(tmp_path / "data")
    for _ in range(2):
        result = servicebroker("init", "--instance", folder, "--database", "Shop", "--json")
        assert result.returncode == 0, result.stderr
        assert json.loads(result.stdout)["database"] == "Shop"
    with sb.open(folder) as instance:
        db = instance.database("shop")
        db.create_queue("StockQueue")
        db.create_service("//stock", "StockQueue", [sb.DEFAULT])
        db.create_queue("OrderQueue")
        db.create_service("//orders", "OrderQueue")
        db.send(db.begin_dialog("//orders", "//stock"), body=b"x")
        db.send(db.begin_dialog("//orders", "//nobody"), body=b"y")
        shown = servicebroker("status", SERVICEBROKER_INSTANCE=folder)
        document = json.loads(servicebroker("status", "--json", SERVICEBROKER_INSTANCE=folder).stdout)
    assert "Shop.dbo.StockQueue" in shown.stdout.replace("\n", "")
    assert "no service by that name" in shown.stdout.replace("\n", " ")
    assert {queue["queue"]: queue["messages"] for queue in document["queues"]} == {
        "dbo.OrderQueue": 0,
        "dbo.StockQueue": 1,
    }
    assert document["transmission_queue"]["messages"] == 1


def test_status_makes_nothing(tmp_path: Path) -> None:
    result = servicebroker("status", "--instance", str(tmp_path))
    assert result.returncode == 1
    assert "no instance" in result.stderr
    assert list(tmp_path.iterdir()) == []


def test_an_unreachable_server_is_reported_in_one_sentence() -> None:
    result = servicebroker("status", "--instance", "postgresql://127.0.0.1:1/none")
    assert result.returncode == 1
    assert result.stderr.startswith("servicebroker: Cannot connect to PostgreSQL")
    assert result.stderr.count("\n") == 1


def test_wrong_usage_is_exit_code_2() -> None:
    assert servicebroker("init", "--colour", "red").returncode == 2
    assert servicebroker("--version").stdout.startswith("servicebroker 0.")
