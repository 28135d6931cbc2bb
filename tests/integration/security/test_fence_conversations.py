"""Conversations of a restricted role: groups, ends, timers, delays and schedules work as for the owner."""

from __future__ import annotations

from collections import Counter
from datetime import datetime, timedelta
from functools import partial
from uuid import uuid4

import psycopg
import pytest

import servicebroker as sb
from fence_support import MALLORY, SECRET, TwoRoles, conversation, deliver_now, in_queue
from servicebroker.api.maintenance import release
from servicebroker.model import waiting
from servicebroker.operations import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.schedules import KeepSchedule
from servicebroker.store import locks
from servicebroker.store.statement_counts import counts_of
from support import (
    count_blocked_sessions,
    eventually,
    group_of,
    in_thread,
    query,
    queue_number,
    refused,
    state,
    wait_until_blocked,
)


def test_a_new_conversation_cannot_join_or_lock_a_foreign_group(two_roles: TwoRoles) -> None:
    begin = (
        "select handle, refusal from servicebroker_fence.begin_conversation(%s, '//bank/Mallory', '//bank/Den', "
        "'//bank/Contract', 60, null, %s, %s, false, null, null, null)"
    )
    alices, _ = conversation(two_roles, "Alice", "Vault", b"")
    number, url = two_roles.database.database_id, two_roles.database.instance.url
    with psycopg.connect(url) as owner, psycopg.connect(two_roles.mallory, autocommit=True) as mallory:
        held = (
            "select conversation_group_id, pg_advisory_xact_lock(%s, uuid_hash(conversation_group_id)) "
            "from servicebroker.conversation_endpoints where conversation_handle = %s"
        )
        ((group, _),) = owner.execute(held, (locks.CONVERSATION_GROUP, alices)).fetchall()
        mallory.execute("set statement_timeout = '5s'")
        for related in ((alices, None), (None, group)):
            ((handle, refusal),) = mallory.execute(begin, (number, *related)).fetchall()
            assert handle is None
            assert refusal[0] == "9610"
        ((first, refusal),) = mallory.execute(begin, (number, None, None)).fetchall()
        assert refusal is None
        ((second, refusal),) = mallory.execute(begin, (number, first, None)).fetchall()
        assert (second is not None, refusal) == (True, None)


def test_a_new_conversation_leaves_with_its_messages(two_roles: TwoRoles) -> None:
    """Each takes one statement, and gives no access to the group or handle of another role."""
    with sb.open(two_roles.mallory, upkeep=None) as instance:
        bank = instance.database("Bank")
        with instance.connection() as connection:
            counts = counts_of(connection)

        def ask(*bodies: bytes, contract: str = "//bank/Contract") -> int:
            """Begin a conversation and send. Return the number of statements."""
            counts.take()
            with bank.transaction() as tx:
                handle = tx.begin_dialog("//bank/Mallory", "//bank/Den", contract=contract)
                assert [tx.send(handle, "//bank/Order", body) for body in bodies] == list(range(len(bodies)))
            calls = sum(calls for calls, _ in counts.take().values())
            deliver_now(two_roles)
            return calls

        deliver_now(two_roles)
        before = len(in_queue(two_roles, "Den"))
        assert ask(b"1") == 2
        assert ask(b"2") == 1
        assert ask(b"3", b"4", b"5") == 1
        assert in_queue(two_roles, "Den")[before:] == [b"1", b"2", b"3", b"4", b"5"]
        with refused(8425):
            ask(b"6", contract="//bank/None")
        two_roles.database.drop_service("//bank/Mallory")
        try:
            with refused(8423, "//bank/Mallory"):
                ask(b"7")
        finally:
            two_roles.database.create_service("//bank/Mallory", "Mallory", ["//bank/Contract"])
            two_roles.database.grant("SEND", MALLORY, service="//bank/Mallory")
        with refused(8423, "//bank/Mallorys"), bank.transaction() as tx:
            tx.begin_dialog("//bank/Mallorys", "//bank/Den", contract="//bank/Contract")
        assert ask(b"8") == 2
        assert in_queue(two_roles, "Den")[-1] == b"8"
    alices, _ = conversation(two_roles, "Alice", "Vault", b"")
    group = group_of(two_roles.database, alices)
    begin = (
        "select is_done, refusal[1] from servicebroker_fence.begin_and_send(%s, %s, %s, '//bank/Mallory', "
        "'//bank/Den', '//bank/Contract', 60, null, false, array['//bank/Order'], array['x'::bytea])"
    )
    with psycopg.connect(two_roles.mallory, autocommit=True) as mallory:
        for drawn, number in (((uuid4(), group), "9610"), ((alices, uuid4()), "402"), ((None, None), "402")):
            assert mallory.execute(begin, (two_roles.database.database_id, *drawn)).fetchall() == [(False, number)]


