"""Run random histories on the engine and on the in-memory test double, and compare both after every step.

The steps on the engine use the Python API, or T-SQL text by `spoken_tsql`.
"""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from uuid import UUID, uuid4

import psycopg
from hypothesis import HealthCheck, Phase, seed, settings
from hypothesis import strategies as st
from hypothesis.errors import FlakyStrategyDefinition
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

import servicebroker as sb
import servicebroker.testing
from servicebroker.api.maintenance import run_maintenance
from servicebroker.model import names
from servicebroker.model.poison import Rollbacks
from servicebroker.store import locks
from servicebroker.store.direct import DirectConnection
from servicebroker.testing.receiving import is_due
from side_by_side import (
    ANSWER,
    ASK,
    CONTRACT,
    DATABASES,
    DOCUMENT,
    EXTRA,
    LATE,
    MARK,
    PLAIN,
    SMALL,
    UNUSED,
    Pair,
    Rows,
    comparable_messages,
    compare,
    define,
    forget_everything,
    identity,
    outcome,
)

STEP_COUNT = 80  # of one history
MOST_REPEATED = 2  # histories of a short run; a run of 10,000 steps has one more
LOCK_TIMEOUT = 400  # milliseconds, beyond what a vacuum or a loaded machine takes: then a step "waits" for a lock
NOBODY = UUID(int=7)  # an unknown handle
_CONVERSATION = "select conversation_id from servicebroker.conversation_endpoints where conversation_handle = $1"
_GROUP_LOCKS = (
    f"select pid, objid from pg_locks where locktype = 'advisory' and classid = {locks.CONVERSATION_GROUP} "
    "and database = (select oid from pg_database where datname = current_database())"
)
BEGINNINGS = ("begin", "short")  # steps that begin a conversation
DEFINITIONS = ["off", "on", "on", "type", "late", "rehouse", "disable", "enable", "enable", "new", "error", "priority"]


