"""Every interleaving of senders, recyclers and a target of one pool: the real coroutines over a model of the locks.

A step is one statement. The model knows what decides: rows and endpoints are locked until their transaction ends, a
RECEIVE fires the timers of the endpoints that nobody holds and holds them itself, and what is deleted is looked at
again after a wait.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Generator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from uuid import UUID

import pytest
from psycopg.pq import TransactionStatus

import servicebroker as sb
from servicebroker.engine.conversation import recycling
from servicebroker.engine.conversation.recycling import PoolAnswer
from servicebroker.model import names
from servicebroker.model.errors import BrokerError

BLOCKED = object()
Step = Callable[[], Any]  # performs the step and returns its result, or BLOCKED

TIMER = SimpleNamespace(is_timer=True, is_end_dialog=False, is_error=False, message_type_id=names.DIALOG_TIMER_ID)
END = SimpleNamespace(is_timer=False, is_end_dialog=True, is_error=False, message_type_id=names.END_DIALOG_ID)


class Do:
    """A step that a coroutine of the pool awaits. The explorer decides when it runs."""

    def __init__(self, step: Step) -> None:
        self.step = step

    def __await__(self) -> Generator[Step, Any, Any]:
        return (yield self.step)


@dataclass
class Session:
    handle: UUID | None
    seen: UUID | None  # the committed handle, visible to others


@dataclass
class World:
    """The tables and the locks with their holders."""

    locks: bool = True  # False: a sender's row is not locked
    to_send: list[str] = field(default_factory=list)
    sessions: dict[str, Session] = field(default_factory=dict)
    streams: dict[UUID, list[str]] = field(default_factory=dict)
    open: dict[UUID, bool] = field(default_factory=dict)  # False: no message can be sent any more
    armed: set[UUID] = field(default_factory=set)
    queue: list[tuple[UUID, Any]] = field(default_factory=list)
    answers: dict[int, tuple[UUID, int]] = field(default_factory=dict)
    noted: int = 0
    held: dict[object, str] = field(default_factory=dict)  # row -> holder
    after_commit: dict[str, list[Callable[[], None]]] = field(default_factory=dict)

    def hold(self, what: object, actor: str) -> bool:
        return self.held.setdefault(what, actor) == actor

    def run_after_commit(self, actor: str, effect: Callable[[], None]) -> None:
        self.after_commit.setdefault(actor, []).append(effect)

    def commit(self, actor: str) -> None:
        for effect in self.after_commit.pop(actor, []):
            effect()
        self.held = {what: owner for what, owner in self.held.items() if owner != actor}

    def describe(self) -> object:
        return repr((self.sessions, self.streams, self.open, self.armed, self.queue, self.answers, self.held))

    # ------------------------------------------------ statements of the pool

    def statement(self, actor: str, name_of_statement: str, parameters: tuple[Any, ...]) -> Any:
        match name_of_statement:
            case "recycling.use_conversation":
                return self.take(actor, parameters[5])
            case "recycling.assign":
                return self.keep(actor, parameters[4], parameters[5])
            case "recycling.unassign":
                (name,) = (name for name, session in self.sessions.items() if session.handle == parameters[0])
                return self.keep(actor, name, None)
            case "recycling.release":
                return self.release(actor, parameters[0])
            case "recycling.next_answer":
                for number, (handle, kind) in sorted(self.answers.items()):
                    if self.hold(("answer", number), actor):
                        return [PoolAnswer(number, "from", handle, kind, None)]
                return []
        if name_of_statement == "recycling.remove_answer":
            del self.answers[parameters[0]]
            return []
        assert name_of_statement == "recycling.store_answers", name_of_statement
        for handle, kind in zip(parameters[2], parameters[3], strict=True):
            self.noted += 1
            self.run_after_commit(
                actor, lambda number=self.noted, answer=(handle, kind): self.answers.update({number: answer})
            )
        return []

    def take(self, actor: str, name: str) -> Any:
        if self.locks and not self.hold(("session", name), actor):
            return BLOCKED
        session = self.sessions.setdefault(name, Session(None, None))
        return [(session.handle, 1)]

    def keep(self, actor: str, name: str, handle: UUID | None) -> Any:
        session = self.sessions.setdefault(name, Session(None, None))
        session.handle = handle

        def show() -> None:
            session.seen = handle

        self.run_after_commit(actor, show)
        return []

    def release(self, actor: str, handle: UUID) -> Any:
        for name, session in list(self.sessions.items()):
            if session.seen == handle:
                if self.locks and not self.hold(("session", name), actor):
                    return BLOCKED
                if session.handle == handle:
                    del self.sessions[name]
                    return [("end",)]
        return []

    # ------------------------------------------------ verbs

    def begin(self) -> UUID:
        handle = UUID(int=len(self.streams) + 1)
        self.streams[handle], self.open[handle] = [], True
        return handle

    def send(self, actor: str, handle: UUID, message: str) -> Any:
        if not self.hold(handle, actor):
            return BLOCKED
        if not self.open[handle]:
            return BrokerError(8429, "DI")
        self.streams[handle].append(message)
        return 0

    def receive(self, actor: str) -> list[Any]:
        for handle in sorted(self.armed):
            if self.hold(handle, actor):
                self.armed.discard(handle)
                self.queue.append((handle, TIMER))
        if not self.queue:
            return []
        handle, kind = self.queue.pop(0)
        return [SimpleNamespace(**vars(kind), conversation_handle=handle, service_name="from", message_body=None)]

    def end(self, actor: str, handle: UUID) -> Any:
        if not self.hold(handle, actor):
            return BLOCKED
        self.open[handle] = False
        return None

    def end_by_target(self, *, early: bool) -> Any:
        """Let the target end a conversation whose stream is over, or with `early` the first one in any case."""
        for handle, stream in self.streams.items():
            if self.open[handle] and (early or stream[-1:] == ["end"]) and handle not in self.held:
                self.open[handle] = False
                self.queue.append((handle, END))
                return None
        return BLOCKED


class Transaction:
    """The verbs of one actor as steps."""

    def __init__(self, world: World, actor: str) -> None:
        self.world, self.actor = world, actor
        self.connection = SimpleNamespace(
            info=SimpleNamespace(backend_pid=1), pgconn=SimpleNamespace(transaction_status=TransactionStatus.INTRANS)
        )

    async def _do(self, steps: Any) -> Any:
        statement = next(steps)
        rows = await Do(lambda: self.world.statement(self.actor, statement.name, statement.parameters))
        try:
            steps.send(rows)
        except StopIteration as error:
            return error.value
        raise AssertionError("one statement each")

    async def begin_dialog(self, *services: str, **options: Any) -> UUID:
        return self.world.begin()

    async def begin_conversation_timer(self, handle: UUID, seconds: int) -> None:
        self.world.run_after_commit(self.actor, lambda: self.world.armed.add(handle))  # the timer fires at once

    async def send(self, handle: UUID, message_type: str, body: object = "end") -> Any:
        result = await Do(lambda: self.world.send(self.actor, handle, body))
        if isinstance(result, BrokerError):
            raise result
        return result

    async def receive(self, queue: str, *, wait: float = 0) -> list[Any]:
        return await Do(lambda: self.world.receive(self.actor))

    async def end_conversation(self, handle: UUID) -> None:
        await Do(lambda: self.world.end(self.actor, handle))


class Database:
    database_id = 1
    instance = SimpleNamespace(clock=lambda: None)

    def __init__(self, world: World, actor: str) -> None:
        self.world, self.actor = world, actor

    @asynccontextmanager
    async def transaction(self) -> Any:
        yield Transaction(self.world, self.actor)
        await Do(lambda: self.world.commit(self.actor))

    async def _do(self, steps: Any) -> Any:
        steps.close()
        return "queue"


class SendsFirst(sb.AsyncConversationPool):
    """A pool with the wrong lock order: the conversation first, then the row."""

    async def _end_stream(self, transaction: Any, handle: UUID) -> None:
        try:
            await transaction.send(handle, "end")
        except BrokerError:
            return
        await transaction._do(recycling.release(handle))


class AnswersAtOnce(sb.AsyncConversationPool):
    """A pool of the published form: it answers a timer in the transaction that received and fired it."""

    async def note(self, transaction: Any, messages: list[Any]) -> None:
        for message in messages:
            if message.is_timer:
                await self._end_stream(transaction, message.conversation_handle)


Actors = Callable[[World, type[sb.AsyncConversationPool]], dict[str, Coroutine[Any, Any, Any]]]


class Wrong(Exception):
    """An interleaving that breaks a guarantee."""


def explore(actors: Actors, pool: type[sb.AsyncConversationPool] = sb.AsyncConversationPool, **options: Any) -> int:
    """Run every interleaving that leads to a new state, and return the number of complete ones."""
    seen: set[object] = set()
    complete = 0
    stack: list[tuple[str, ...]] = [()]
    while stack:
        schedule = stack.pop()
        world = World(**options)
        waiting = {
            name: [state_of_actor, state_of_actor.send(None), ()]
            for name, state_of_actor in actors(world, pool).items()
        }
        for name in schedule:
            assert advance(waiting, name)
        state = (world.describe(), tuple((name, str(state_of_actor[2])) for name, state_of_actor in waiting.items()))
        if state in seen:
            close(waiting)
            continue
        seen.add(state)
        able = []
        for name, state_of_actor in waiting.items():
            if state_of_actor[1] is not None and can(actors, pool, options, schedule, name):
                able.append(name)
        if able:
            stack += [(*schedule, name) for name in able]
        else:
            left = [
                name
                for name, state_of_actor in waiting.items()
                if state_of_actor[1] is not None and not name.startswith("target")
            ]
            if left:
                raise Wrong(f"deadlock of {left} after {schedule}")
            judge(world, schedule)
            complete += 1
        close(waiting)
    return complete


def advance(waiting: dict[str, list[Any]], name: str) -> bool:
    """Do the actor's step. Return False if it is blocked."""
    coroutine, step, history = waiting[name]
    result = step()
    if result is BLOCKED:
        return False
    try:
        waiting[name][1:] = [coroutine.send(result), (*history, str(result))]
    except StopIteration:
        waiting[name][1:] = [None, (*history, "done")]
    return True


