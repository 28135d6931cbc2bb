"""Every verb in every state of a conversation, combined with other conditions, on the engine and on the double.

The random histories of test_model.py rarely reach such combinations. Here they are enumerated: the state of the
verb's side, a savepoint, a lock of another session, a priority and RETENTION. A timer and a lifetime may have expired,
and a restricted role or T-SQL may run the verb.
"""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple
from uuid import UUID

import pytest

import side_by_side
from fenced_histories import FencedModel, restricted_role
from random_histories import Model, Rows, open_for_model
from side_by_side import ANSWER, ASK, CONTRACT, DOCUMENT, PLAIN, Pair, comparable_messages, forget_rows
from spoken_histories import TsqlModel

LIFETIME_S, TIMER_S = 100, 50
Verb = Callable[[Any, UUID], Any]
RecordProperty = Callable[[str, object], None]

# name: kind of step, verb
VERBS: dict[str, tuple[str, Verb]] = {
    "send": ("send", lambda tx, handle: tx.send(handle, PLAIN, b"x")),
    "send broken": ("send", lambda tx, handle: tx.send(handle, DOCUMENT, b"<broken")),
    "send by direction": ("send", lambda tx, handle: tx.send(handle, ASK, b"x")),
    "send against it": ("send", lambda tx, handle: tx.send(handle, ANSWER, b"x")),
    "multicast": ("multicast", lambda tx, handle: tx.send([handle], PLAIN, b"x")),
    "batch": ("send batch", lambda tx, handle: tx.send_batch(handle, DOCUMENT, [b"<a/>", b"<broken"])),
    "receive near": ("receive", lambda tx, handle: comparable_messages(tx.receive("Near"))),
    "receive far": ("receive", lambda tx, handle: comparable_messages(tx.receive("Far"))),
    "receive one": ("receive", lambda tx, handle: comparable_messages(tx.receive("Far", top=1))),
    "receive where": ("receive", lambda tx, handle: comparable_messages(tx.receive("Far", conversation_handle=handle))),
    "receive groups": ("receive groups", lambda tx, handle: comparable_messages(tx.receive("Far", top=1, groups=3))),
    "get near": ("get", lambda tx, handle: tx.get_conversation_group("Near")),
    "get far": ("get", lambda tx, handle: tx.get_conversation_group("Far")),
    "end": ("end", lambda tx, handle: tx.end_conversation(handle)),
    "end with error": ("end", lambda tx, handle: tx.end_conversation(handle, error=(5, "no"))),
    "clean up": ("end", lambda tx, handle: tx.end_conversation(handle, cleanup=True)),
    "timer": ("timer", lambda tx, handle: tx.begin_conversation_timer(handle, 5)),
    "status": ("status", lambda tx, handle: tx.get_transmission_status(handle)),
}
STATES = ("SO", "CO", "CO target", "DI", "DI target", "ER", "ER target", "DO", "parked", "CD", "gone")
SAVEPOINTS = ("", "transaction", "released", "undone")
LOCKS = ("", "", "group", "endpoint", "other side")  # locks that another session holds
DUE = ("", "", "timer", "lifetime", "both")


class Crossing(NamedTuple):
    """A verb, and the conditions under which it runs."""

    verb: str
    state: str
    savepoint: str
    lock: str
    due: str
    has_levels: bool  # each side has its own level for one contract
    is_retained: bool
    is_undone: bool  # the other session first, then this transaction