class Model(RuleBasedStateMachine):
    """The state machine of hypothesis. `spoken` wraps a database of the engine in an object with the same verbs."""

    real: ClassVar[sb.Instance]
    clock: ClassVar[servicebroker.testing.Clock]
    steps: ClassVar[Counter[str]]
    outcomes: ClassVar[Counter[str]]
    spoken: ClassVar[Callable[[sb.Database], Any]] = staticmethod(lambda database: database)

    def __init__(self) -> None:
        super().__init__()
        self.double = servicebroker.testing.Instance(self.clock, self.identify)
        self.databases = {
            name: Pair(self.spoken(self.real.database(name)), define(self.double.database(name, create=True)))
            for name in DATABASES
        }
        self.open: list[Pair] = []
        self.acting = self.databases["A"]
        self.begun: UUID | None = None
        self.is_undone = False
        self.real.poison._rollbacks = Rollbacks()
        self.events = len(self.real.events.recent())

    # ------------------------------------------------------------ steps

    def step(
        self,
        kind: str,
        pair: Pair,
        verb: Callable[[Any], Any],
        *,
        in_order: bool = True,
        spoils: bool = False,
        together: Sequence[UUID] = (),
    ) -> None:
        """Run a verb on both sides, and check that result, error or wait agree, and then the visible state.

        Args:
            in_order: the order of messages must agree, too.
            spoils: the transaction can only roll back after an error.
            together: conversations whose SENDs are sent in one statement. The engine waits for the locks of all before
                it reports that the first is refused.
        """
        self.steps[kind] += 1
        self.acting = pair
        real = outcome(lambda: verb(pair.real))
        self.begun = None
        if kind in BEGINNINGS and real[0] == "done":
            self.begun = real[1] if kind == "begin" else real[1][0]
        # PostgreSQL has undone the transaction, so it has no handles for the endpoints that the double creates in it
        is_open = pair in self.open
        self.is_undone = (is_open or kind == "short") and (real[0] == "waits" or (spoils and real[0] == "refused"))
        double = outcome(lambda: verb(pair.double))
        if double[0] == "refused" and real[0] == "waits" and any(self.waits(pair, handle) for handle in together):
            double = real
        assert double == real, f"{kind}: {double} in the double, {real}"
        self.outcomes[str(real[1]) if real[0] == "refused" else real[0]] += 1
        if self.is_undone and is_open:
            self.finish(pair, undo=True)
        self.is_undone = False
        self.compare(in_order=in_order)

    def waits(self, pair: Pair, handle: UUID) -> bool:
        """Check whether a SEND of the double would wait for another transaction. The caller undoes its effect."""
        transaction = servicebroker.testing.Transaction(self.databases["A"].double, pair.double._session)
        return outcome(lambda: transaction.send(handle, PLAIN, b"x"))[0] == "waits"

    def step_on(self, kind: str, which: int, other: int, verb: Callable[[Any, UUID], Any]) -> None:
        """Run a verb on a conversation. If both sides have one queue, the order of two Errors is undefined."""
        handle, pair = self.handle(other), self.session(which)
        endpoint = (pair.double._session if pair in self.open else self.double._memory).endpoints.get(handle)
        services = self.databases["A"].double.broker.services
        far = services.get(endpoint.far_service) if endpoint else None
        in_order = far is None or far.queue is not endpoint.service.queue
        self.step(kind, pair, lambda tx: verb(tx, handle), in_order=in_order)

    def finish(self, pair: Pair, *, undo: bool) -> None:
        while pair.contexts:
            pair.leave(undo=undo)
        self.open.remove(pair)
        self.acting = self.databases["A"]

    def compare(self, *, in_order: bool = True) -> None:
        """Compare both sides, as the transaction of the last step sees them."""
        databases = {name: pair.double for name, pair in self.databases.items()}
        if self.acting in self.open:
            session = self.acting.double._session
            databases = {
                name: servicebroker.testing.Transaction(database, session) for name, database in databases.items()
            }
        compare(self.see, databases, in_order=in_order)
        events = [event.text for event in self.real.events.recent()[self.events :]]
        assert events == [event.text for event in self.double.events.recent()]
        if not self.open:
            assert self.see(_GROUP_LOCKS) == [], "a session keeps a group lock after its transaction"

    def see(self, text: str, *parameters: object) -> Rows:
        """Return the rows of a query, as the acting transaction of the engine sees them."""
        with self.connection() as connection:
            return connection.run_prepared(text, parameters)

    @contextmanager
    def connection(self) -> Iterator[DirectConnection]:
        if self.acting in self.open:
            yield self.acting.real.connection
        else:
            with self.real.connection() as connection:
                yield connection

    def identify(self, peer: UUID | None) -> tuple[UUID, UUID, UUID]:
        """Return the ids of the engine's endpoint for the double's, because the order within a group is by handle."""
        handle = peer or self.begun
        if self.is_undone:
            return uuid4(), uuid4(), uuid4()
        assert handle is not None
        return identity(self.see, handle, None if peer is None else self.conversation(peer))

    def conversation(self, handle: UUID) -> UUID:
        """Return the conversation id. The engine may have removed an ended initiator after delivering its messages."""
        sessions = [self.double._memory.endpoints, *(pair.double._session.endpoints.changes for pair in self.open)]
        of_double = (session[handle].conversation_id for session in sessions if session.get(handle) is not None)
        conversation_id = next(of_double, None)
        return conversation_id or self.see(_CONVERSATION, handle)[0][0]  # within a step only the engine has it

    # ------------------------------------------------------------ choices

    number = st.integers(0, 60)

    def session(self, which: int) -> Pair:
        """Choose an open transaction, or the database, where each verb is a transaction of its own."""
        choice = [*self.open, self.databases["A"]]
        return choice[which % len(choice)]

    def handle(self, which: int) -> UUID:
        """Choose a handle of any session, newest first, or rarely an unknown one."""
        handles = list(self.double._memory.endpoints)
        for pair in self.open:
            handles += [handle for handle in pair.double._session.endpoints.changes if handle not in handles]
        handles.reverse()
        return handles[which % len(handles)] if handles and which % 23 != 22 else NOBODY

    def group(self, which: int) -> UUID:
        groups = list(self.double._memory.groups)
        return groups[which % len(groups)] if groups and which % 23 != 22 else NOBODY

    def has_conversations(self) -> bool:
        return bool(self.double._memory.endpoints)

    # ------------------------------------------------------------ verbs

    @initialize(texts=st.lists(st.sampled_from(["//far", "//far", "//second", "//other"]), min_size=2, max_size=5))
    def begin_some(self, texts: list[str]) -> None:
        for to in texts:
            self.step("begin", self.databases["A"], lambda db, to=to: db.begin_dialog("//near", to, contract=CONTRACT))
            self.step("send", self.databases["A"], lambda db: db.send(self.handle(0), PLAIN, b"first"))

    @rule(
        which=number,
        source=st.sampled_from(["//near", "//near", "//near", "//far", "//missing"]),
        to=st.sampled_from(["//far", "//far", "//second", "//other", LATE, "//near", "//nowhere"]),
        related=st.sampled_from(["", "", "conversation", "group"]),
        other=number,
        lifetime=st.sampled_from([2**31 - 1, 2**31 - 1, 10, 100]),
        contract=st.sampled_from([CONTRACT, CONTRACT, CONTRACT, SMALL, names.DEFAULT, "//none"]),
        broker_instance=st.sampled_from([None, None, None, "CURRENT DATABASE"]),
    )
    def begin(self, which: int, source: str, to: str, related: str, other: int, **options: Any) -> None:
        if related == "conversation":
            options["related_conversation"] = self.handle(other)
        elif related == "group":
            options["related_conversation_group"] = self.group(other)
        self.step("begin", self.session(which), lambda tx: tx.begin_dialog(source, to, **options))

    @rule(
        which=number,
        to=st.sampled_from(["//far", "//second", "//other", "//nowhere"]),
        priority=st.sampled_from([None, None, 1, 9]),
        idempotency_key=st.sampled_from([None, "a", "b"]),
        idempotency_ttl=st.sampled_from([50, 1_000_000]),
    )
    def begin_with_choices(self, which: int, to: str, **options: Any) -> None:
        self.step("begin", self.session(which), lambda tx: tx.begin_dialog("//near", to, contract=CONTRACT, **options))

    @rule(
        which=number,
        source=st.sampled_from(["//near", "//near", "//near", "//far"]),
        to=st.sampled_from(["//far", "//far", "//far", "//second", "//other", LATE, "//near", "//nowhere"]),
        broker_instance=st.sampled_from([None, None, None, "CURRENT DATABASE"]),
        lifetime=st.sampled_from([2**31 - 1, 2**31 - 1, 100]),
        seconds=st.sampled_from([None, None, None, 5, 200]),
        sends=st.lists(
            st.tuples(st.sampled_from([PLAIN, PLAIN, PLAIN, DOCUMENT, MARK, ASK, ANSWER, EXTRA]), st.booleans()),
            max_size=3,
        ),
    )
    def begin_and_send(
        self, which: int, source: str, to: str, seconds: int | None, sends: list[tuple[str, bool]], **options: Any
    ) -> None:
        """Begin a conversation and send its messages in one transaction, which may already be open."""
        pair = self.session(which)

        def verb(tx: Any) -> list[Any]:
            handle = tx.begin_dialog(source, to, contract=CONTRACT, **options)
            if seconds is not None:
                tx.begin_conversation_timer(handle, seconds)
            return [handle, *(tx.send(handle, kind, b"<a/>" if is_whole else b"<a") for kind, is_whole in sends)]

        def in_own_transaction(database: Any) -> list[Any]:
            with database.transaction() as tx:
                return verb(tx)

        self.step("short", pair, verb if pair in self.open else in_own_transaction, in_order=False, spoils=True)

    @precondition(has_conversations)
    @rule(
        which=number,
        other=number,
        kind=st.sampled_from([PLAIN, PLAIN, PLAIN, PLAIN, DOCUMENT, MARK, ASK, ANSWER, EXTRA, UNUSED, "//unknown"]),
        body=st.sampled_from([b"x", b"", b"<a/>", b"<a", "text"]),
    )
    def send(self, which: int, other: int, kind: str, body: Any) -> None:
        self.step_on("send", which, other, lambda tx, handle: tx.send(handle, kind, body))

    @precondition(has_conversations)
    @rule(which=number, other=number)
    def send_plain(self, which: int, other: int) -> None:
        self.step_on("send", which, other, lambda tx, handle: tx.send(handle, PLAIN, b"plain"))

    @precondition(has_conversations)
    @rule(
        which=number,
        others=st.lists(number, min_size=1, max_size=3),
        kind=st.sampled_from([PLAIN, PLAIN, PLAIN, DOCUMENT, MARK, ANSWER]),
        body=st.sampled_from([b"x", b"", b"<a/>", b"<a"]),
    )
    def send_to_several(self, which: int, others: list[int], kind: str, body: bytes) -> None:
        handles = [self.handle(other) for other in others]
        self.step("multicast", self.session(which), lambda tx: tx.send(handles, kind, body), in_order=False)

    @precondition(has_conversations)
    @rule(
        which=number,
        other=number,
        kind=st.sampled_from([PLAIN, DOCUMENT]),
        broken=st.lists(st.sampled_from([False, False, False, True]), min_size=1, max_size=4),
    )
    def send_batch(self, which: int, other: int, kind: str, broken: list[bool]) -> None:
        bodies = [b"<broken %d" % n if is_broken else b"<a>%d</a>" % n for n, is_broken in enumerate(broken)]
        self.step_on("send batch", which, other, lambda tx, handle: tx.send_batch(handle, kind, bodies))

    @precondition(lambda self: self.has_conversations() and any(hasattr(pair.real, "pipeline") for pair in self.open))
    @rule(
        which=number,
        sends=st.lists(
            st.tuples(number, st.sampled_from([PLAIN, PLAIN, DOCUMENT, MARK, ASK, "//unknown"]), st.booleans()),
            min_size=1,
            max_size=5,
        ),
    )
    def send_in_pipeline(self, which: int, sends: list[tuple[int, str, bool]]) -> None:
        arguments = [(self.handle(other), kind, b"<a/>" if is_whole else b"<a") for other, kind, is_whole in sends]

        def verb(tx: Any) -> list[int]:
            with tx.pipeline() as pipeline:
                assert [tx.send(*send) for send in arguments] == list(range(len(arguments)))
            return list(pipeline.numbers)

        handles = [handle for handle, _, _ in arguments]
        pair = self.open[which % len(self.open)]
        self.step("pipeline", pair, verb, in_order=False, spoils=True, together=handles)

    @rule(
        which=number,
        queue=st.sampled_from(["Near", "Far", "Far", "Other", "Missing"]),
        top=st.sampled_from([None, None, 1, 2, 0]),
        where=st.sampled_from(["", "", "", "handle", "group"]),
        other=number,
    )
    def receive(self, which: int, queue: str, top: int | None, where: str, other: int) -> None:
        options: dict[str, Any] = {"top": top}
        pair = self.databases["B"] if queue == "Other" else self.session(which)
        if len(pair.contexts) > 1:
            pass  # the lock of a group in which WHERE has found nothing goes with its savepoint, which the double keeps
        elif where == "handle":
            options["conversation_handle"] = self.handle(other)
        elif where == "group":
            options["conversation_group_id"] = self.group(other)
        self.step("receive", pair, lambda tx: comparable_messages(tx.receive(queue, **options)))

    @rule(which=number, queue=st.sampled_from(["Near", "Far"]))
    def receive_all(self, which: int, queue: str) -> None:
        self.step("receive", self.session(which), lambda tx: comparable_messages(tx.receive(queue)))

    @rule(
        which=number,
        queue=st.sampled_from(["Near", "Far", "Far"]),
        top=st.sampled_from([None, 1, 1, 2]),
        groups=st.sampled_from([1, 2, 3, 50]),
    )
    def receive_groups(self, which: int, queue: str, top: int | None, groups: int) -> None:
        self.step(
            "receive groups",
            self.session(which),
            lambda tx: comparable_messages(tx.receive(queue, top=top, groups=groups)),
        )

    @rule(which=number, queue=st.sampled_from(["Near", "Far"]))
    def get_conversation_group(self, which: int, queue: str) -> None:
        self.step("get", self.session(which), lambda tx: tx.get_conversation_group(queue))

    @precondition(has_conversations)
    @rule(which=number, other=number, form=st.sampled_from([{}, {}, {"error": (5, "no")}, {"cleanup": True}]))
    def end(self, which: int, other: int, form: dict[str, Any]) -> None:
        handle = self.handle(other)
        self.step("end", self.session(which), lambda tx: tx.end_conversation(handle, **form))

    @rule(which=number, queue=st.sampled_from(["Near", "Far"]), answers=st.booleans())
    def serve(self, which: int, queue: str, answers: bool) -> None:
        """Receive from one conversation, answer and end it, as most applications do."""
        messages: list[Any] = []

        def receive(tx: Any) -> Any:
            messages[:] = tx.receive(queue, top=2)
            return comparable_messages(messages)

        self.step("receive", self.session(which), receive)
        for handle in {message.conversation_handle for message in messages}:
            if answers:
                self.step("answer", self.session(which), lambda tx, to=handle: tx.send(to, PLAIN, b"x"), in_order=False)
            self.step("end", self.session(which), lambda tx, of=handle: tx.end_conversation(of), in_order=False)

    @rule(which=number, to=st.sampled_from(["//far", "//second"]), answers=st.booleans())
    def request(self, which: int, to: str, answers: bool) -> None:
        """Run a conversation from BEGIN to END, unless messages of others lie before its messages in the queues."""
        pair = self.session(which)
        self.step("begin", pair, lambda tx: tx.begin_dialog("//near", to, contract=CONTRACT))
        if self.begun is not None:
            handle = self.begun
            self.step("send", self.session(which), lambda tx: tx.send(handle, PLAIN, b"request"), in_order=False)
        self.serve(which, "Far", answers)
        self.serve(which, "Near", False)

    @precondition(has_conversations)
    @rule(which=number, other=number, seconds=st.sampled_from([5, 60]))
    def begin_conversation_timer(self, which: int, other: int, seconds: int) -> None:
        handle = self.handle(other)
        self.step("timer", self.session(which), lambda tx: tx.begin_conversation_timer(handle, seconds))

    @precondition(has_conversations)
    @rule(which=number, other=number, to=number)
    def move(self, which: int, other: int, to: int) -> None:
        handle, group = self.handle(other), self.group(to)
        self.step("move", self.session(which), lambda tx: tx.move_conversation(handle, group))

    # ------------------------------------------------------------ transactions

    @precondition(lambda self: len(self.open) < 2)
    @rule()
    def begin_transaction(self) -> None:
        self.steps["transaction"] += 1
        contexts = self.databases["A"].real.transaction(), self.databases["A"].double.transaction()
        self.open.append(Pair(contexts[0].__enter__(), contexts[1].__enter__(), [contexts]))

    @precondition(lambda self: self.open)
    @rule(which=number, undo=st.booleans())
    def end_transaction(self, which: int, undo: bool) -> None:
        self.steps["rollback" if undo else "commit"] += 1
        self.finish(self.open[which % len(self.open)], undo=undo)
        self.compare()

    @precondition(lambda self: self.open)
    @rule(which=number)
    def set_savepoint(self, which: int) -> None:
        self.steps["savepoint"] += 1
        pair = self.open[which % len(self.open)]
        contexts = pair.real.savepoint(), pair.double.savepoint()
        for context in contexts:
            context.__enter__()
        pair.contexts.append(contexts)

    @precondition(lambda self: self.open and self.has_conversations())
    @rule(which=number, queue=st.sampled_from(["Near", "Far"]))
    def receive_and_put_back(self, which: int, queue: str) -> None:
        """Receive, and roll back to a savepoint. The group stays locked, and the next reader gets another group."""
        self.set_savepoint(which)
        pair = self.open[which % len(self.open)]
        self.step("receive", pair, lambda tx: comparable_messages(tx.receive(queue)))
        self.steps["rollback to savepoint"] += 1
        pair.leave(undo=True)
        self.compare()
        self.step("receive", self.databases["A"], lambda db: comparable_messages(db.receive(queue)))

    @precondition(lambda self: any(len(pair.contexts) > 1 for pair in self.open))
    @rule(undo=st.sampled_from([True, True, False]))
    def leave_savepoint(self, undo: bool) -> None:
        self.steps["rollback to savepoint" if undo else "release"] += 1
        self.acting = next(pair for pair in self.open if len(pair.contexts) > 1)
        self.acting.leave(undo=undo)
        self.compare()

    # ------------------------------------------------------------ time and definitions

    @precondition(lambda self: not self.open)
    @rule(seconds=st.sampled_from([3, 8, 61, 1801]))
    def jump(self, seconds: int) -> None:
        """Jump, unless several timers or lifetimes of a queue would be due at once: their order is not defined."""
        self.clock.jump(seconds=seconds)
        endpoints = self.double._memory.endpoints.values()
        due = Counter(endpoint.service.queue for endpoint in endpoints if is_due(endpoint, self.clock()))
        if seconds == 1801 or any(count > 1 for count in due.values()):
            self.run_maintenance()

    def run_maintenance(self) -> None:
        self.steps["maintenance"] += 1
        with self.real.connection() as connection:
            run_maintenance(connection, self.clock())
        self.double.upkeep()
        self.compare(in_order=False)

    @precondition(lambda self: not self.open)
    @rule(
        what=st.sampled_from(DEFINITIONS),
        which=number,
    )
    def define(self, what: str, which: int) -> None:
        self.definition(what, which)

    def definition(self, what: str, which: int) -> None:
        self.run_maintenance()
        name = ("A", "A", "A", "B")[which % 4]
        queue = "Other" if name == "B" else ("Near", "Far", "Far")[which % 3]
        verbs: dict[str, Callable[[Any], None]] = {
            "off": lambda db: db.alter_queue(queue, status=False),
            "on": lambda db: db.alter_queue(queue, status=True, poison_message_handling=which % 7 > 0),
            "type": lambda db: db.alter_message_type(PLAIN, ("NONE", "NONE", "EMPTY", "WELL_FORMED_XML")[which % 4]),
            "late": lambda db: toggle_service(db, which),
            "rehouse": lambda db: db.alter_service("//second", queue=("Far", "Near")[which % 2]),
            "disable": lambda db: db.alter(disable_broker=True),
            "enable": lambda db: db.alter(enable_broker=True),
            "new": lambda db: db.alter(new_broker=True),
            "error": lambda db: db.alter(error_broker_conversations=True),
            "priority": lambda db: toggle_priority(db, which),
        }
        self.step(what, self.databases[name], verbs[what], in_order=False)

    def teardown(self) -> None:
        """Remove everything of this history before the next one."""
        while self.open:
            self.finish(self.open[0], undo=True)
        with self.real.connection() as connection:
            for name in self.databases:
                forget_everything(self.real.database(name), connection)


