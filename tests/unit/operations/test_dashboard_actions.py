"""Actions of the dashboard as calls of the API, and the buttons of findings, without a server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import psycopg
import pytest

from servicebroker.cli import audited_act
from servicebroker.dashboard import actions
from servicebroker.dashboard.actions import ACTIONS, MAX_ERRORS_SHOWN, InstanceAction
from servicebroker.dashboard.remedies import Button, buttons
from servicebroker.engine.diagnosis import dashboard_queries
from servicebroker.engine.diagnosis.findings import Remedy
from servicebroker.model.errors import BrokerError, InstanceError, Unreachable
from servicebroker.operations.queues import Activation
from support import refused

HANDLE, GROUP = UUID(int=5), UUID(int=6)
QUEUE = {"database": "Shop", "queue": "dbo.Q"}
TALK = {"database": "Shop", "handle": f" {HANDLE} "}
QUEUE_PAGE, TALK_PAGE = "queue?database=Shop&queue=dbo.Q", f"conversation?handle=+{HANDLE}+"

Call = tuple[Any, ...]


class Recorder:
    """A stand-in for database, transaction and instance that keeps each call: name, arguments, options."""

    def __init__(self, calls: list[Call], results: dict[str, Any]) -> None:
        self._calls, self._results = calls, results
        self.instance, self.name, self.database_id = self, "Shop", 3

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            self._calls.append((name, *arguments, *([options] if options else [])))
            result = self._results.get(name)
            return result(*arguments) if callable(result) else result

        return call

    @contextmanager
    def connection(self) -> Iterator[str]:
        yield "connection"


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Call]:
    made: list[Call] = []

    @contextmanager
    def audited(database: Any, action: str, handle: UUID, **details: object) -> Iterator[Any]:
        made.append(("audited", action, handle, *([details] if details else [])))
        yield Recorder(made, {"cancel_delayed": 2})

    def record(name: str, result: Any = None) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            made.append((name, *arguments))
            return result

        return call

    for module in (actions, audited_act):
        monkeypatch.setattr(module, "audited_transaction", audited)
    monkeypatch.setattr(actions, "record_conversation", lambda instance, handle: made.append(("record", handle)))
    monkeypatch.setattr(actions, "find_queue_uncached", record("find_queue"))
    monkeypatch.setattr(actions, "forget_failures", record("forget_failures"))
    monkeypatch.setattr(actions, "end_session", record("end_session"))
    monkeypatch.setattr(actions, "in_transaction", lambda connection, steps: True)
    return made


EXPECTED: dict[str, tuple[dict[str, str], list[Call], str]] = {
    "switch": ({**QUEUE, "status": "off"}, [("alter_queue", "dbo.Q", {"status": False})], QUEUE_PAGE),
    "retry": (
        QUEUE,
        [
            ("find_queue", "alter", 3, "dbo.Q"),
            ("_do", None),
            ("alter_queue", "dbo.Q", {"status": True}),
            ("forget_failures", 9),
            ("_run_in_transaction", None),
        ],
        QUEUE_PAGE,
    ),
    "end": (TALK, [("audited", "END CONVERSATION", HANDLE), ("end_conversation", HANDLE)], TALK_PAGE),
    "end-with-error": (
        {**TALK, "code": "-7", "text": "no"},
        [
            ("audited", "END CONVERSATION WITH ERROR", HANDLE, {"code": -7, "text": "no"}),
            ("end_conversation", HANDLE, {"error": (-7, "no")}),
        ],
        TALK_PAGE,
    ),
    "clean-up": (
        TALK,
        [("audited", "END CONVERSATION WITH CLEANUP", HANDLE), ("end_conversation", HANDLE, {"cleanup": True})],
        "conversations",
    ),
    "cancel-delayed": (TALK, [("audited", "CANCEL DELAYED MESSAGES", HANDLE), ("cancel_delayed", HANDLE)], TALK_PAGE),
    "move": (
        {**TALK, "group": str(GROUP)},
        [("audited", "MOVE CONVERSATION", HANDLE, {"group": GROUP}), ("move_conversation", HANDLE, GROUP)],
        TALK_PAGE,
    ),
    "timer": (
        {**TALK, "seconds": "60"},
        [
            ("audited", "BEGIN CONVERSATION TIMER", HANDLE, {"seconds": 60}),
            ("begin_conversation_timer", HANDLE, 60),
        ],
        TALK_PAGE,
    ),
    "activation": (
        {**QUEUE, "procedure": " p ", "readers": "4", "execute_as": "", "status": "off"},
        [("alter_queue", "dbo.Q", {"activation": Activation("p", 4, None, False)})],
        QUEUE_PAGE,
    ),
    "restart-activation": (
        QUEUE,
        [("alter_queue", "dbo.Q", {"activation": Activation(status=status)}) for status in (False, True)],
        QUEUE_PAGE,
    ),
    "enable-broker": ({"database": "Shop"}, [("alter", {"enable_broker": True})], "queues"),
    "end-session": ({"pid": "12"}, [("end_session", 12)], "queues"),
    "record-trail": (TALK, [("record", HANDLE)], TALK_PAGE),
    "replay": ({"number": "8"}, [("replay_message", 8)], "dead-letters"),
    "replay-edited": (
        {"number": "8", "body": "a\r\nb"},
        [("replay_message", 8, {"body": "a\nb"})],
        "dead-letters",
    ),
    "discard": ({"number": "8"}, [("discard_message", 8)], "dead-letters"),
}


@pytest.mark.parametrize("name", EXPECTED)
def test_each_action_is_these_calls(calls: list[Call], name: str) -> None:
    fields, expected, page = EXPECTED[name]
    action = ACTIONS[name]
    queue = SimpleNamespace(queue_id=9)
    database: Any = Recorder(calls, {"_do": queue, "_run_in_transaction": 2})
    sentence = action.run(database, fields)
    assert sentence.endswith(".")
    assert (calls, action.page_after(fields)) == (expected, page)
    assert isinstance(action, InstanceAction) == (name == "end-session")


def test_a_session_that_has_ended_is_reported(calls: list[Call], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(actions, "in_transaction", lambda connection, steps: False)
    database: Any = Recorder(calls, {})
    with pytest.raises(InstanceError, match="ended already"):
        ACTIONS["end-session"].run(database, {"pid": "12"})


# ---------------------------------------------------------------- many dead letters

CHOSEN = {"database": "Shop", "queue": "dbo.Q", "type": "T", "error": "E", "newest": "40"}


def choose(monkeypatch: pytest.MonkeyPatch, numbers: list[int]) -> list[Call]:
    asked: list[Call] = []

    def dead_letter_numbers(*arguments: Any) -> None:
        asked.append(arguments)

    monkeypatch.setattr(dashboard_queries, "dead_letter_numbers", dead_letter_numbers)
    monkeypatch.setattr(actions, "run", lambda connection, steps: numbers)
    return asked


@pytest.mark.parametrize(
    ("name", "verb", "word"),
    [("replay-chosen", "replay_message", "in their"), ("discard-chosen", "discard_message", "discarded")],
)
def test_chosen_dead_letters_are_those_of_the_page(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch, name: str, verb: str, word: str
) -> None:
    asked = choose(monkeypatch, [7, 9])
    database: Any = Recorder(calls, {})
    sentence = ACTIONS[name].run(database, CHOSEN)
    assert sentence.startswith("2 messages are")
    assert word in sentence
    assert calls == [(verb, 7), (verb, 9)]
    ((chosen, newest),) = asked
    assert {name: value for name, value in chosen._asdict().items() if value} == {
        name: value for name, value in CHOSEN.items() if name in chosen._fields
    }
    assert newest == 40
    assert ACTIONS[name].page_after(CHOSEN).startswith("dead-letters?")


@pytest.mark.parametrize(
    ("problem", "tried"),
    [
        (BrokerError(8426, "x"), 9),
        (psycopg.errors.LockNotAvailable("locked"), 9),
        (psycopg.errors.QueryCanceled("late"), 9),
        (psycopg.OperationalError("connection is lost"), 2),
        (Unreachable("down"), 2),
    ],
    ids=lambda value: type(value).__name__ if isinstance(value, Exception) else "",
)
def test_a_failure_stops_the_others_only_if_the_server_is_away(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch, problem: Exception, tried: int
) -> None:
    choose(monkeypatch, list(range(1, 10)))

    def replay(number: int) -> None:
        if number > 1:
            raise problem

    database: Any = Recorder(calls, {"replay_message": replay})
    sentence = ACTIONS["replay-chosen"].run(database, CHOSEN)
    assert len(calls) == tried
    assert sentence.startswith("1 message is in its queue again.")
    assert sentence.count("Message ") == min(tried - 1, MAX_ERRORS_SHOWN)
    assert sentence.endswith(" ...") == (tried - 1 > MAX_ERRORS_SHOWN)


@pytest.mark.parametrize("excess", [-1, 0])
def test_a_full_answer_says_that_there_are_more(
    calls: list[Call], monkeypatch: pytest.MonkeyPatch, excess: int
) -> None:
    monkeypatch.setattr(dashboard_queries, "MAX_BULK", 3)
    choose(monkeypatch, [1] * (3 + excess))
    database: Any = Recorder(calls, {})
    assert ("press again" in ACTIONS["discard-chosen"].run(database, CHOSEN)) == (excess == 0)


@pytest.mark.parametrize(
    ("field", "value", "is_right"),
    [
        ("number", "0", True), ("number", " 12 ", True), ("number", "9" * 18, True), ("number", "9" * 19, False),
        ("number", "", False), ("number", "1.0", False), ("number", "٣", False), ("number", "1\n2", False),
    ],
)  # fmt: skip
def test_numbers_of_forms(calls: list[Call], field: str, value: str, is_right: bool) -> None:
    database: Any = Recorder(calls, {})
    with nullcontext() if is_right else refused(402):
        ACTIONS["discard"].run(database, {field: value})
    assert calls == ([("discard_message", int(value))] if is_right else [])


# ---------------------------------------------------------------- buttons

NAMES = {"Shop.dbo.Q": ("Shop", "dbo.Q")}
HANDLE_FIELDS = {"handle": str(HANDLE)}


@pytest.mark.parametrize(
    ("act", "button"),
    [
        (Remedy("retry", "Shop.dbo.Q"), ("retry", QUEUE, False)),
        (Remedy("retry", "Shop.dbo.Gone"), None),
        (Remedy("switch-on", "Shop.dbo.Q"), ("retry", QUEUE, False)),
        (Remedy("switch-on", "Shop.dbo.Gone"), None),
        (Remedy("restart-activation", "Shop.dbo.Q"), ("restart-activation", QUEUE, False)),
        (Remedy("enable-broker", "Other"), ("enable-broker", {"database": "Other"}, False)),
        (Remedy("end-conversation", str(HANDLE)), ("end", {"database": "Shop", **HANDLE_FIELDS}, True)),
        (
            Remedy("remove-conversation", str(HANDLE), "Other"),
            ("clean-up", {"database": "Other", **HANDLE_FIELDS}, True),
        ),
        (Remedy("end-session", "12"), ("end-session", {"pid": "12"}, True)),
    ],
    ids=lambda value: f"{value.name} {value.subject[-4:]}" if isinstance(value, Remedy) else "",
)
def test_each_remedy_has_the_button_of_its_action(act: Remedy, button: tuple[str, dict[str, str], bool] | None) -> None:
    finding: Any = SimpleNamespace(acts=(act,))
    finding_buttons: list[Button] = buttons(finding, NAMES, "Shop")
    assert [(one.action, one.fields, bool(one.consequence)) for one in finding_buttons] == ([button] if button else [])
    for one in finding_buttons:
        assert {"database", "queue", "handle", "pid"} >= set(one.fields)
        assert one.action in ACTIONS