class CrossingRunner(Model):
    """Runs one crossing on the engine and on the double."""

    left_out: ClassVar[frozenset[str]] = frozenset()  # verbs

    def cross(self, crossing: Crossing) -> None:
        """Run a crossing. Compares both at every step, and the contents of the queues at the end."""
        if crossing.has_levels:
            self.on_both(lambda db: db.create_broker_priority(
                "p", contract_name=CONTRACT, local_service_name="//near", priority_level=8))  # fmt: skip
        if crossing.is_retained:
            self.set_retention(is_on=True)
        handle = self.reach(crossing.state)
        if crossing.due in ("timer", "both"):
            self.do("timer", lambda tx, handle: tx.begin_conversation_timer(handle, TIMER_S), handle)
        if crossing.due:
            self.clock.jump(seconds=TIMER_S + 1 if crossing.due == "timer" else LIFETIME_S + 1)
        if crossing.lock:
            self.hold(crossing.lock, handle)
        self.act(crossing, handle)
        while self.open:
            self.finish(self.open[0], undo=crossing.is_undone)
            self.compare(in_order=False)
        for queue in ("Near", "Far"):
            self.step("receive", self.databases["A"], lambda db, queue=queue: comparable_messages(db.receive(queue)))
        self.run_maintenance()

    def act(self, crossing: Crossing, handle: UUID) -> None:
        kind, verb = VERBS[crossing.verb]
        pair = self.databases["A"]
        if crossing.savepoint:
            self.begin_transaction()
            pair = self.open[-1]
        if crossing.savepoint in ("released", "undone"):
            self.set_savepoint(len(self.open) - 1)
        self.do(kind, verb, handle, pair)
        if pair in self.open and len(pair.contexts) > 1:
            pair.leave(undo=crossing.savepoint == "undone")
            self.acting = pair
            self.compare(in_order=False)

    def do(self, kind: str, verb: Verb, handle: UUID, pair: Pair | None = None) -> None:
        self.step(kind, pair or self.databases["A"], lambda tx: verb(tx, handle), in_order=False)

    def hold(self, lock: str, handle: UUID) -> None:
        """Lock the conversation's group or row, or those of its peer, in another session."""
        self.begin_transaction()
        pair = self.open[-1]
        known = self.double._memory.endpoints.get(handle)
        far = known.peer_handle if known is not None else None
        if lock == "group":
            self.step(
                "begin",
                pair,
                lambda tx: tx.begin_dialog("//near", "//second", contract=CONTRACT, related_conversation=handle),
            )
        elif lock == "endpoint":
            self.do("send", VERBS["send"][1], handle, pair)
        elif far is not None:
            self.do("send", VERBS["send"][1], far, pair)

    def reach(self, state: str) -> UUID:
        """Return the handle of a conversation side in this state."""
        to = "//nowhere" if state in ("DO", "parked") else "//far"
        begin = {"contract": CONTRACT, "lifetime": LIFETIME_S}
        self.step("begin", self.databases["A"], lambda db: db.begin_dialog("//near", to, **begin))
        assert self.begun is not None
        near = self.begun
        if state == "SO":
            return near
        self.do("send", VERBS["send"][1], near)
        if state in ("DO", "parked"):
            if state == "DO":
                self.do("end", VERBS["end"][1], near)
            return near
        far = self.double._memory.endpoints[near].peer_handle
        assert far is not None
        self.do("send", VERBS["send"][1], far)
        form = VERBS["end with error" if state.startswith("ER") else "end"][1]
        if state in ("DI", "ER"):
            self.do("end", form, far)
        elif state in ("DI target", "ER target"):
            self.do("end", form, near)
        elif state in ("CD", "gone"):
            self.do("end", form, far)
            self.do("end", form, near)
        found = far if state.endswith("target") or state == "CD" else near
        endpoint = self.double._memory.endpoints.get(found)
        assert endpoint is None if state == "gone" else endpoint is not None and endpoint.state.value == state[:2]
        return found

    def on_both(self, change: Callable[[Any], Any]) -> None:
        change(self.real.database("A"))
        change(self.databases["A"].double)

    def set_retention(self, *, is_on: bool) -> None:
        """Set RETENTION on the engine only. The double lacks it, because results are the same."""
        for queue in ("Near", "Far"):
            self.real.database("A").alter_queue(queue, retention=is_on)

    def see(self, text: str, *parameters: object) -> Rows:
        rows = super().see(text, *parameters)
        if text == side_by_side._MESSAGES:
            status = side_by_side._MESSAGE.split(", ").index("status") + 2
            return [row for row in rows if row[status] == 1]
        return rows

    def forget(self, crossing: Crossing) -> None:
        """Remove the effects of the crossing from the engine."""
        while self.open:
            self.finish(self.open[0], undo=True)
        if crossing.has_levels:
            self.real.database("A").drop_broker_priority("p")
        if crossing.is_retained:
            self.set_retention(is_on=False)
        with self.real.connection() as connection:
            forget_rows(connection)