def toggle_service(database: Any, which: int) -> None:
    try:
        database.create_service(LATE, "Other" if database.name == "B" else "Far", [CONTRACT][: which % 5])
    except sb.BrokerError as error:
        if error.number != 2714:
            raise
        database.drop_service(LATE)


def toggle_priority(database: Any, which: int) -> None:
    try:
        sides = {"remote_service_name": "//far"} if which % 3 else {}
        sides |= {"local_service_name": ("//near", "//far")[which % 5 % 2]} if which % 5 else {}
        database.create_broker_priority("p", contract_name=CONTRACT, priority_level=which % 12, **sides)
    except sb.BrokerError as error:
        if error.number != 33303:
            raise
        database.drop_broker_priority("p")


@contextmanager
def open_for_model(model: type[Model], url: str) -> Iterator[None]:
    """Open a new instance with the objects of both databases, for a model."""
    with psycopg.connect(url, autocommit=True) as connection:
        # a vacuum that truncates a table locks it for a moment, which would look like another transaction
        for setting in (f"lock_timeout = {LOCK_TIMEOUT}", "vacuum_truncate = off"):
            connection.execute(f"alter database {connection.info.dbname} set {setting}")  # type: ignore[call-overload]
    model.clock, model.steps, model.outcomes = servicebroker.testing.Clock(), Counter(), Counter()
    with sb.open(url, clock=model.clock, upkeep=None) as model.real:
        for name in DATABASES:
            define(model.real.database(name, create=True))
        yield


def run_histories(
    model: type[Model],
    url: str,
    steps: int,
    rng: random.Random,
    record_property: Callable[[str, object], None],
    defined: Callable[[], None] = lambda: None,
) -> None:
    """Do random steps on a new instance, or continue; `defined` is called once its objects are there."""
    repeated_count = 0  # histories that went otherwise than before
    with open_for_model(model, url):
        defined()
        while (left := steps - model.steps.total()) > 0:  # a history may be shorter than STEPS
            histories = settings(
                max_examples=1 + left // STEP_COUNT,
                stateful_step_count=STEP_COUNT,
                deadline=None,
                database=None,
                phases=[Phase.generate],
                suppress_health_check=list(HealthCheck),
            )
            try:
                run_state_machine_as_test(seed(rng.getrandbits(32))(model), settings=histories)
            except FlakyStrategyDefinition:  # began as an earlier one, and a vacuum held a lock in one of them
                repeated_count += 1
                assert repeated_count < MOST_REPEATED + steps // 10_000
    record_property(
        "steps",
        f"{model.steps.total()} steps: {dict(model.steps)}, {dict(model.outcomes)}, "
        f"{repeated_count} repeated otherwise",
    )