def can(actors: Actors, pool: Any, options: dict[str, Any], schedule: tuple[str, ...], name: str) -> bool:
    """Return True if the actor is not blocked after this schedule."""
    world = World(**options)
    waiting = {
        state_of_actor: [coroutine, coroutine.send(None), ()]
        for state_of_actor, coroutine in actors(world, pool).items()
    }
    for actor in schedule:
        advance(waiting, actor)
    able = advance(waiting, name)
    close(waiting)
    return able


def close(waiting: dict[str, list[Any]]) -> None:
    for coroutine, *_ in waiting.values():
        coroutine.close()


def judge(world: World, schedule: tuple[str, ...]) -> None:
    sent = [message for stream in world.streams.values() for message in stream if message != "end"]
    if sorted(sent) != sorted(world.to_send):
        raise Wrong(f"lost or doubled: {sent} after {schedule}")
    for stream in world.streams.values():
        if "end" in stream[:-1]:
            raise Wrong(f"after the end of the stream: {stream} after {schedule}")
        if [m for m in stream if m[0] == "a"] != sorted(m for m in stream if m[0] == "a"):
            raise Wrong(f"out of order: {stream} after {schedule}")


async def sending(world: World, pool: type[sb.AsyncConversationPool], actor: str, *texts: str, **options: Any) -> None:
    database: Any = Database(world, actor)
    used = pool(database, "from", "to", **options)
    world.to_send += texts
    for text in texts:
        async with database.transaction() as transaction:
            await used.send(transaction, "line", text, key="k")  # type: ignore[arg-type]