class TsqlCrossingRunner(CrossingRunner, TsqlModel):
    """Runs crossings as T-SQL text."""

    left_out = frozenset({"receive groups", "batch", "status"})


class RestrictedCrossingRunner(CrossingRunner, FencedModel):
    """Runs crossings for a restricted role: each verb is a transaction of its own, and the clock is the server's."""

    left_out = frozenset({"batch", "status"})


def crossings(of: type[CrossingRunner], rng: random.Random, count: int) -> Iterator[Crossing]:
    """Return `count` different crossings, with each verb and each state equally often."""
    verbs = [verb for verb in VERBS if verb not in of.left_out]
    outer = list(itertools.product(verbs, STATES))
    rng.shuffle(outer)
    inner = list(itertools.product(SAVEPOINTS, LOCKS, DUE, (False, True), (False, True), (False, True)))
    for verb, state in itertools.islice(itertools.cycle(outer), count):
        yield Crossing(verb, state, *rng.choice(inner))


def run_crossings(of: type[CrossingRunner], found: Iterator[Crossing]) -> int:
    """Run each crossing in a new history. Return the number of crossings."""
    count = 0
    for crossing in found:
        model = of()
        try:
            model.cross(crossing)
        except AssertionError as problem:
            raise AssertionError(f"{crossing}: {problem}") from problem
        finally:
            model.forget(crossing)
        count += 1
    return count


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_each_verb_in_each_state_is_as_in_the_double(
    make_instance_url: Callable[..., str],
    request: pytest.FixtureRequest,
    seeded_random: random.Random,
    record_property: RecordProperty,
) -> None:
    count = request.config.option.crossings
    with open_for_model(CrossingRunner, make_instance_url()):
        assert run_crossings(CrossingRunner, crossings(CrossingRunner, seeded_random, count)) == count
    record_property("crossings", f"{count}, {dict(CrossingRunner.outcomes)}")


@pytest.mark.timeout(0)
def test_each_state_at_the_end_of_its_lifetime_is_as_in_the_double(make_instance_url: Callable[..., str]) -> None:
    """A reader of either side or upkeep detects the expiry."""
    with open_for_model(CrossingRunner, make_instance_url()):
        looks = ("receive near", "receive far", "send")
        found = (
            Crossing(look, state, "", "", due, has_levels=True, is_retained=False, is_undone=False)
            for state in STATES
            for look, due in zip(looks, ("lifetime", "both", "lifetime"), strict=True)
        )
        assert run_crossings(CrossingRunner, found) == len(STATES) * len(looks)


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_in_t_sql_each_verb_in_each_state_is_as_in_the_double(
    make_instance_url: Callable[..., str],
    request: pytest.FixtureRequest,
    seeded_random: random.Random,
    record_property: RecordProperty,
) -> None:
    count = max(1, request.config.option.crossings // 4)
    with open_for_model(TsqlCrossingRunner, make_instance_url()):
        assert run_crossings(TsqlCrossingRunner, crossings(TsqlCrossingRunner, seeded_random, count)) == count
    record_property("crossings", f"{count}, {dict(TsqlCrossingRunner.outcomes)}")


@pytest.mark.slow
@pytest.mark.timeout(0)
def test_for_a_restricted_role_each_verb_in_each_state_is_as_in_the_double(
    make_url: Callable[[], str],
    request: pytest.FixtureRequest,
    seeded_random: random.Random,
    record_property: RecordProperty,
) -> None:
    count, url = max(1, request.config.option.crossings // 4), make_url()
    plain = (
        crossing._replace(savepoint="", lock="", due="")
        for crossing in crossings(RestrictedCrossingRunner, seeded_random, count)
    )
    with open_for_model(RestrictedCrossingRunner, url), restricted_role(RestrictedCrossingRunner, url):
        assert run_crossings(RestrictedCrossingRunner, plain) == count
    record_property("crossings", f"{count}, {dict(RestrictedCrossingRunner.outcomes)}")
