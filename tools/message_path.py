"""Prints the way of one message: the files and functions that it passes, from SEND to RECEIVE in another instance.

    python tools/message_path.py [--files | --write]

Two instances, each with the daemon that `servicebroker serve` runs, connected by a socket; a conversation without
encryption. The files are printed in the order in which each thread first uses them, then those that only the first
message of a conversation needs. `--files` leaves the functions out; `--write` puts that into
docs/reference/message-path.md, where a test compares it.

What only happens now and then (a daemon looks at its endpoint once a second) is on no message's way: several messages
are sent, and what all of them pass is printed. On a busy machine each message takes as long as such a period: what
threads of the network also call while nothing is sent is left out.
"""

from __future__ import annotations

import functools
import logging
import re
import sys
import tempfile
import textwrap
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType
from typing import Any
from uuid import UUID

import psycopg
from psycopg.conninfo import make_conninfo

import servicebroker as sb
from servicebroker.broker.daemon import Daemon

SOURCES = Path(sb.__file__).parent
DOCUMENT = Path(__file__).parents[1] / "docs/reference/message-path.md"
SENDER, RECEIVER = "//path/Sender", "//path/Receiver"
CONVERSATION_COUNT = 6
IDLE_S = 1.0  # without a message: longer than each period of the network
STAGES = (  # the threads that work for a message, in the order in which it first needs them
    "sender: application",
    "sender: rounds of the daemon",
    "sender: network",
    "receiver: network",
    "receiver: rounds of the daemon",
    "receiver: application",
)

Way = dict[str, dict[str, list[str]]]  # stage, file, functions


class Recorder:
    """Which functions of the package each thread calls, while it records; threads have the names of stages."""

    def __init__(self) -> None:
        self.way: Way | None = None

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        """As `sys.setprofile` calls it."""
        if event != "call" or self.way is None:
            return
        file, function = _place(frame.f_code)
        if file and (stage := threading.current_thread().name) in STAGES:
            functions = self.way.setdefault(stage, {}).setdefault(file, [])
            if function not in functions:
                functions.append(function)


@functools.cache
def _place(code: Any) -> tuple[str, str]:
    """The file of the package and the function; both are empty where the code is none of ours."""
    path = Path(code.co_filename)
    if not path.is_relative_to(SOURCES) or code.co_name == "<module>":
        return "", ""
    return str(path.relative_to(SOURCES)), code.co_qualname.replace("<locals>.", "").partition(".<")[0]


@contextmanager
def _as_stage(stage: str) -> Iterator[None]:
    """Attribute all calls within the block to this stage."""
    thread, before = threading.current_thread(), sys.getprofile()
    name, thread.name = thread.name, stage
    sys.setprofile(threading.getprofile())
    try:
        yield
    finally:
        sys.setprofile(before)
        thread.name = name


class Site:
    """An instance, its database and its daemon."""

    def __init__(self, side: str, url: str, stack: ExitStack) -> None:
        self.instance = stack.enter_context(sb.open(url, upkeep=None))
        self.database = self.instance.database("Path", create=True)
        self.looks = stack.enter_context(psycopg.connect(url, autocommit=True))
        known = threading.enumerate()
        daemon = Daemon(url, lambda: datetime.now(UTC))
        (network,) = set(threading.enumerate()) - set(known)
        network.name = f"{side}: network"
        self.address = str(daemon.listen("127.0.0.1", 0))
        rounds = threading.Thread(target=daemon.run, name=f"{side}: rounds of the daemon")
        rounds.start()
        stack.callback(rounds.join)
        stack.callback(daemon.stop)

    def until(self, condition: str) -> None:
        """Wait for what SQL says."""
        deadline = time.monotonic() + 30
        while self.looks.execute(f"select {condition}").fetchone() != (True,):
            if time.monotonic() > deadline:
                raise TimeoutError(condition)
            time.sleep(0.002)


