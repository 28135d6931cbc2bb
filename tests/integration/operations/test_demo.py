"""The demo, run as its own process, as a person or a script would."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from deltalake import DeltaTable

import servicebroker as sb
from forked import run_command

COMMAND = [sys.executable, "-m", "servicebroker.cli.main", "demo"]

pytestmark = pytest.mark.spark


def demo(source: Path, out: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    return run_command("demo", "--input", source, "--out", out, "--json", timeout=180, env=os.environ | environment)


def summary_of(run: subprocess.CompletedProcess[str]) -> dict[str, Any]:
    assert run.returncode == 0, run.stderr
    summary: dict[str, Any] = json.loads(run.stdout)
    return summary


def rows(table: object) -> list[tuple[str, int, bytes]]:
    columns = ["conversation_handle", "message_sequence_number", "message_body"]
    found = DeltaTable(str(table)).to_pyarrow_table(columns=columns).to_pylist()
    return [tuple(row[column] for column in columns) for row in found]


def check_exactly(table: object, lines: list[bytes]) -> None:
    """Check that the table holds exactly these lines, each conversation in order and without a gap.

    A Delta table has no order among its files: the sequence number orders a conversation.
    """
    landed = sorted(rows(table))
    assert sorted(body for _, _, body in landed) == sorted(lines)
    conversations: dict[str, list[tuple[int, bytes]]] = defaultdict(list)
    for handle, number, body in landed:
        conversations[handle].append((number, body))
    place = {line: n for n, line in enumerate(lines)}  # the lines of the tests are distinct
    for messages in conversations.values():
        assert [number for number, _ in messages] == list(range(len(messages)))
        places = [place[body] for _, body in messages]
        assert places == sorted(places)


def check_closed(out: Path) -> None:
    """Check that every conversation has ended on both sides and that no message is left."""
    with sb.open(out / "instance") as instance:
        queues, waiting = instance.status()
        assert [queue.messages for queue in queues] == [0, 0]
        assert all(set(queue.conversations) <= {"CD"} for queue in queues)
        assert waiting.messages == 0


@pytest.mark.parametrize("changes", [False, pytest.param(True, marks=pytest.mark.full)])
def test_the_lines_of_a_file_land_once_also_when_it_grows_is_rewritten_or_ends_unfinished(
    tmp_path: Path, changes: bool
) -> None:
    """Each run starts Spark, so the short form has one run."""
    source, out = tmp_path / "input.log", tmp_path / "out"
    first = [b"line %d" % n for n in range(25_000)] + [b"", b"carriage return\r", b"\xff\x00 bytes"]
    source.write_bytes(b"\n".join([*first, b"unfinished"]))
    summary = summary_of(demo(source, out))
    assert (summary["lines"], summary["sent"], summary["landed"]) == (len(first),) * 3
    assert summary["conversations"] == summary["closed"]
    assert len(first) / summary["landed_per_second"] + summary["start_seconds"] < summary["seconds"]
    assert len(first) / summary["sent_per_second"] < summary["seconds"]
    check_exactly(summary["table"], first)
    check_closed(out)
    if not changes:
        return

    with source.open("ab") as file:
        file.write(b" and finished\nmore\n")
    summary = summary_of(demo(source, out))
    grown = [*first, b"unfinished and finished", b"more"]
    assert (summary["lines"], summary["sent"], summary["landed"]) == (len(grown), 2, 2)
    check_exactly(summary["table"], grown)

    source.write_bytes(b"new 1\nnew 2\n")
    summary = summary_of(demo(source, out))
    assert (summary["lines"], summary["sent"], summary["landed"]) == (2, 2, 2)
    check_exactly(summary["table"], [*grown, b"new 1", b"new 2"])
    check_closed(out)


@pytest.mark.full
def test_an_empty_file_makes_an_empty_table(tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    summary = summary_of(demo(tmp_path / "empty", tmp_path / "out"))
    assert (summary["lines"], summary["sent"], summary["landed"], summary["conversations"]) == (0, 0, 0, 0)
    assert rows(summary["table"]) == []


@pytest.mark.full
@pytest.mark.slow
def test_killed_five_times_at_random_it_loses_and_doubles_nothing(tmp_path: Path, seeded_random: random.Random) -> None:
    source, out = tmp_path / "input.log", tmp_path / "out"
    lines = [b"line %d" % n for n in range(120_000)]
    source.write_bytes(b"\n".join(lines) + b"\n")
    kills = 0
    while kills < 5:
        run = subprocess.Popen(
            [*COMMAND, "--input", str(source), "--out", str(out), "--json"],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        try:
            run.communicate(timeout=seeded_random.uniform(0.5, 12))
            with source.open("ab") as file:  # the run had already finished: give it more lines
                more = [b"more %d %d" % (kills, n) for n in range(60_000)]
                lines += more
                file.write(b"\n".join(more) + b"\n")
        except subprocess.TimeoutExpired:
            run.kill()
            run.communicate()
            kills += 1
    summary = summary_of(demo(source, out))
    assert summary["lines"] == len(lines)
    check_exactly(summary["table"], lines)
    check_closed(out)


@pytest.mark.full
def test_ctrl_c_says_so_and_the_next_run_goes_on(tmp_path: Path) -> None:
    source, out = tmp_path / "input.log", tmp_path / "out"
    lines = [b"line %d" % n for n in range(60_000)]
    source.write_bytes(b"\n".join(lines) + b"\n")
    run = subprocess.Popen(
        [*COMMAND, "--input", str(source), "--out", str(out)],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    while not (out / "instance" / "postgresql").exists():
        time.sleep(0.05)
    time.sleep(2)
    os.killpg(run.pid, signal.SIGINT)  # Ctrl-C as a terminal sends it
    _, errors = run.communicate(timeout=300)
    assert run.returncode == 130
    assert "Traceback" not in errors
    assert "Nothing is lost" in errors
    check_exactly(summary_of(demo(source, out))["table"], lines)


def refusal_of(run: subprocess.CompletedProcess[str]) -> str:
    assert run.returncode == 1
    assert run.stdout == ""
    assert "Traceback" not in run.stderr
    assert run.stderr.count("\n") == 1
    return run.stderr


def test_an_impossible_demo_is_refused_in_one_sentence(tmp_path: Path) -> None:
    source = tmp_path / "input.log"
    source.write_text("line\n")
    assert "does not exist" in refusal_of(demo(tmp_path / "missing", tmp_path / "a"))
    assert "not a regular file" in refusal_of(demo(tmp_path, tmp_path / "b"))
    assert not (tmp_path / "a").exists()
    no_java = {"PATH": str(tmp_path), "JAVA_HOME": ""}
    assert "Java" in refusal_of(demo(source, tmp_path / "c", **no_java))
    assert not (tmp_path / "c").exists()
    assert "cannot be used" in refusal_of(demo(source, source / "inside"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can make a folder of somebody else's")
def test_a_data_folder_of_another_user_is_refused(tmp_path: Path) -> None:
    source = tmp_path / "input.log"
    source.write_text("line\n")
    (tmp_path / "out" / "instance").mkdir(parents=True)
    os.chown(tmp_path / "out" / "instance", 12345, 12345)
    assert "belongs to" in refusal_of(demo(source, tmp_path / "out"))