def test_when_both_sides_have_ended_neither_is_told(two_roles: TwoRoles) -> None:
    """The restricted role ends its side while the other side's EndDialog waits, since the queue is off."""
    database = two_roles.database
    mallory, den = conversation(two_roles, "Mallory", "Den", b"x")
    database.alter_queue("Mallory", status=False)
    database.end_conversation(den)
    assert [state(database, handle) for handle in (mallory, den)] == ["CO", "DO"]
    with sb.open(two_roles.mallory) as instance:
        instance.database("Bank").end_conversation(mallory)
    assert [state(database, handle) for handle in (mallory, den)] == [None, "CD"]
    waits = "select from servicebroker.transmission_queue where conversation_handle in (%s, %s)"
    assert query(database, waits, mallory, den) == []
    database.alter_queue("Mallory", status=True)
    assert database.instance.check().findings == []


def test_an_end_waits_for_a_dialog_that_joins_the_group_of_the_other_side(two_roles: TwoRoles) -> None:
    """The END of the peer removes the group's last conversation, but the group stays for the new one."""
    database = two_roles.database
    den, mallory = conversation(two_roles, "Den", "Mallory", b"x")
    group = group_of(database, den)
    database.alter_queue("Mallory", status=False)
    database.end_conversation(den)
    assert state(database, den) == "DO"
    with sb.open(two_roles.mallory) as instance:
        with database.transaction() as beginning:
            joined = beginning.begin_dialog(
                "//bank/Den", "//bank/Mallory", contract="//bank/Contract", related_conversation_group=group
            )
            ending = in_thread(instance.database("Bank").end_conversation, mallory)
            wait_until_blocked(database)
        ending.result(30)
    database.alter_queue("Mallory", status=True)
    assert state(database, den) is None
    assert group_of(database, joined) == group
    assert database.instance.check().findings == []


@pytest.mark.parametrize("how", ["END", "MOVE"])
def test_a_group_that_a_role_and_another_leave_at_once_is_removed(two_roles: TwoRoles, how: str) -> None:
    """The role's conversation leaves the group. The END of a peer, under another group's lock, removes the other."""
    database = two_roles.database
    ending, target = conversation(two_roles, "Mallory", "Den", b"x")
    group = group_of(database, ending)
    begin = partial(database.begin_dialog, "//bank/Mallory", "//bank/Den", contract="//bank/Contract")
    leaving, elsewhere = begin(related_conversation_group=group), group_of(database, begin())
    database.alter_queue("Den", status=False)
    database.end_conversation(ending)
    with sb.open(two_roles.mallory) as instance:
        with instance.database("Bank").transaction() as transaction:
            if how == "MOVE":
                transaction.move_conversation(leaving, elsewhere)
            else:
                transaction.end_conversation(leaving)
            other = in_thread(database.end_conversation, target)
            eventually(lambda: other.done() or count_blocked_sessions(database))
        other.result(30)
    database.alter_queue("Den", status=True)
    text = "select from servicebroker.conversation_groups where conversation_group_id = %s"
    assert query(database, text, group) == []


def test_a_message_sent_before_an_expired_side_ended_is_not_delivered(two_roles: TwoRoles) -> None:
    """The sender uses the time of its call, and then waits for a connection."""
    database = two_roles.database
    mallory, den = conversation(two_roles, "Mallory", "Den", b"x")
    before = database.instance.clock()
    text = "update servicebroker.conversation_endpoints set lifetime = now() where conversation_handle in (%s, %s)"
    with sb.open(database.instance.url, clock=lambda: before, upkeep=None) as waiting:
        assert waiting.database("Bank").send(den, "//bank/Order", b"the way is remembered") == 1
        with database.instance.connection() as connection:
            connection.execute(text, (mallory, den))
        with sb.open(two_roles.mallory) as instance:
            instance.database("Bank").end_conversation(mallory)
        assert [state(database, handle) for handle in (mallory, den)] == [None, "CO"]
        assert waiting.database("Bank").send(den, "//bank/Order", b"late") == 2
    text = f"select from servicebroker.queue_{queue_number(database, 'Mallory')} where conversation_handle = %s"
    assert query(database, text, mallory) == []
    assert database.instance.check().findings == []