def ways_of_messages(sending: str, receiving: str) -> tuple[Way, Way]:
    """Return the files on the way of every first message of a conversation, and of every later one."""
    recorder = Recorder()
    before = threading.getprofile()
    threading.setprofile(recorder)
    try:
        with ExitStack() as stack:
            sender, receiver = Site("sender", sending, stack), Site("receiver", receiving, stack)
            for site, own, other, there in ((sender, SENDER, RECEIVER, receiver), (receiver, RECEIVER, SENDER, sender)):
                site.database.create_queue("Queue")
                site.database.create_service(own, "Queue", [sb.DEFAULT])
                site.database.create_route("There", service_name=other, address=there.address)
            receiver.database.grant("SEND", "public", service=RECEIVER)
            first, later = [], []
            for _ in range(CONVERSATION_COUNT):
                handle = sender.database.begin_dialog(SENDER, RECEIVER, encryption=False)
                first.append(_carry(recorder, sender, receiver, handle))
                later.append(_carry(recorder, sender, receiver, handle))
            idle: Way = {}
            recorder.way = idle
            time.sleep(IDLE_S)
            recorder.way = None
    finally:
        threading.setprofile(before)
    # without the first message, for which the daemons have to connect
    return _common(first[1:], idle), _common(later[1:], idle)


def _carry(recorder: Recorder, sender: Site, receiver: Site, handle: UUID) -> Way:
    """Send a message, and receive it once its acknowledgement has come."""
    way: Way = {}
    recorder.way = way
    with _as_stage("sender: application"):
        sender.database.send(handle, body=b"a message")
    sender.until("not exists (select from servicebroker.transmission_queue)")
    with _as_stage("receiver: application"):
        (_message,) = receiver.database.receive("Queue")
    recorder.way = None
    return way


def _common(ways: list[Way], idle: Way) -> Way:
    """Return the calls that are in all of them, in the order of the first, without those of an idle network."""
    first, *others = ways
    found: Way = {}
    for stage in STAGES:
        periodic = idle.get(stage, {}) if stage.endswith("network") else {}
        for file, functions in first[stage].items():
            kept = [
                name
                for name in functions
                if name not in periodic.get(file, []) and all(name in other[stage].get(file, []) for other in others)
            ]
            if kept:
                found.setdefault(stage, {})[file] = kept
    return found


def files_of(way: Way) -> list[str]:
    """Every file on the way, once."""
    return list(dict.fromkeys(file for files in way.values() for file in files))


def as_text(first: Way, later: Way, *, functions: bool) -> str:
    """The way of a message, and what the first one of a conversation needs beside it."""
    more = {stage: {file: names for file, names in first[stage].items() if file not in later[stage]} for stage in later}
    lines = [f"A message: {len(files_of(later))} files", *_listed(later, functions)]
    lines += [
        "",
        f"The first one of a conversation: {len(files_of(first))} files, beside these",
        *_listed(more, functions),
    ]
    return "\n".join(lines)


def documented(page: str) -> str:
    """Return the list of files in docs/reference/message-path.md."""
    found = re.search(r"^## The files$.*?^```text\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def _listed(way: Way, functions: bool) -> Iterator[str]:
    """A paragraph for each stage."""
    for stage, files in way.items():
        if not files:
            continue
        yield stage
        told = [f"{file}: {', '.join(names)}" for file, names in files.items()] if functions else [" ".join(files)]
        for one in told:
            yield from textwrap.wrap(
                one, 116, initial_indent="  ", subsequent_indent="    " if functions else "  ", break_on_hyphens=False
            )


def main(arguments: list[str]) -> None:
    """Make two instances on a server of their own, and print the way."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o711)
        with sb.open(Path(folder) / "instance", upkeep=None) as instance:
            with psycopg.connect(instance.url, autocommit=True) as connection:
                connection.execute("create database other")
            ways = ways_of_messages(instance.url, make_conninfo(instance.url, dbname="other"))
    if "--write" in arguments:
        page = DOCUMENT.read_text()
        DOCUMENT.write_text(page.replace(documented(page), as_text(*ways, functions=False) + "\n"))
    else:
        print(as_text(*ways, functions="--files" not in arguments))


if __name__ == "__main__":
    logging.disable()  # that nothing proves who a peer is
    main(sys.argv[1:])
