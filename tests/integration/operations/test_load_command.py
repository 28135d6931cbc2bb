"""`servicebroker load`: its measurements, its cleanup, and its refusal of a database that others may use."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

import servicebroker as sb
from forked import run_command
from servicebroker.cli.commands.load import DATABASE, percentile


def test_all_that_was_sent_is_received_and_the_database_is_gone(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url()
    result = run_command("load", "--instance", url, "--seconds", "0.5", "--senders", "2", "--batch", "10", "--json")
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert document["sent"] == document["received"] > 0
    assert 0 < document["latency_p50_ms"] <= document["latency_p99_ms"]
    with sb.open(url) as instance, pytest.raises(sb.BrokerError, match=DATABASE):
        instance.database(DATABASE)


def test_a_database_of_that_name_is_left_alone(make_instance_url: Callable[..., str]) -> None:
    url = make_instance_url()
    with sb.open(url) as instance:
        instance.database(DATABASE, create=True)
    result = run_command("load", "--instance", url, "--seconds", "0.1")
    assert result.returncode == 1
    assert f"The broker database {DATABASE} exists" in result.stderr
    with sb.open(url) as instance:
        assert instance.database(DATABASE).name == DATABASE


@pytest.mark.parametrize(("share", "value"), [(0.0, 1.0), (0.5, 3.0), (0.99, 4.0)])
def test_percentiles(share: float, value: float) -> None:
    assert percentile([1.0, 2.0, 3.0, 4.0], share) == value
    assert percentile([], share) == 0.0
