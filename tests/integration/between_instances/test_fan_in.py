"""Three instances send to a fourth one. Each has a daemon process."""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from uuid import UUID

import pytest

from servicebroker_lab import benchmarks
from servicebroker_lab.benchmarks import remote
from servicebroker_lab.benchmarks.remote import (
    CONVERSATION_COUNT,
    ORDER,
    QUEUE,
    SOURCE_COUNT,
    UNUSED_DIALOGS,
    LinkedInstances,
)
from support import eventually, query

pytestmark = pytest.mark.feature(210)


@pytest.fixture(scope="module")
def linked() -> Iterator[LinkedInstances]:
    with tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o711)  # a server that root starts runs as another user, who needs access to the folder
        with closing(LinkedInstances(Path(folder) / "all", is_secured=False, sources=SOURCE_COUNT)) as linked:
            yield linked


def test_messages_of_three_instances_arrive_once_and_in_order(linked: LinkedInstances) -> None:
    sent = []
    for source, (service, database) in enumerate(linked.sources.items()):
        for number, handle in enumerate(linked.handles[service]):
            bodies = [f"{source} {number} {message}".encode() for message in range(40)]
            sent.append(bodies)
            for first in range(0, len(bodies), 10):
                database.send_batch(handle, ORDER, bodies[first : first + 10])
    arrived: defaultdict[UUID, list[bytes | None]] = defaultdict(list)
    while sum(map(len, arrived.values())) < sum(map(len, sent)):
        messages = linked.east.receive(QUEUE, wait=60)
        assert messages, "a message is lost"
        for message in messages:
            arrived[message.conversation_handle].append(message.message_body)
    assert sorted(arrived.values()) == sorted(sent)  # type: ignore[type-var]
    for database in linked.sources.values():
        eventually(lambda database=database: query(database, "select from sys.transmission_queue") == [])
    assert linked.east.receive(QUEUE) == []  # all are acknowledged, so no duplicate follows


def test_every_150th_dialog_has_its_own_page(linked: LinkedInstances) -> None:
    service, database = next(iter(linked.sources.items()))

    def pages(handles: list[UUID]) -> int:
        text = (
            "select count(distinct (ctid::text::point)[0]) from servicebroker.conversation_endpoints "
            "where conversation_handle = any (%s)"
        )
        return int(query(database, text, handles)[0][0])  # type: ignore[arg-type]

    assert pages(linked.begin(service, 10, UNUSED_DIALOGS)) == 10
    assert pages(linked.begin(service, 10)) < 5  # neighbours share pages


@pytest.mark.full
def test_large_transactions_are_faster_than_small_ones(
    linked: LinkedInstances, record_property: Callable[[str, object], None]
) -> None:
    """With a hundredth of the commits it is some ten times as fast on an idle machine."""

    def rate(messages: int, batch: int) -> float:
        start = time.perf_counter()
        assert linked.send_and_receive(messages, batch) == messages
        return messages / (time.perf_counter() - start)

    many = CONVERSATION_COUNT * SOURCE_COUNT
    single, batched = (max(rate(*order) for _ in range(3)) for order in ((10 * many, 1), (100 * many, 100)))
    record_property("rates", f"{single:,.0f} messages/s one by one, {batched:,.0f} in hundreds")
    assert batched > 1.5 * single


@pytest.mark.full
@pytest.mark.slow
def test_the_benchmark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(remote, "SOURCE_COUNT", 2)
    monkeypatch.setattr(remote, "UNUSED_DIALOGS", 3)
    lines = benchmarks.run(["remote-fan-in"], scale=0.02, rounds=1).lines
    assert [(line.system, line.label) for line in lines] == [
        ("servicebroker", "TLS and dialog security"),
        ("baseline", "encryption off"),
        ("baseline", "TLS and dialog security, one of 3 dialogs used"),
    ]
    assert all(line.figures is not None and line.figures.per_second > 0 for line in lines)
    assert all(line.settings.startswith("8 senders; all daemons: ") for line in lines)
