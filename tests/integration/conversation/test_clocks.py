"""A client with a wrong clock: lifetimes, timers and stored times use the server's clock."""

from __future__ import annotations

import threading
from collections.abc import Callable
from datetime import UTC, datetime, timedelta

import pytest
from typer.testing import CliRunner

import servicebroker as sb
import servicebroker.api.aio.instance
import servicebroker.api.instance
from servicebroker.cli.main import app as command
from support import ORDER, STOCK_QUEUE, begin, errors, eventually, query, standard_database

HOUR = timedelta(hours=1)


def doctor(url: str) -> str:
    return CliRunner().invoke(command, ["doctor", "--instance", url]).output


@pytest.fixture(params=[HOUR, -HOUR], ids=["ahead", "behind"])
def wrong(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> timedelta:
    """Set the clock of this process wrong. The value is the difference to the server's clock."""
    for module in (servicebroker.api.instance, servicebroker.api.aio.instance):
        monkeypatch.setattr(module, "system_time", lambda: datetime.now(UTC) + request.param)
    off: timedelta = request.param
    return off


def test_a_wrong_clock_ends_no_conversation_and_fires_no_timer(
    make_instance_url: Callable[..., str], wrong: timedelta, caplog: pytest.LogCaptureFixture
) -> None:
    with sb.open(make_instance_url(1), upkeep=0.05) as instance:
        database = standard_database(instance)
        handle = begin(database, lifetime=1200)
        database.begin_conversation_timer(handle, 600)
        database.send(handle, ORDER, b"x")
        text = (
            "select lifetime - now(), dialog_timer - now() from servicebroker.conversation_endpoints where is_initiator"
        )
        ((life, timer),) = query(database, text)
        assert 1190 < life.total_seconds() <= 1200
        assert 590 < timer.total_seconds() <= 600
        messages = database.receive(STOCK_QUEUE, wait=5)
        assert errors(messages) == []
        assert [message.message_body for message in messages] == [b"x"]
        assert database.receive("OrdersQueue") == []
        assert abs(instance.clock() - datetime.now(UTC)) < timedelta(seconds=5)
        eventually(lambda: "The clock of servicebroker maintenance there is 3,600 s" in doctor(instance.url))
    assert "The clock of this machine is 3,600 s" in caplog.text


def test_doctor_reports_the_clock_of_a_busy_application(
    make_instance_url: Callable[..., str], wrong: timedelta
) -> None:
    """RECEIVE measures the clock too, so the background work never does. doctor must see that measurement."""
    over = threading.Event()
    with sb.open(make_instance_url(1)) as instance:
        database = standard_database(instance)

        def work() -> None:
            while not over.is_set():
                database.receive(STOCK_QUEUE)

        working = threading.Thread(target=work)
        working.start()
        try:
            eventually(lambda: "there is 3,600 s" in doctor(instance.url))
        finally:
            over.set()
            working.join()


def test_a_lifetime_ends_by_the_servers_clock(make_instance_url: Callable[..., str], wrong: timedelta) -> None:
    with sb.open(make_instance_url(1), upkeep=None) as instance:
        database = standard_database(instance)
        handle = begin(database, lifetime=1200)
        with instance.connection() as connection:
            connection.execute("update servicebroker.conversation_endpoints set lifetime = now() - interval '1 s'")
        assert errors(database.receive("OrdersQueue")) == [-8489]
        with pytest.raises(sb.BrokerError) as error:
            database.send(handle, ORDER, b"x")
        assert error.value.number == 8429


def test_a_clock_that_fails_once_does_not_stop_upkeep(
    make_instance_url: Callable[..., str], caplog: pytest.LogCaptureFixture
) -> None:
    """Timers fire although the clock raises an error once."""
    failures = iter([OSError("no time")])

    def now() -> datetime:
        if "maintenance" in threading.current_thread().name:
            for failure in failures:
                raise failure
        return datetime.now(UTC)

    with sb.open(make_instance_url(1), clock=now, upkeep=0.05) as instance:
        eventually(lambda: "background maintenance restarts: OSError: no time" in caplog.text)
        database = standard_database(instance)
        database.begin_conversation_timer(begin(database), 1)
        text = "select from servicebroker.conversation_endpoints where dialog_timer is not null"
        eventually(lambda: not query(database, text), 20)
