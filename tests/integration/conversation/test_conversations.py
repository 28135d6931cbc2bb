"""The life cycle of a conversation: the forms of END, states, timers, and rows that remain after the end."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from uuid import UUID

import pytest

import servicebroker as sb
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    bodies,
    create_endpoint,
    define_standard_set,
    group_of,
    in_thread,
    leftovers,
    open_dialog,
    peer_handle,
    query,
    refused,
    rolled_back,
    state,
    wait_until_blocked,
)

pytestmark = pytest.mark.both_apis

FORMS = [{}, {"error": (127, "Unable to <process> & 'more' ü")}, {"cleanup": True}]


@pytest.mark.parametrize("form", FORMS, ids=["plain", "error", "cleanup"])
@pytest.mark.parametrize("expected", ["SO", "CO", "DI", "ER", "DO", "CD"])
def test_every_form_of_end_in_every_state(database: sb.Database, expected: str, form: dict[str, object]) -> None:
    handle, queue = create_endpoint(database, expected)
    assert state(database, handle) == expected
    if expected in ("DO", "CD") and "cleanup" not in form:
        with refused(8427, f"'{expected}'"):
            database.end_conversation(handle, **form)  # type: ignore[arg-type]
        assert state(database, handle) == expected
        return
    far = peer_handle(database, handle)
    database.end_conversation(handle, **form)  # type: ignore[arg-type]
    assert state(database, handle) is None
    assert database.receive(queue) == []
    with refused(8426, str(handle)):
        database.end_conversation(handle)
    messages = database.receive(STOCK_QUEUE)
    if expected == "CO":
        after = {"plain": "DI", "error": "ER", "cleanup": "CO"}
        assert state(database, far) == after["cleanup" if "cleanup" in form else "error" if form else "plain"]
        assert len(messages) == (0 if "cleanup" in form else 1)
    else:
        assert messages == []


@pytest.mark.feature(64, 88, 91, 94, 101)
def test_a_plain_end_comes_after_the_messages_sent_before(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    with database.transaction() as transaction:
        transaction.send(initiator, ORDER, b"1")
        transaction.send(initiator, ORDER, b"2")
        transaction.end_conversation(initiator)
    messages = database.receive(STOCK_QUEUE)
    assert bodies(messages) == [b"1", b"2", None]
    assert [message.message_sequence_number for message in messages] == [1, 2, 3]
    assert [message.is_end_dialog for message in messages] == [False, False, True]
    assert (messages[2].message_type_name, messages[2].validation) == (sb.END_DIALOG, "E")
    assert state(database, target) == "DI"
    assert database.receive(ORDERS_QUEUE) == []
    database.end_conversation(target)
    assert state(database, target) == "CD"
    assert database.receive(ORDERS_QUEUE) == []


@pytest.mark.feature(64, 89, 92, 94, 101)
def test_an_error_is_received_before_the_data(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(target, REPLY, b"data")
    database.end_conversation(target, error=(127, "Unable to <process> & 'more' ü"))
    assert state(database, initiator) == "ER"
    error, data = database.receive(ORDERS_QUEUE)
    assert error.is_error
    assert (error.message_type_name, error.validation) == (sb.ERROR, "X")
    assert sb.read_error(error.message_body) == (127, "Unable to <process> & 'more' ü")
    assert data.message_body == b"data"
    with refused(8429, "'ER'"):
        database.send(initiator, ORDER, b"x")
    database.end_conversation(initiator, error=(1, "the peer is not told"))
    assert database.receive(STOCK_QUEUE) == []


@pytest.mark.feature(90, 102, 103)
def test_a_cleanup_is_not_sent_and_the_next_send_of_the_peer_fails(database: sb.Database) -> None:
    for ending, queue, message_type in ((0, STOCK_QUEUE, REPLY), (1, ORDERS_QUEUE, ORDER)):
        both = open_dialog(database)
        cleaned, left = both[ending], both[1 - ending]
        database.send(left, message_type, b"unread")
        database.end_conversation(cleaned, cleanup=True)
        assert state(database, cleaned) is None
        assert state(database, left) == "CO"
        assert database.receive(ORDERS_QUEUE) == database.receive(STOCK_QUEUE) == []
        database.send(left, message_type, b"anybody?")
        (error,) = database.receive(queue)
        assert sb.read_error(error.message_body)[0] == -8462
        assert state(database, left) == "ER"
        database.end_conversation(left)


@pytest.mark.feature(93)
def test_end_deletes_the_unread_messages_of_its_conversation_only(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    kept = begin(database)
    for handle in (initiator, kept):
        database.send_batch(handle, ORDER, [b"1", b"2"])
    database.send(target, REPLY, b"for the peer")
    database.end_conversation(target)
    assert bodies(database.receive(STOCK_QUEUE)) == [b"1", b"2"]
    assert database.receive(STOCK_QUEUE) == []
    messages = database.receive(ORDERS_QUEUE)
    assert (messages[0].message_body, messages[1].is_end_dialog) == (b"for the peer", True)


@pytest.mark.feature(95)
def test_messages_for_a_side_that_ends_meanwhile_are_dropped(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    with database.transaction() as transaction:
        transaction.send(initiator, ORDER, b"late")
        ended = in_thread(database.end_conversation, target)
        wait_until_blocked(database)
    ended.result(10)
    assert database.receive(STOCK_QUEUE) == []
    (end,) = database.receive(ORDERS_QUEUE)
    assert end.is_end_dialog


@pytest.mark.feature(96)
def test_both_sides_end_at_once(fresh_database: sb.Database, clock: Clock) -> None:
    database = fresh_database
    for first in (0, 1):
        both = open_dialog(database)
        with database.transaction() as transaction:
            transaction.end_conversation(both[first])
            second_end = in_thread(database.end_conversation, both[1 - first])
            wait_until_blocked(database)
        second_end.result(10)
        assert state(database, both[0]) is None
        assert state(database, both[1]) == "CD"
        assert database.receive(ORDERS_QUEUE) == database.receive(STOCK_QUEUE) == []
    for _ in range(10):
        ends = [in_thread(database.end_conversation, handle) for handle in open_dialog(database)]
        for end in ends:
            end.result(10)
    assert database.receive(ORDERS_QUEUE) == database.receive(STOCK_QUEUE) == []
    clock.jump(minutes=31)
    database.end_conversation(begin(database))
    assert leftovers(database) == {}


def test_the_same_side_ends_twice_at_once(database: sb.Database) -> None:
    for which in (0, 1):
        handle = open_dialog(database)[which]
        with database.transaction() as transaction:
            transaction.end_conversation(handle)
            second = in_thread(database.end_conversation, handle)
            wait_until_blocked(database)
        with pytest.raises(sb.BrokerError) as error:
            second.result(10)
        assert error.value.number == (8426, 8427)[which]


@pytest.mark.feature(99)
def test_no_row_remains_after_target_and_initiator_end(fresh_database: sb.Database, clock: Clock) -> None:
    database = fresh_database
    initiator, target = open_dialog(database)
    database.send(target, REPLY, b"done")
    database.end_conversation(target)
    database.receive(ORDERS_QUEUE)
    database.end_conversation(initiator)
    assert state(database, target) == "CD"
    clock.jump(minutes=29)
    database.end_conversation(begin(database))
    assert state(database, target) == "CD"
    assert set(leftovers(database)) == {"conversation_endpoints", "conversation_groups"}
    clock.jump(minutes=2)
    database.end_conversation(begin(database))
    assert leftovers(database) == {}


def test_a_removed_endpoint_leaves_a_group_with_other_conversations(fresh_database: sb.Database, clock: Clock) -> None:
    database = fresh_database
    initiator, target = open_dialog(database)
    group = query(
        database,
        "select conversation_group_id from servicebroker.conversation_endpoints where conversation_handle = %s",
        target,
    )[0][0]
    kept = database.begin_dialog(STOCK, ORDERS, contract=CONTRACT, related_conversation_group=group)
    database.end_conversation(target)
    database.end_conversation(initiator)
    clock.jump(minutes=31)
    database.end_conversation(begin(database))
    assert leftovers(database) == {"conversation_endpoints": 1, "conversation_groups": 1}
    database.end_conversation(kept)
    assert leftovers(database) == {}


def test_an_end_does_not_wait_for_a_begin_in_a_closed_endpoints_group(
    fresh_database: sb.Database, clock: Clock
) -> None:
    database = fresh_database
    initiator, target = open_dialog(database)
    group = group_of(database, target)
    for handle in (target, initiator):
        database.end_conversation(handle)
    clock.jump(minutes=31)
    with database.transaction() as transaction:
        begun = transaction.begin_dialog(STOCK, ORDERS, contract=CONTRACT, related_conversation_group=group)
        in_thread(database.end_conversation, begin(database)).result(120)
    assert state(database, target) == "CD"  # removed by the next upkeep
    database.end_conversation(begin(database))
    assert leftovers(database) == {"conversation_endpoints": 1, "conversation_groups": 1}
    database.end_conversation(begun)
    assert leftovers(database) == {}


def test_a_group_in_which_a_dialog_begins_survives_the_last_conversation(database: sb.Database) -> None:
    """The peer's END removes an initiator that has ended. It waits for a BEGIN DIALOG in the initiator's group."""
    initiator, target = open_dialog(database)
    group = group_of(database, initiator)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.end_conversation(initiator)
    assert state(database, initiator) == "DO"
    with database.transaction() as transaction:
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT, related_conversation_group=group)
        ended = in_thread(database.end_conversation, target)
        wait_until_blocked(database)
    ended.result(10)
    assert state(database, initiator) is None
    text = "select count(*) from servicebroker.conversation_groups where conversation_group_id = %s"
    assert query(database, text, group) == [(1,)]
    database.end_conversation(handle)
    assert query(database, text, group) == [(0,)]


def test_an_end_notifies_a_target_that_was_created_meanwhile(database: sb.Database) -> None:
    """END began before the target existed. Once END has the lock, the target exists and must get the EndDialog."""
    handle = begin(database)
    with database.transaction() as transaction:
        transaction.send(handle, ORDER, b"first")
        ended = in_thread(database.end_conversation, handle)
        wait_until_blocked(database)
    ended.result(10)
    assert state(database, handle) is None
    first, end = database.receive(STOCK_QUEUE)
    assert (first.message_body, end.is_end_dialog) == (b"first", True)


def test_end_waits_for_a_reader_of_its_group(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"in work")
    with database.transaction() as reader:
        assert bodies(reader.receive(STOCK_QUEUE)) == [b"in work"]
        ended = in_thread(database.end_conversation, target)
        wait_until_blocked(database)
        reader.send(target, REPLY, b"answer")
    ended.result(10)
    messages = database.receive(ORDERS_QUEUE)
    assert (messages[0].message_body, messages[1].is_end_dialog) == (b"answer", True)


# ---------------------------------------------------------------- timers


@pytest.mark.feature(64, 83, 101)
def test_a_timer_is_received_first_and_only_by_its_side(database: sb.Database, clock: Clock) -> None:
    initiator, target = open_dialog(database)
    database.send(target, REPLY, b"data")
    database.begin_conversation_timer(initiator, 60)
    assert bodies(database.receive(ORDERS_QUEUE)) == [b"data"]
    database.send(target, REPLY, b"more")
    clock.jump(seconds=61)
    assert database.receive(STOCK_QUEUE) == []
    timer, data = database.receive(ORDERS_QUEUE)
    assert timer.is_timer
    assert (timer.message_type_name, timer.message_body, timer.validation) == (sb.DIALOG_TIMER, None, "E")
    assert timer.conversation_handle == initiator
    assert data.message_body == b"more"
    clock.jump(hours=1)
    assert database.receive(ORDERS_QUEUE) == []  # the timer has fired only once


@pytest.mark.feature(84)
def test_a_timer_that_is_set_again_replaces_the_first(database: sb.Database, clock: Clock) -> None:
    handle = begin(database)
    database.begin_conversation_timer(handle, 60)
    database.begin_conversation_timer(handle, 600)
    clock.jump(seconds=61)
    assert database.receive(ORDERS_QUEUE) == []
    database.begin_conversation_timer(handle, 5)
    clock.jump(seconds=6)
    assert [message.is_timer for message in database.receive(ORDERS_QUEUE)] == [True]
    clock.jump(seconds=700)
    assert database.receive(ORDERS_QUEUE) == []


@pytest.mark.feature(85)
def test_a_timer_survives_a_restart(make_instance_url: Callable[..., str]) -> None:
    url, clock = make_instance_url(), Clock()
    with sb.open(url, clock=clock) as instance:
        handle = begin(define_standard_set(instance.database("T", create=True)))
        instance.database("T").begin_conversation_timer(handle, 3600)
    clock.jump(hours=1, seconds=1)
    with sb.open(url, clock=clock) as instance:
        (timer,) = instance.database("T").receive(ORDERS_QUEUE)
        assert timer.is_timer
        assert timer.conversation_handle == handle


@pytest.mark.feature(86)
def test_a_timer_beyond_the_lifetime_is_refused(database: sb.Database) -> None:
    handle = begin(database, lifetime=100)
    database.begin_conversation_timer(handle, 90)
    with refused(8410):
        database.begin_conversation_timer(handle, 102)


def test_a_timer_needs_a_living_endpoint(database: sb.Database) -> None:
    for wanted in ("DO", "CD"):
        handle, _ = create_endpoint(database, wanted)
        with refused(8458, f"'{wanted}'"):
            database.begin_conversation_timer(handle, 5)
    for wanted in ("SO", "CO", "DI", "ER"):
        handle, _ = create_endpoint(database, wanted)
        database.begin_conversation_timer(handle, 5)


def test_an_ended_conversation_has_no_timer(database: sb.Database, clock: Clock) -> None:
    initiator, target = open_dialog(database)
    database.begin_conversation_timer(initiator, 5)
    database.begin_conversation_timer(target, 5)
    database.end_conversation(target)
    clock.jump(seconds=6)
    assert [m.is_timer for m in database.receive(ORDERS_QUEUE)] == [True, False]
    assert database.receive(STOCK_QUEUE) == []
    database.begin_conversation_timer(initiator, 5)
    database.end_conversation(initiator)
    clock.jump(seconds=6)
    assert database.receive(ORDERS_QUEUE) == []


def test_many_timers_fire_at_once(database: sb.Database, clock: Clock) -> None:
    group = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    handles = [group, *(begin(database, related_conversation=group) for _ in range(249))]
    with database.transaction() as transaction:
        for handle in handles:
            transaction.begin_conversation_timer(handle, 5)
    clock.jump(seconds=6)
    fired: list[UUID] = []
    while messages := database.receive(ORDERS_QUEUE):
        assert all(message.is_timer for message in messages)
        fired += [message.conversation_handle for message in messages]
    assert sorted(fired) == sorted(handles)


def test_a_rolled_back_timer_was_never_set(database: sb.Database, clock: Clock) -> None:
    handle = begin(database)
    with rolled_back(database) as transaction:
        transaction.begin_conversation_timer(handle, 5)
    clock.jump(seconds=6)
    assert database.receive(ORDERS_QUEUE) == []


def test_a_rolled_back_timer_message_is_received_again(database: sb.Database, clock: Clock) -> None:
    handle = begin(database)
    database.begin_conversation_timer(handle, 5)
    clock.jump(seconds=6)
    with rolled_back(database) as transaction:
        assert len(transaction.receive(ORDERS_QUEUE)) == 1
    assert [message.is_timer for message in database.receive(ORDERS_QUEUE)] == [True]


def test_the_instance_uses_its_own_clock(make_instance_url: Callable[..., str]) -> None:
    def long_ago() -> datetime:
        return datetime(1999, 12, 31, tzinfo=UTC)

    with sb.open(make_instance_url(), clock=long_ago) as instance:
        database = define_standard_set(instance.database("T", create=True))
        handle = begin(database, lifetime=60)
        database.begin_conversation_timer(handle, 30)
        assert database.receive(ORDERS_QUEUE) == []
        instance.clock = lambda: long_ago() + timedelta(seconds=31)
        assert len(database.receive(ORDERS_QUEUE)) == 1