async def recycling_once(world: World, pool: type[sb.AsyncConversationPool], actor: str) -> None:
    database: Any = Database(world, actor)
    await pool(database, "from", "to").answer()


async def target(world: World, *, early: bool) -> None:
    await Do(lambda: world.end_by_target(early=early))


def two_senders(world: World, pool: type[sb.AsyncConversationPool]) -> dict[str, Coroutine[Any, Any, Any]]:
    return {
        "a": sending(world, pool, "a", "a1", "a2"),
        "b": sending(world, pool, "b", "b1"),
        "r": recycling_once(world, pool, "r"),
    }


def two_recyclers(world: World, pool: type[sb.AsyncConversationPool]) -> dict[str, Coroutine[Any, Any, Any]]:
    return {
        "a": sending(world, pool, "a", "a1"),
        "r": recycling_once(world, pool, "r"),
        "s": recycling_once(world, pool, "s"),
        "target": target(world, early=False),
    }


def a_limit_and_a_timer(world: World, pool: type[sb.AsyncConversationPool]) -> dict[str, Coroutine[Any, Any, Any]]:
    return {
        "a": sending(world, pool, "a", "a1", "a2", messages=1),
        "b": sending(world, pool, "b", "b1"),
        "r": recycling_once(world, pool, "r"),
    }


def a_target_that_ends_early(world: World, pool: type[sb.AsyncConversationPool]) -> dict[str, Coroutine[Any, Any, Any]]:
    return {
        "a": sending(world, pool, "a", "a1", "a2"),
        "r": recycling_once(world, pool, "r"),
        "target": target(world, early=True),
    }


@pytest.mark.slow
@pytest.mark.parametrize("actors", [two_senders, two_recyclers, a_limit_and_a_timer, a_target_that_ends_early])
def test_no_interleaving_loses_a_message_or_sends_one_after_the_end(actors: Actors) -> None:
    assert explore(actors) > 20


@pytest.mark.parametrize(
    ("pool", "options", "words"),
    [
        (SendsFirst, {}, "deadlock"),
        (AnswersAtOnce, {}, "deadlock"),
        (sb.AsyncConversationPool, {"locks": False}, "after the end|lost"),
    ],
)
def test_the_explorer_finds_known_defects(
    pool: type[sb.AsyncConversationPool], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(Wrong, match=words):
        explore(two_senders, pool, **options)


def test_ten_conversations_are_tried() -> None:
    world = World()
    world.send = lambda *_: BrokerError(8429, "ER")  # type: ignore[method-assign]
    work = sending(world, sb.AsyncConversationPool, "a", "a1")
    step = work.send(None)
    with pytest.raises(sb.InstanceError, match=r"10 conversations in a row.*8429"):
        while True:
            step = work.send(step())
    assert len(world.streams) == 10
