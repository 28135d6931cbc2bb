"""The HTTP server of metrics and health, under held connections and constant requests of strangers."""

from __future__ import annotations

import socket
import struct
import threading
import urllib.request
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing
from urllib.error import HTTPError

import prometheus_client
import pytest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from servicebroker.cli import http_server
from servicebroker.cli.http_server import serve_wsgi
from support import eventually


class SlowMetric(Collector):
    """A metric whose lookup lasts until `is_held` is cleared."""

    def __init__(self) -> None:
        self.is_held = threading.Event()
        self.is_held.set()
        self.asked = 0

    def collect(self) -> Iterator[Metric]:
        self.asked += 1
        self.is_held.wait(20)
        yield GaugeMetricFamily("up", "1", value=1)


@pytest.fixture
def slow_metric() -> SlowMetric:
    return SlowMetric()


@pytest.fixture
def port(slow_metric: SlowMetric) -> Iterator[int]:
    registry = prometheus_client.CollectorRegistry()
    registry.register(slow_metric)
    slow_metric.asked = 0
    with serve_wsgi(prometheus_client.make_wsgi_app(registry), "127.0.0.1", 0) as found:
        yield found
        slow_metric.is_held.set()


def ask(port: int) -> int:
    """Send a request and return the HTTP status."""
    try:
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/metrics", timeout=20) as answer:
            assert b"up 1.0" in answer.read()
            return int(answer.status)
    except HTTPError as error:
        error.close()
        return error.code


def threads(before: int) -> Callable[[], bool]:
    return lambda: threading.active_count() - before <= http_server.UNFINISHED.of_network


@pytest.mark.parametrize("expected_text", [b"", b"GET /metrics HTTP/1.1\r\nx: "], ids=["nothing", "half a request"])
def test_silent_connections_use_few_threads_and_block_no_client(port: int, expected_text: bytes) -> None:
    before = threading.active_count()
    with ExitStack() as stack:
        for _ in range(200):
            stack.enter_context(closing(socket.create_connection(("127.0.0.1", port), 5))).sendall(expected_text)
        eventually(threads(before))
        assert ask(port) == 200
    eventually(lambda: threading.active_count() == before)


def test_as_many_requests_are_answered_at_a_time_as_may_be(port: int, slow_metric: SlowMetric) -> None:
    slow_metric.is_held.clear()
    with ThreadPoolExecutor(12) as asking:
        answers = [asking.submit(ask, port) for _ in range(12)]
        eventually(lambda: sum(answer.done() for answer in answers) == 12 - http_server.REQUESTS.of_network)
        assert slow_metric.asked == http_server.REQUESTS.of_network
        slow_metric.is_held.set()
        assert Counter(answer.result() for answer in answers) == {200: 4, 503: 8}
    assert ask(port) == 200


def test_a_reset_connection_writes_no_error(
    port: int, capsys: pytest.CaptureFixture[str], caplog: pytest.LogCaptureFixture
) -> None:
    before = threading.active_count()
    caplog.set_level("INFO")
    for _ in range(20):
        with closing(socket.create_connection(("127.0.0.1", port), 5)) as connected:
            connected.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))  # close() sends a reset
            connected.sendall(b"GET /metrics HTTP/1.1\r\n")
    eventually(lambda: threading.active_count() == before)
    assert ask(port) == 200
    assert capsys.readouterr().err == ""
    assert {record.getMessage() for record in caplog.records} <= {"A scrape from 127.0.0.1 has failed."}
