"""`servicebroker watch`: one queue or one conversation, look after look, a line for each."""

from __future__ import annotations

import time
from typing import Annotated, Any
from uuid import UUID

import typer

from servicebroker.cli.completion import complete_queue
from servicebroker.cli.diagnosed_instance import DiagnosedInstance, diagnose
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, finite
from servicebroker.cli.output import say, say_json
from servicebroker.engine.catalog.catalog import find_queue_now
from servicebroker.engine.diagnosis import dashboard_queries
from servicebroker.engine.diagnosis.conversation_findings import judge_conversation
from servicebroker.engine.diagnosis.counters import message_flows
from servicebroker.engine.diagnosis.facts import gather_conversation
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT, Depth, queue_depths
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.states import STATE_WORDS
from servicebroker.model.wording import counted

INTERVAL_S = 2.0  # between two looks: the counters of a server lag by up to a second


def watch(
    target: Annotated[
        str,
        typer.Argument(
            metavar="QUEUE|HANDLE", help="A queue, or the handle of a conversation.", autocompletion=complete_queue
        ),
    ],
    database: DatabaseOption,
    every: Annotated[
        float,
        typer.Option(
            metavar="SECONDS",
            callback=finite,
            min=0.1,
            help="Seconds between two polls.",
        ),
    ] = INTERVAL_S,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when the queue is empty, or the conversation is over.")
    ] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each poll.")] = False,
) -> None:
    """Watch a queue (depth, age, rates, failures) or a conversation (states, and why it waits) until Ctrl-C."""
    handle = _handle(target)
    with diagnose(instance, "servicebroker watch") as opened:
        database_id = opened.look("the database", opened.engine.find_database(database, create=False), None)
        if database_id is None:
            opened.tell_unseen()
            raise typer.Exit(1)
        watched: _Queue | _Conversation
        if handle is not None:
            watched = _Conversation(opened, database_id, handle)
        else:
            found = opened.look("the queue", find_queue_now("find", database_id, target), None)
            if found is None:
                opened.tell_unseen()
                raise typer.Exit(1)
            watched = _Queue(opened, found.queue_id, database, ".".join(names.split_queue_name(target)))
        while True:
            told, sentence, is_over = watched.look()
            opened.tell_unseen()
            if as_json:
                say_json({"time": opened.clock(), **told})
            elif sentence:
                say(f"{opened.clock():%H:%M:%S} {sentence}")
            if is_over and until_empty:
                return
            time.sleep(every)


def _handle(target: str) -> UUID | None:
    """Return the target as a handle; None if it is the name of a queue."""
    try:
        return UUID(target)
    except ValueError:
        return None


class _Queue:
    """A queue, with the counters of the look before."""

    def __init__(self, opened: DiagnosedInstance, queue_id: int, database: str, name: str) -> None:
        self._opened = opened
        self._queue_id = queue_id
        self._database = database
        self._name = name  # with its schema
        self._before: tuple[float, float, float] | None = None  # the time, messages that came, messages that left

    def look(self) -> tuple[dict[str, Any], str, bool]:
        """Return the queue's figures, a sentence with them, and True if it is empty.

        A figure that could not be seen is None, and such a queue does not count as empty.
        """
        queue_id, name, look = self._queue_id, self._name, self._opened.look
        seen = look("the queue", dashboard_queries.queue_look(self._database, name), None)
        depths = look("its messages", queue_depths([queue_id]), None)
        depth = None if depths is None else depths.get(queue_id, Depth(0, None))
        came, left = self._rates()
        is_on, failing, dead = (None, None, None) if seen is None else (seen.is_on, seen.failing, seen.set_aside)
        oldest = None if depth is None else depth.oldest
        told = {
            "queue": name,
            "is_on": is_on,
            "messages": None if depth is None else depth.messages,
            "oldest": oldest,
            "in_per_second": came,
            "out_per_second": left,
            "failing": failing,
            "dead_letters": dead,
        }
        parts = ["OFF"] if is_on is False else []
        parts.append(_many(depth))
        if oldest is not None:
            age = max(0, int((self._opened.clock() - oldest).total_seconds()))
            parts.append(f"the oldest for {age} s")
        if came is not None and left is not None:
            parts.append(f"in {came:,.1f}/s, out {left:,.1f}/s")
        if failing:
            parts.append(f"{failing} failing")
        if dead:
            parts.append(counted(dead, "dead letter"))
        return told, f"{name}: {', '.join(parts)}", depth is not None and not depth.messages

    def _rates(self) -> tuple[float | None, float | None]:
        """Return messages in and out per second since the look before; None at the first look."""
        now = time.monotonic()
        flows = self._opened.look("counters", message_flows(), [])
        if not flows:
            return None, None
        key = (self._database.lower(), self._name.lower())
        came, left = (
            sum(value for labels, value in counter.values if tuple(one.lower() for one in labels) == key)
            for counter in flows[:2]
        )
        before, self._before = self._before, (now, came, left)
        if before is None:
            return None, None
        passed = max(now - before[0], 1e-3)
        return max(0.0, came - before[1]) / passed, max(0.0, left - before[2]) / passed


def _many(depth: Depth | None) -> str:
    """Return the number of messages in words."""
    if depth is None:
        return "messages not seen"
    return f"over {COUNT_LIMIT:,} messages" if depth.messages >= COUNT_LIMIT else counted(depth.messages, "message")


class _Conversation:
    """A conversation, as seen at the look before."""

    def __init__(self, opened: DiagnosedInstance, database_id: int, handle: UUID) -> None:
        self._opened = opened
        self._database_id = database_id
        self._handle = handle
        self._before = ""

    def look(self) -> tuple[dict[str, Any], str, bool]:
        """Return the conversation's state, a sentence if it has changed, and True if the conversation is over."""
        try:
            side = self._opened.look("the conversation", dashboard_queries.endpoint(self._handle), None)
        except BrokerError as gone:
            return {"conversation_handle": self._handle, "state": None, "findings": []}, f"{gone.text}", True
        if side is None:
            return {}, "", False
        now = self._opened.clock()
        facts = self._opened.look("why", gather_conversation(self._database_id, self._handle, now), None)
        findings = [] if facts is None else judge_conversation(facts)
        problems = [f"{finding.subject}: {finding.problem}" for finding in findings]
        told = {
            "conversation_handle": self._handle,
            "state": side.state,
            "sent": side.send_sequence,
            "received": side.receive_sequence,
            "findings": problems,
        }
        role = "initiator" if side.is_initiator else "target"
        words = f"{role} {side.service} with {side.far_service}: {STATE_WORDS[side.state]}"
        sentence = " ".join([f"{words}.", *problems])
        is_changed = sentence != self._before
        self._before = sentence
        return told, sentence if is_changed else "", side.state == "CD"
