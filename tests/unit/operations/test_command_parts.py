"""Parts of commands, each alone: child processes, texts for a terminal, choices of dead letters, times."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import typer

from servicebroker.cli import output, programs
from servicebroker.cli.amounts import read_amounts
from servicebroker.cli.commands import dead_letters, messages
from servicebroker.cli.log import Kind, _host, _kind, _source
from servicebroker.cli.people_file import People, Role, add, remove
from servicebroker.cli.printable_text import printable, shown_body
from servicebroker.cli.programs import POLL_S, RETRY_PAUSE_S, ProcessGroup, end
from servicebroker.model.errors import InstanceError

# ---------------------------------------------------------------- child processes


class Process:
    """A child process that ends when a test says so."""

    def __init__(self, number: int) -> None:
        self.pid, self.returncode = number, None
        self.signals: list[str] = []

    def poll(self) -> int | None:
        return self.returncode

    def terminate(self) -> None:
        self.signals.append("terminate")

    def wait(self) -> None:
        self.returncode = -9  # type: ignore[assignment]


class Starts:
    """A stand-in for subprocess and the clock."""

    def __init__(self) -> None:
        self.now, self.fails, self.processes = 100.0, False, list[Process]()
        self.killed: list[int] = []

    def monotonic(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.now += seconds

    def __call__(self, command: Any, *, env: Any, start_new_session: bool) -> Process:
        assert start_new_session
        assert env["OWN"] == "1"
        if self.fails:
            raise OSError("no such program")
        self.processes.append(Process(len(self.processes)))
        return self.processes[-1]


@pytest.fixture
def starts(monkeypatch: pytest.MonkeyPatch) -> Starts:
    made = Starts()
    monkeypatch.setattr(programs.subprocess, "Popen", made)
    monkeypatch.setattr(programs, "time", made)
    monkeypatch.setattr(programs, "_watcher", SimpleNamespace(environment=dict))
    monkeypatch.setattr(programs.os, "killpg", lambda pid, signal: made.killed.append(pid))
    return made


def group_of(minimum: int, maximum: int) -> ProcessGroup:
    return ProcessGroup("p", ["program"], {"OWN": "1"}, minimum, maximum)


def test_a_program_has_its_least_and_its_most_processes(starts: Starts) -> None:
    group = group_of(1, 3)
    group.update()
    assert (group.count, group.to_start) == (1, 0)
    for _ in range(5):
        group.request_one()
    assert group.to_start == 2
    group.update()
    assert group.count == 3


@pytest.mark.parametrize(("code", "pause_s"), [(1, RETRY_PAUSE_S), (-9, RETRY_PAUSE_S), (0, POLL_S)])
def test_a_process_that_ended_is_replaced_after_a_pause(starts: Starts, code: int, pause_s: float) -> None:
    group = group_of(1, 3)
    group.update()
    starts.processes[0].returncode = code  # type: ignore[assignment]
    group.update()
    starts.now += pause_s - 0.01
    group.update()
    assert group.count == 0
    starts.now += 0.01
    group.update()
    assert (group.count, len(starts.processes)) == (1, 2)


def test_a_process_beyond_the_least_is_replaced_only_after_a_failure(starts: Starts) -> None:
    group = group_of(0, 2)
    for code, count in ((0, 0), (3, 1)):
        group.request_one()
        group.update()
        starts.processes[-1].returncode = code  # type: ignore[assignment]
        group.update()
        starts.now += RETRY_PAUSE_S
        group.update()
        assert group.count == count


def test_a_process_that_ended_well_shortens_no_pause_after_a_failure(starts: Starts) -> None:
    group = group_of(2, 2)
    group.update()
    for process, code in zip(starts.processes, (1, 0), strict=True):
        process.returncode = code  # type: ignore[assignment]
    group.update()
    starts.now += RETRY_PAUSE_S - 0.01
    group.update()
    assert group.count == 0
    starts.now += 0.01
    group.update()
    assert group.count == 2


def test_a_program_that_cannot_be_started_is_tried_again(starts: Starts) -> None:
    starts.fails = True
    group = group_of(1, 1)
    group.update()
    assert (group.count, group.to_start) == (0, 1)
    starts.fails = False
    group.update()
    assert group.count == 0
    starts.now += RETRY_PAUSE_S
    group.update()
    assert (group.count, group.to_start) == (1, 0)


@pytest.mark.parametrize("must_kill", [False, True])
def test_processes_that_do_not_end_in_time_are_killed(starts: Starts, must_kill: bool) -> None:
    group = group_of(2, 2)
    group.update()
    starts.processes[0].returncode = 0  # type: ignore[assignment]
    began = starts.now
    end([group], 3.0, lambda: must_kill)
    assert starts.now - began == pytest.approx(0.0 if must_kill else 3.0, abs=0.1)
    assert starts.killed == [1]
    assert [process.signals for process in starts.processes] == [["terminate"]] * 2
    end([group], 3.0, lambda: False)
    assert starts.killed == [1]  # all have ended


# ---------------------------------------------------------------- texts


@pytest.mark.parametrize(
    ("validation", "body", "text"),
    [
        ("N", None, "Empty message."),
        ("E", b"x", "Empty message."),
        ("N", "grüß\n\tdich".encode(), "grüß\n\tdich"),
        ("N", b"a\x1b[2J", "No validation -- binary message:\n611b5b324a\na\ufffd[2J"),
        ("N", b"\xff\x00", "No validation -- binary message:\nff00\n.\ufffd"),
        ("X", "<a>é</a>".encode("utf-16"), "<a>é</a>"),
        ("X", "<a>é</a>".encode("utf-16-le"), "<a>é</a>"),
        ("X", b"\xef\xbb\xbf<a>\xc3\xa9</a>", "<a>é</a>"),
        ("X", b"<a>\x1b</a>", "<a>\ufffd</a>"),
    ],
)
def test_a_body_is_shown_without_control_characters(validation: str, body: bytes | None, text: str) -> None:
    assert shown_body(validation, body) == text


@pytest.mark.parametrize("length", [4000, 4001])
def test_a_long_text_says_that_it_is_cut(length: int) -> None:
    assert printable("x" * length) == "x" * 4000 + (" ... (4,001 characters)" if length > 4000 else "")


@pytest.fixture
def hides_secret() -> Iterator[None]:
    output.mask_with(lambda text: text.replace("secret", "***"))
    yield
    output.mask_with(output._unmasked)


@pytest.mark.usefixtures("hides_secret")
def test_secrets_are_in_no_output(capsys: pytest.CaptureFixture[str]) -> None:
    output.say("a secret", error=True)
    output.say("a secret", "b secret")
    output.say_block("a\nsecret")
    output.say_json({"a": "secret", "b": ["secret", ("secret", {"c": "secret"})], "d": 5})
    shown = capsys.readouterr()
    assert "secret" not in shown.out + shown.err
    assert (shown.out + shown.err).count("***") == 8
    assert json.loads(shown.out.splitlines()[-1])["d"] == 5


def test_lines_of_others_do_not_look_like_lines_of_the_command() -> None:
    assert output.line("a\nb\r\x1b[1m\u2028c") == "a\ufffdb\ufffd\ufffd[1m\ufffdc"
    assert output.block("a\nb\r\nc\td\x07") == "a\n  b\n  c\td\ufffd"
    assert output.block("a\nb", hanging="") == "a\nb"


@pytest.mark.parametrize(
    ("peer", "host"),
    [
        ("tcp://10.0.0.1:4022", "tcp://10.0.0.1"),
        ("10.0.0.1:", "10.0.0.1"),
        ("tcp://[2001:db8::5]:4022", "tcp://[2001:db8::]"),
        ("tcp://[2001:db8:0:1::5]:4022", "tcp://[2001:db8:0:1::]"),
        ("host.example:4022", "host.example"),
        ("", ""),
    ],
)
def test_a_line_is_of_the_host_of_its_peer(peer: str, host: str) -> None:
    assert _host(peer) == host


@pytest.mark.parametrize(
    ("name", "fields", "kind", "source"),
    [
        ("asyncio", None, Kind("asyncio", "text", ""), "asyncio"),
        ("uvicorn.error", None, Kind("uvicorn.error", "text", ""), "uvicorn.error"),
        ("servicebroker.broker", {"event": "E", "peer": "h:1"}, Kind("E", "", "h"), "h"),
        ("servicebroker.broker", {"event": "E", "peer": "h:1", "peer_owner": "o"}, Kind("E", "", "h"), "o"),
        ("servicebroker.tds", {"event": "E", "subclass": "S", "peer": "h:"}, Kind("E", "S", "h"), "h"),
        ("servicebroker.broker", {"event": "E"}, Kind("E", "", ""), ""),
        ("servicebroker.broker", None, None, None),
        ("servicebroker.worker", {"event": "E", "peer": "h:1"}, None, None),
    ],
)
def test_only_lines_that_peers_cause_are_limited(name: str, fields: Any, kind: Any, source: Any) -> None:
    record: Any = SimpleNamespace(name=name, **({} if fields is None else {"fields": fields}))
    found = _kind(record, "text\nmore")
    assert found == kind
    if found is not None:
        assert _source(record, found) == source


# ---------------------------------------------------------------- choices


@pytest.mark.parametrize(
    ("numbers", "every", "queue", "message_type", "error", "is_right"),
    [
        ([1], False, None, None, None, True),
        (None, True, None, None, None, True),
        (None, False, "Q", None, None, True),
        (None, False, None, "T", None, True),
        (None, False, None, None, "E", True),
        (None, False, None, None, None, False),
        ([], False, None, None, None, False),
        ([1], True, None, None, None, False),
        ([1], False, "Q", None, None, False),
        ([1], False, None, "T", None, False),
        ([1], False, None, None, "E", False),
        (None, True, None, None, "", False),
    ],
)
def test_dead_letters_are_chosen_by_numbers_or_by_a_filter(
    numbers: Any, every: bool, queue: Any, message_type: Any, error: Any, is_right: bool
) -> None:
    try:
        dead_letters._check_choice(numbers, every, queue, message_type, error)
    except typer.BadParameter:
        assert not is_right
    else:
        assert is_right


def test_all_pages_of_dead_letters_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dead_letters, "PAGE_SIZE", 2)
    numbers = [3, 5, 8, 9, 12]
    asked: list[int] = []

    def set_aside_messages(queue: Any = None, *, after: int, limit: int, **choice: Any) -> list[Any]:
        asked.append(after)
        return [SimpleNamespace(set_aside_id=number) for number in numbers if number > after][:limit]

    database: Any = SimpleNamespace(set_aside_messages=set_aside_messages)
    assert dead_letters._matching_numbers(database, None, "Q", None, None) == numbers
    assert asked == [0, 5, 9, 12]
    assert dead_letters._matching_numbers(database, [7], None, None, None) == [7]
    assert dead_letters._find(database, 8).set_aside_id == 8
    for missing in (7, 13):
        with pytest.raises(dead_letters.ServiceBrokerError):
            dead_letters._find(database, missing)


@pytest.mark.parametrize(
    ("editor", "result"),
    [
        ("sh -c 'printf other > \"$0\"'", b"other"),
        ("true", None),
        ('sh -c \'printf "body\\n" > "$0"\'', None),  # a final line end is no change
        ("false", None),
    ],
)
def test_an_edit_without_a_change_replays_nothing(
    monkeypatch: pytest.MonkeyPatch, editor: str, result: bytes | None
) -> None:
    monkeypatch.delenv("VISUAL", raising=False)
    monkeypatch.setenv("EDITOR", editor)
    if result is None:
        with pytest.raises(InstanceError, match="nothing is replayed"):
            dead_letters._edited(b"body")
    else:
        assert dead_letters._edited(b"body") == result
    with pytest.raises(InstanceError, match="not UTF-8 text"):
        dead_letters._edited(b"\xff")


@pytest.mark.parametrize(
    ("text", "time"),
    [
        (None, None),
        ("2030-01-31T09:00+01:00", datetime(2030, 1, 31, 8, tzinfo=UTC)),
        ("2030-01-31T09:00Z", datetime(2030, 1, 31, 9, tzinfo=UTC)),
        ("2030-01-31T09:00", ValueError),
        ("soon", ValueError),
    ],
)
def test_a_time_has_a_zone(text: str | None, time: Any) -> None:
    if time is ValueError:
        with pytest.raises(typer.BadParameter):
            messages._time(text)
    else:
        assert messages._time(text) == time


@pytest.mark.parametrize(
    ("texts", "amounts"),
    [
        (["bytes=5", "rows=0"], {"bytes": 5, "rows": 0}), ([], {}), (["bytes=-1"], None), (["bytes="], None),
        (["bytes"], None), (["other=5"], None), (["bytes=1.5"], None), (["bytes=1e3"], None),
    ],
)  # fmt: skip
def test_amounts_of_a_budget(texts: list[str], amounts: dict[str, int] | None) -> None:
    if amounts is None:
        with pytest.raises(typer.BadParameter):
            read_amounts(texts, ["bytes", "rows"])
    else:
        assert read_amounts(texts, ["bytes", "rows"]) == amounts


# ---------------------------------------------------------------- people


def test_a_changed_file_of_people_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "people"
    assert add(file, "ann", Role.ACT, "a long secret")
    assert not add(file, "ann", Role.SEE, "another secret")
    assert add(file, "bob", Role.SEE, None)
    people = People(file)
    assert file.stat().st_mode & 0o777 == 0o600
    for name, password, is_right in (
        ("ann", "another secret", True), ("ann", "a long secret", False), ("ann", "", False), ("bob", "", False),
        ("carl", "another secret", False),
    ):  # fmt: skip
        assert (people.authenticate(name, password) is not None) == is_right
    remove(file, "ann")
    assert people.find("ann") is None
    assert list(tmp_path.iterdir()) == [file]
    file.chmod(0o640)
    file.write_text("bob:act:\n")
    with pytest.raises(InstanceError, match="Other users"):
        people.find("bob")


@pytest.mark.parametrize("length", [9, 10, 1000, 1001])
def test_a_password_has_10_to_1000_characters(tmp_path: Path, length: int) -> None:
    file = tmp_path / "people"
    if 10 <= length <= 1000:
        assert add(file, "x" * 128, Role.SEE, "p" * length)
    else:
        with pytest.raises(InstanceError, match="10 to 1000"):
            add(file, "ann", Role.SEE, "p" * length)
        assert not file.exists()
