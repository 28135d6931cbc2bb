"""`servicebroker watch`: polls one queue or one conversation, and prints a line for each poll."""

from __future__ import annotations

import time
from typing import Annotated, Any, NamedTuple
from uuid import UUID

import typer

from servicebroker.cli.completion import complete_queue
from servicebroker.cli.diagnosed_instance import DiagnosedInstance, diagnose
from servicebroker.cli.options import DEFAULT_INSTANCE, DatabaseOption, InstanceOption, require_finite
from servicebroker.cli.output import say, say_json
from servicebroker.engine.catalog.catalog import find_queue_uncached
from servicebroker.engine.conversation.restricted_verbs import RestrictedVerbs
from servicebroker.engine.diagnosis import dashboard_queries
from servicebroker.engine.diagnosis.conversation_findings import judge_conversation, judge_dead_letters
from servicebroker.engine.diagnosis.counters import message_flows
from servicebroker.engine.diagnosis.facts import gather_conversation
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT, Depth, queue_depths
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.states import STATE_WORDS
from servicebroker.model.wording import counted

INTERVAL_S = 2.0  # the time between two polls: a server's counters are up to a second late


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
            callback=require_finite,
            min=0.1,
            help="Seconds between polls.",
        ),
    ] = INTERVAL_S,
    until_empty: Annotated[
        bool, typer.Option("--until-empty", help="End when the queue is empty, or the conversation has ended.")
    ] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: Annotated[bool, typer.Option("--json", help="Print a JSON object for each poll.")] = False,
) -> None:
    """Watch a queue (depth, age, rates, failures) or a conversation (states, and why it waits) until Ctrl-C."""
    handle = _handle(target)
    with diagnose(instance, "servicebroker watch") as opened:
        database_id = opened.query("the database", opened.engine.find_database(database, create=False), None)
        if database_id is None:
            opened.report_failed_queries()
            raise typer.Exit(1)
        watched: _Queue | _Conversation
        if handle is not None:
            watched = _Conversation(opened, database_id, handle)
        else:
            queue = opened.query("the queue", find_queue_uncached("find", database_id, target), None)
            if queue is None:
                opened.report_failed_queries()
                raise typer.Exit(1)
            watched = _Queue(opened, queue.queue_id, database, ".".join(names.split_queue_name(target)))
        while True:
            poll = watched.poll()
            opened.report_failed_queries()
            if as_json:
                say_json({"time": opened.clock(), **poll.figures})
            elif poll.sentence:
                say(f"{opened.clock():%H:%M:%S} {poll.sentence}")
            if poll.is_over and until_empty:
                return
            time.sleep(every)


def _handle(target: str) -> UUID | None:
    """Return the target as a handle; None if it is the name of a queue."""
    try:
        return UUID(target)
    except ValueError:
        return None


class _Poll(NamedTuple):
    """The result of one poll: its figures for --json, and the line to print, '' for none.

    `is_over`: the queue is empty, or the conversation has ended.
    """

    figures: dict[str, Any]
    sentence: str
    is_over: bool


class _Queue:
    """A queue, with its counters at the previous poll."""

    def __init__(self, opened: DiagnosedInstance, queue_id: int, database: str, name: str) -> None:
        self._opened = opened
        self._queue_id = queue_id
        self._database = database
        self._name = name  # the name with its schema
        self._previous: tuple[float, float, float] | None = None  # time in seconds, messages added, messages removed

    def poll(self) -> _Poll:
        """Query the queue. A figure whose query failed is None; without a depth the queue does not count as empty."""
        queue_id, name, query = self._queue_id, self._name, self._opened.query
        details = query("the queue", dashboard_queries.find_queue_details(self._database, name), None)
        depths = query("its messages", queue_depths([queue_id]), None)
        depth = None if depths is None else depths.get(queue_id, Depth(0, None))
        in_rate, out_rate = self._rates()
        is_on, failing, dead_letters = (
            (None, None, None) if details is None else (details.is_on, details.failing, details.set_aside)
        )
        oldest = None if depth is None else depth.oldest
        figures = {
            "queue": name,
            "is_on": is_on,
            "messages": None if depth is None else depth.messages,
            "oldest": oldest,
            "in_per_second": in_rate,
            "out_per_second": out_rate,
            "failing": failing,
            "dead_letters": dead_letters,
        }
        parts = ["OFF"] if is_on is False else []
        parts.append(_describe_depth(depth))
        if oldest is not None:
            age = max(0, int((self._opened.clock() - oldest).total_seconds()))
            parts.append(f"the oldest for {age} s")
        if in_rate is not None and out_rate is not None:
            parts.append(f"in {in_rate:,.1f}/s, out {out_rate:,.1f}/s")
        if failing:
            parts.append(f"{failing} failing")
        if dead_letters:
            parts.append(counted(dead_letters, "dead letter"))
        return _Poll(figures, f"{name}: {', '.join(parts)}", depth is not None and not depth.messages)

    def _rates(self) -> tuple[float | None, float | None]:
        """Return messages in and out per second since the previous poll; None at the first poll."""
        now = time.monotonic()
        flows = self._opened.query("counters", message_flows(), [])
        if not flows:
            return None, None
        key = (self._database.lower(), self._name.lower())
        added, removed = (
            sum(value for labels, value in counter.values if tuple(label.lower() for label in labels) == key)
            for counter in flows[:2]
        )
        previous, self._previous = self._previous, (now, added, removed)
        if previous is None:
            return None, None
        elapsed_s = max(now - previous[0], 1e-3)
        return max(0.0, added - previous[1]) / elapsed_s, max(0.0, removed - previous[2]) / elapsed_s


def _describe_depth(depth: Depth | None) -> str:
    """Return the number of messages in words."""
    if depth is None:
        return "number of messages unknown"
    return f"over {COUNT_LIMIT:,} messages" if depth.messages >= COUNT_LIMIT else counted(depth.messages, "message")


class _Conversation:
    """A conversation, with its sentence at the previous poll."""

    def __init__(self, opened: DiagnosedInstance, database_id: int, handle: UUID) -> None:
        self._opened = opened
        self._database_id = database_id
        self._handle = handle
        self._previous = ""

    def poll(self) -> _Poll:
        """Query the conversation and the reasons why it waits. The sentence is '' if nothing has changed."""
        try:
            side = self._opened.query("the conversation", dashboard_queries.endpoint(self._handle), None)
        except BrokerError as unknown_handle:
            return _Poll(
                {"conversation_handle": self._handle, "state": None, "findings": []}, unknown_handle.text, True
            )
        if side is None:
            return _Poll({}, "", False)
        now = self._opened.clock()
        facts = self._opened.query(
            "facts about the conversation", gather_conversation(self._database_id, self._handle, now), None
        )
        findings = [] if facts is None else judge_conversation(facts)
        if self._opened.engine is not RestrictedVerbs:
            letters = self._opened.query("dead letters", dashboard_queries.dead_letters_of_both_sides(self._handle), [])
            findings = [*judge_dead_letters(self._handle, letters), *findings]
        problems = [f"{finding.subject}: {finding.problem}" for finding in findings]
        figures = {
            "conversation_handle": self._handle,
            "state": side.state,
            "sent": side.send_sequence,
            "received": side.receive_sequence,
            "findings": problems,
        }
        role = "initiator" if side.is_initiator else "target"
        state = f"{role} {side.service} with {side.far_service}: {STATE_WORDS[side.state]}."
        sentence = " ".join([state, *problems])
        is_changed = sentence != self._previous
        self._previous = sentence
        return _Poll(figures, sentence if is_changed else "", side.state == "CD")