def test_failures_of_timers_are_counted_for_each_timer(two_roles: TwoRoles) -> None:
    mallory, _ = conversation(two_roles, "Mallory", "Den", b"x")
    counts: list[int] = []

    def fail(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError("no")

    def watching(failure: sb.Failure) -> sb.Verdict:
        counts.append(failure.count)
        assert len(counts) < 10
        return sb.Retry() if failure.count == 1 else sb.Ignore()

    text = "select failures from servicebroker.failed_messages where conversation_handle = %s"
    with sb.open(two_roles.mallory) as instance:
        app = instance.database("Bank")
        while app.receive("Mallory"):
            pass
        app.begin_conversation_timer(mallory, 0)
        assert app.process("Mallory", fail, poison=watching) == 2
        app.begin_conversation_timer(mallory, 0)
        app.process("Mallory", fail, poison=lambda failure: sb.Retry(after=60))
        assert query(two_roles.database, text, mallory) == [(1,)]
        app.begin_conversation_timer(mallory, 60)
        assert query(two_roles.database, text, mallory) == []
        app.end_conversation(mallory)
    assert counts == [1, 2]


def test_messages_that_were_set_aside_are_for_db_owner(two_roles: TwoRoles) -> None:
    with sb.open(two_roles.mallory, upkeep=None) as instance:
        bank = instance.database("Bank")
        for operation in (SetAsideMessages(), DeadLetterGroups(), ReplayMessage(1), DiscardMessage(1)):
            with refused(5011):
                bank.run(operation)


def test_a_role_delays_and_cancels_messages_of_its_own_only(two_roles: TwoRoles) -> None:
    alices, _ = conversation(two_roles, "Alice", "Vault", SECRET)
    two_roles.database.send(alices, "//bank/Order", SECRET, delay=60)
    with sb.open(two_roles.mallory, upkeep=None) as instance:
        bank = instance.database("Bank")
        handles = [
            bank.begin_dialog("//bank/Mallory", "//bank/Den", contract="//bank/Contract", encryption=False)
            for _ in range(2)
        ]
        deliver_now(two_roles)  # messages of other tests
        before = Counter(in_queue(two_roles, "Den"))
        assert bank.send(handles[0], "//bank/Order", b"1", delay=0.2) == 0
        assert bank.send_batch(handles[0], "//bank/Order", [b"2", b"3"], at=instance.clock() + timedelta(hours=1)) == 1
        assert bank.send(handles, "//bank/Order", b"4", delay=timedelta(hours=2)) == [3, 0]
        bank.end_conversation(handles[0])
        assert bank.get_transmission_status(handles[0]) == waiting.DELAYED
        assert [message.message_sequence_number for message in bank.delayed_messages(handles[0])] == [0, 1, 2, 3, 4]
        assert bank.cancel_delayed(handles[0], 2) == 1
        for run, number in (
            (lambda: bank.delayed_messages(), 5011),
            (lambda: bank.delayed_messages(alices), 8494),
            (lambda: bank.cancel_delayed(alices), 8494),
            (lambda: bank.send(handles[1], "//bank/Order", b"x", delay=-1), 402),
            (lambda: bank.send(handles[1], "//bank/Order", b"x", delay=2**31 - 1), 402),
        ):
            with refused(number):
                run()

        def have_arrived() -> bool:
            with two_roles.database.instance.connection() as connection:
                release(connection, two_roles.database.instance.clock())
            deliver_now(two_roles)
            return Counter(in_queue(two_roles, "Den")) - before == Counter([b"1"])

        eventually(have_arrived)
        assert bank.cancel_delayed(handles[0]) == 2
        deliver_now(two_roles)
        assert Counter(in_queue(two_roles, "Den")) - before == Counter([b"1", None])
    assert [message.bytes for message in two_roles.database.delayed_messages(alices)] == [len(SECRET)]


def test_a_role_has_schedules_of_its_own_queues_only(two_roles: TwoRoles) -> None:
    times: list[datetime] = []
    worker, alices = sb.Worker("Mallory"), sb.Worker("Alice")
    worker.every(timedelta(seconds=1), name="job")(lambda tx, message: times.append(message.message_enqueue_time))
    alices.every("@hourly", name="job")(lambda tx, message: None)
    with sb.open(two_roles.mallory, upkeep=None) as instance:
        bank = instance.database("Bank")
        with bank.working(worker):
            eventually(lambda: len(times) >= 2)
        for run, number in (
            (bank.schedules, 5011),
            (lambda: bank.drop_schedule("Mallory", "job"), 5011),
            (lambda: bank.run(KeepSchedule("Alice", "job", alices.schedules["job"])), 229),
        ):
            with refused(number):
                run()
    assert [schedule.name for schedule in two_roles.database.schedules()] == ["job"]
    two_roles.database.drop_schedule("Mallory", "job")
