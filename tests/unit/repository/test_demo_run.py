"""The reports of the demo during a run. No Spark, no server."""

from collections.abc import Iterator
from typing import Any

import pytest

pytest.importorskip("pyspark")

from servicebroker.cli.commands.demo import run


class Sending:
    """A shipper of four lines whose conversations are closed at once."""

    sent = 0

    def ship(self, size: int) -> Iterator[int]:
        for offset in range(size):
            self.sent += 1
            yield offset

    def receive_answers(self) -> int:
        return 0

    def finish(self) -> None:
        pass

    def open_conversations(self) -> int:
        return 0


class Growing:
    """A table of ten rows that grows by one row per read."""

    is_ready = True
    count = 10

    def begin(self) -> None:
        pass

    def check(self) -> None:
        pass

    def rows(self) -> int:
        self.count += 1
        return self.count

    def first_rows(self, count: int) -> list[tuple[str, int, bytes]]:
        return [("h", 0, b"line")]


def test_the_first_rows_are_shown_while_lines_are_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "SENDING_POLL_S", 0.0)
    shipper: Any = Sending()
    table: Any = Growing()
    told: list[tuple[str, int]] = []
    reporter = run.Reporter(
        lambda sentence: None,
        lambda name, done, expected: told.append((name, done)),
        lambda rows: told.append(("first", shipper.sent)),
    )
    progress = run._TableProgress(table, 10, reporter)
    run._ship(shipper, 4, progress)
    assert [sent for name, sent in told if name == "first"] == [1]
    assert [done for name, done in told if name == "landed"] == [1, 2, 3, 4]
    monkeypatch.setattr(run, "SENDING_POLL_S", 60.0)
    told.clear()
    run._ship(shipper, 4, progress)
    assert {name for name, _ in told} == {"sent"}  # each read goes through the table's log
    run._drain(shipper, progress)
    assert told[-1] == ("landed", 5)
