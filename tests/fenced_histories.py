"""Random histories of a restricted role and the in-memory double, with the steps of `random_histories`."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, ClassVar
from urllib.parse import quote
from uuid import UUID

import psycopg
from hypothesis import strategies as st
from hypothesis.stateful import precondition, rule

import servicebroker as sb
import side_by_side
from portal import deliver
from random_histories import NOBODY, Model, Rows
from side_by_side import ANSWER, ASK, DATABASES, DOCUMENT, LATE, MARK, PLAIN, QUEUES, UNUSED, Pair

ROLE = "fenced_model"


SENT = (
    *((PLAIN, b"x"), (PLAIN, "text"), (DOCUMENT, b"<a/>"), (MARK, b""), (ASK, b""), (ANSWER, b"x"), (UNUSED, b"")),
    ("//unknown", b""),
)


class RestrictedDatabase:
    """A database whose verbs run as the restricted role, and all other methods as the owner."""

    role: ClassVar[sb.Instance]

    def __init__(self, owner: sb.Database) -> None:
        self._owner, self._verbs = owner, RestrictedDatabase.role.database(owner.name)
        self.name = owner.name

    def __getattr__(self, name: str) -> Any:
        return getattr(self._verbs if name in _VERBS else self._owner, name)


_VERBS = {
    *("begin_dialog", "begin_conversation_timer", "send", "send_batch", "receive", "get_conversation_group"),
    *("move_conversation", "end_conversation"),
}


class FencedModel(Model):
    """Each verb is a separate transaction, after which the owner delivers. The time of both sides does not advance."""

    spoken = RestrictedDatabase
    _number = st.integers(0, 60)

    # a transaction sees its sent messages only after the delivery, and the clock is the server's
    begin_transaction = end_transaction = set_savepoint = receive_and_put_back = leave_savepoint = jump = None
    begin_and_send = None  # type: ignore[assignment] # likewise

    def step(self, kind: str, pair: Pair, verb: Callable[[Any], Any], *, in_order: bool = True, **more: Any) -> None:
        def call_and_deliver(database: Any) -> Any:
            try:
                return verb(database)
            finally:
                if isinstance(database, RestrictedDatabase):
                    self.deliver()

        super().step(kind, pair, call_and_deliver, in_order=False, **more)

    def deliver(self) -> None:
        with self.real.connection() as connection:
            deliver(connection, self.clock())

    def handle(self, which: int) -> UUID:
        """Choose a handle of this database, because other databases are invisible without dbo."""
        endpoints = self.double._memory.endpoints
        handles = [handle for handle in reversed(endpoints) if QUEUES.get(endpoints[handle].service.queue.name) == "A"]
        return handles[which % len(handles)] if handles and which % 23 != 22 else NOBODY

    def run_maintenance(self) -> None:
        """Do no maintenance: time stands still, so nothing is due."""
        self.deliver()

    def compare(self, *, in_order: bool = True) -> None:
        super().compare(in_order=False)

    @rule(
        which=_number,
        source=st.sampled_from(["//near", "//near", "//near", "//far", "//missing"]),
        to=st.sampled_from(["//far", "//far", "//second", "//other", LATE, "//near", "//nowhere"]),
        related=st.sampled_from(["", "", "conversation", "group"]),
        other=_number,
        contract=st.sampled_from([side_by_side.CONTRACT, side_by_side.SMALL, "//none"]),
        broker_instance=st.sampled_from([None, None, "CURRENT DATABASE"]),
    )
    def begin(self, which: int, source: str, to: str, related: str, other: int, **options: Any) -> None:
        if related == "conversation":
            options["related_conversation"] = self.handle(other)
        elif related == "group":
            options["related_conversation_group"] = self.group(other)
        self.step("begin", self.session(which), lambda db: db.begin_dialog(source, to, **options))

    # The target refuses at delivery: with the queue off or the broker disabled that is later than SEND.

    @precondition(Model.has_conversations)
    @rule(
        which=_number,
        other=_number,
        what=st.sampled_from(SENT),
    )
    def send(self, which: int, other: int, what: tuple[str, Any]) -> None:
        self.step_on("send", which, other, lambda db, handle: db.send(handle, *what))

    @precondition(Model.has_conversations)
    @rule(which=_number, other=_number, kind=st.sampled_from([PLAIN, DOCUMENT]), many=st.integers(1, 4))
    def send_batch(self, which: int, other: int, kind: str, many: int) -> None:
        self.step_on("batch", which, other, lambda db, handle: db.send_batch(handle, kind, [b"<a/>"] * many))

    @precondition(Model.has_conversations)
    @rule(which=_number, others=st.lists(_number, min_size=1, max_size=3), what=st.sampled_from(SENT))
    def send_to_several(self, which: int, others: list[int], what: tuple[str, Any]) -> None:
        handles = [self.handle(other) for other in others]
        self.step("multicast", self.session(which), lambda db: db.send(handles, *what))

    @rule(
        what=st.sampled_from(["off", "on", "on", "late", "rehouse", "new", "priority"]),
        which=_number,
    )
    def define(self, what: str, which: int) -> None:
        self.definition(what, which)

    @precondition(Model.has_conversations)
    @rule(which=_number, other=_number, seconds=st.sampled_from([3_600, 86_400]))
    def begin_conversation_timer(self, which: int, other: int, seconds: int) -> None:
        """Set only timers that fire after the end of a slow history."""
        super().begin_conversation_timer(which, other, seconds)

    def see(self, text: str, *parameters: object) -> Rows:
        """Compare without times, numbers of refused messages and transmission statuses."""
        rows = super().see(text, *parameters)
        doubles = [pair.double for pair in self.databases.values()]
        if text == side_by_side._ENDPOINTS:
            known = {row["conversation_handle"]: row for double in doubles for row in double.conversation_endpoints()}
            return [self._as_known(row, known[row[0]]) if row[0] in known else row for row in rows]
        if text == side_by_side._TRANSMISSIONS:
            waits = [row for double in doubles for row in double.transmission_queue()]
            status_rows = {(row["conversation_handle"], row["message_sequence_number"]): row for row in waits}
            column = side_by_side._TRANSMISSION.split(", ").index("transmission_status")
            return [
                (*row[:column], status_rows[row[0], row[4]]["transmission_status"], *row[column + 1 :])
                if (row[0], row[4]) in status_rows
                else row
                for row in rows
            ]
        return rows

    def _as_known(self, row: Sequence[Any], known: dict[str, Any]) -> tuple[Any, ...]:
        columns = side_by_side._ENDPOINT.split(", ")
        values = list(row)
        free = {"lifetime"}
        if values[columns.index("state")] in ("ER", "DI", "CD", "DO"):
            free |= {"send_sequence", "receive_sequence", "end_dialog_sequence"}
        for column in free:
            values[columns.index(column)] = known[column]
        for index, column in ((-3, "security_timestamp"), (-2, "dialog_timer")):
            if (values[index] is None) is (known[column] is None):
                values[index] = known[column]
        return tuple(values)


@contextmanager
def restricted_role(model: type[Model], url: str) -> Iterator[None]:
    """Give a restricted role all permissions on the model's objects, and its own connection."""
    with model.real.connection() as connection:
        connection.execute(f"create role {ROLE}")
    try:
        for name in DATABASES:
            own = [queue for queue, queue_database in QUEUES.items() if queue_database == name]
            model.real.grant_rights(ROLE, database=name, receive=own)
            model.real.database(name).grant("CONTROL", ROLE)  # also closes the instance's connections
        with sb.open(f"{url}&options={quote(f'-c role={ROLE}')}") as RestrictedDatabase.role:
            yield
    finally:
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute(f"drop owned by {ROLE}; drop role {ROLE}")  # type: ignore[call-overload]
