"""`servicebroker route ...`, in this process."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner, Result

import servicebroker as sb
from servicebroker.cli.main import app
from support import ORDER, ORDERS, STOCK, STOCK_QUEUE, begin, bodies, query, refused

NOWHERE = "//test/Nowhere"


@pytest.fixture
def url(instance: sb.Instance, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setenv("SERVICEBROKER_INSTANCE", instance.url)
    monkeypatch.setenv("COLUMNS", "250")
    return instance.url


def route(*arguments: str) -> Result:
    return CliRunner().invoke(app, ["route", *arguments])


def output_of(*arguments: str) -> str:
    done = route(*arguments)
    assert done.exit_code == 0, done.exception or done.output
    return done.output


@pytest.mark.usefixtures("url")
def test_routes_are_created_shown_altered_and_dropped(database: sb.Database) -> None:
    name = database.name
    to = ("--database", name)
    assert f"Route Far of database {name} is created." in output_of(
        "create", "Far", *to, "--service", NOWHERE, "--address", "TCP://far:4022", "--lifetime", "60"
    )
    assert "(expired)" not in output_of("list", *to)
    database.create_route("Old", address="LOCAL", lifetime=1)
    query(database, "update servicebroker.routes set lifetime = '2020-01-01' where name = 'Old' returning 1")
    assert "UTC (expired)" in output_of("list", *to)
    output_of("drop", "Old", *to)
    assert json.loads(output_of("alter", "far", *to, "--address", "TCP://farther:4022", "--json"))["done"] == "altered"
    routes = {row["name"]: row for row in json.loads(output_of("list", *to, "--json"))["routes"]}
    assert set(routes) == {"AutoCreatedLocal", "Far"}
    assert (routes["Far"]["address"], routes["Far"]["remote_service_name"]) == ("TCP://farther:4022", NOWHERE)
    assert {row["broker_database"] for row in json.loads(output_of("list", "--json"))["routes"]} >= {name, "msdb"}
    output_of("create", "Harbour", *to, "--service", NOWHERE, "--address", "TCP://far:4022")
    assert "Did you mean 'Harbour'?" in str(route("drop", "Harbor", *to).exception)
    output_of("drop", "Harbour", *to)
    output_of("drop", "Far", *to)
    assert [row["name"] for row in json.loads(output_of("list", *to, "--json"))["routes"]] == ["AutoCreatedLocal"]
    output_of("drop", "AutoCreatedLocal", *to)
    assert "No routes: no message can be delivered." in output_of("list", *to)


@pytest.mark.usefixtures("url")
def test_route_create_delivers_waiting_messages(database: sb.Database) -> None:
    database.drop_route("AutoCreatedLocal")
    database.send(begin(database), ORDER, b"1")
    output_of("create", "Here", "--database", database.name, "--address", "LOCAL")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1"]


@pytest.mark.usefixtures("url")
def test_a_refusal_has_its_number(database: sb.Database) -> None:
    done = route("create", "r", "--database", database.name, "--address", "somewhere")
    assert isinstance(done.exception, sb.BrokerError)
    assert done.exception.number == 9744


@pytest.mark.usefixtures("url")
def test_route_explain_shows_the_destination(database: sb.Database) -> None:
    name = database.name
    here = output_of("explain", "--from-database", name, "--service", STOCK)
    assert "Chosen is AutoCreatedLocal" in here
    assert f"It is delivered in this instance, to database {name}." in here
    database.create_route("Far", service_name=STOCK, address="TCP://far:4022")
    assert "It is sent to TCP://far:4022." in output_of("explain", "--from-database", name, "--service", STOCK)
    document = json.loads(output_of("explain", "--from-database", name, "--service", STOCK, "--json"))
    (decision,) = document["decisions"]
    assert (decision["rule"], decision["chosen"], decision["address"]) == ("SERVICE", "Far", "TCP://far:4022")
    assert "Dropped" in output_of("explain", "--from-outside", "--service", NOWHERE, "--json")
    done = route("explain", "--from-database", name, "--service", STOCK, "--broker-instance", "nobody")
    assert isinstance(done.exception, sb.BrokerError)
    assert done.exception.number == 1093
    assert route("explain", "--service", STOCK).exit_code == 2


@pytest.mark.usefixtures("url")
def test_the_explanation_agrees_with_a_send(database: sb.Database) -> None:
    """Compare the explanation for a service with the status of a SEND to it."""
    explained = database.explain_route(NOWHERE)
    handle = database.begin_dialog(ORDERS, NOWHERE)
    database.send(handle, body=b"1")
    (status,) = query(
        database, "select transmission_status from sys.transmission_queue where broker_database = %s", database.name
    )
    destination = explained.decisions[0].destination
    assert f"{destination!r}" == "Delayed(number=9796)"
    assert "matched a LOCAL route" in status[0]


def test_a_dropped_database_has_no_routes(instance: sb.Instance) -> None:
    database = instance.database("gone", create=True)
    instance.drop_database("gone")
    with refused(8442):
        database.explain_route(STOCK)
