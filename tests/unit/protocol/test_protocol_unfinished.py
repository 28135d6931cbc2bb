from __future__ import annotations

from collections import defaultdict
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol.budgets import Budget, Budgets
from servicebroker.protocol.envelope import Content, Part
from servicebroker.protocol.incoming import FREE, Allowance, Begun, Incoming, Progress
from servicebroker.protocol.limits import Limits
from servicebroker.protocol.outgoing import NEVER
from servicebroker.protocol.unfinished import SEARCH_INTERVAL_S, Stored, UnfinishedMessages

QUOTA_BYTES = 1_000
LIMITS = Limits(fragment_size=100, unfinished_idle=3_600, unfinished_idle_full=300)
BUDGETS = Budgets(Budget(unfinished_bytes=QUOTA_BYTES))
SHOP, MALLORY = "certificate shop", "certificate mallory"
NO_ALLOWANCE = Allowance(current=False, ahead=False)
CURRENT = Allowance(current=True, ahead=False)


def conversation(number: int) -> UUID:
    return UUID(int=number)


def opening_of(current: int = 0, *, fragments: int = 0, ahead: int = 0, number: int = 0) -> Begun:
    return Begun(number, 100 * fragments, current, ahead)


@pytest.fixture
def messages() -> UnfinishedMessages:
    return UnfinishedMessages(LIMITS, BUDGETS)


def fill(messages: UnfinishedMessages, owner: str = MALLORY, *, now: float = 0.0) -> None:
    """Begin ten messages of 600 bytes with 200 bytes each. One is reserved; the others exceed the quota."""
    for number in range(10):
        messages.note(owner, conversation(number), opening_of(200, fragments=6), now)


def test_messages_within_the_quota_are_free(messages: UnfinishedMessages) -> None:
    messages.note(SHOP, conversation(1), opening_of(900, fragments=10), 0.0)
    messages.note(SHOP, conversation(2), opening_of(900, fragments=100), 0.0)
    messages.note(SHOP, conversation(3), opening_of(ahead=99), 0.0)
    for number in range(5):
        assert messages.allowance(SHOP, conversation(number), 6) == FREE


def test_a_peer_over_its_quota_finishes_its_oldest_message(messages: UnfinishedMessages) -> None:
    fill(messages)
    assert messages.allowance(MALLORY, conversation(0), 6) == CURRENT
    for number in range(1, 11):
        assert messages.allowance(MALLORY, conversation(number), 6) == NO_ALLOWANCE
    assert messages.allowance(SHOP, conversation(11), 6) == FREE


def test_the_next_one_is_finished_when_the_first_is_complete(messages: UnfinishedMessages) -> None:
    fill(messages)
    # a later fragment does not reset its age
    messages.note(MALLORY, conversation(2), opening_of(201, fragments=6), 1.0)
    for number in range(5):
        assert messages.allowance(MALLORY, conversation(number), 6) == CURRENT
        messages.forget(conversation(number))
    assert messages.allowance(MALLORY, conversation(6), 6) == FREE  # less is kept than the quota


def test_as_many_are_finished_at_a_time_as_fit_the_quota(messages: UnfinishedMessages) -> None:
    for number in range(20):
        messages.note(SHOP, conversation(number), opening_of(90, fragments=4), 0.0)
    allowances = [messages.allowance(SHOP, conversation(number), 4) for number in range(20)]
    assert allowances == [CURRENT] * 2 + [NO_ALLOWANCE] * 18


def test_a_message_larger_than_the_quota_is_finished_when_it_is_the_first(messages: UnfinishedMessages) -> None:
    messages.note(SHOP, conversation(1), opening_of(500, fragments=6), 0.0)
    messages.note(SHOP, conversation(2), opening_of(1_000, fragments=90), 0.0)
    messages.note(SHOP, conversation(3), opening_of(100, fragments=1), 0.0)  # refused behind it, though it would fit
    assert [messages.allowance(SHOP, conversation(number), 6) for number in (1, 2, 3)] == [
        CURRENT,
        NO_ALLOWANCE,
        NO_ALLOWANCE,
    ]
    messages.forget(conversation(1))
    assert messages.allowance(SHOP, conversation(3), 6) == FREE
    messages.note(SHOP, conversation(3), opening_of(1_000, fragments=20), 0.0)
    assert [messages.allowance(SHOP, conversation(number), 6) for number in (2, 3)] == [CURRENT, NO_ALLOWANCE]


def test_messages_ahead_of_their_turn_get_no_reserve(messages: UnfinishedMessages) -> None:
    messages.note(SHOP, conversation(1), opening_of(100, fragments=6, ahead=999), 0.0)
    assert messages.allowance(SHOP, conversation(1), 6) == FREE
    messages.note(SHOP, conversation(1), opening_of(100, fragments=6, ahead=1_000), 0.0)
    assert messages.allowance(SHOP, conversation(1), 6) == CURRENT


def test_the_next_message_of_a_conversation_waits_for_its_turn_like_others(messages: UnfinishedMessages) -> None:
    fill(messages)
    messages.note(MALLORY, conversation(0), opening_of(200, fragments=6, number=1), 0.0)
    assert messages.allowance(MALLORY, conversation(0), 6) == NO_ALLOWANCE
    assert messages.allowance(MALLORY, conversation(1), 6) == CURRENT


def test_several_shares_divide_the_quota() -> None:
    messages = UnfinishedMessages(LIMITS, BUDGETS, shares=2)
    messages.note(SHOP, conversation(1), opening_of(ahead=500), 0.0)
    assert messages.allowance(SHOP, conversation(1), 6) == CURRENT


def test_idle_messages_are_found(messages: UnfinishedMessages) -> None:
    messages.note(SHOP, conversation(1), opening_of(100, fragments=6), 0.0)
    messages.note(SHOP, conversation(2), opening_of(100, fragments=6), 1_000.0)
    assert messages.idle(3_599.0) == []
    assert messages.idle(3_600.0) == [conversation(1)]
    messages.note(SHOP, conversation(1), opening_of(200, fragments=6), 3_600.0)
    assert messages.idle(4_600.0) == [conversation(2)]


def test_idle_messages_of_a_peer_over_its_quota_are_found_sooner(messages: UnfinishedMessages) -> None:
    fill(messages)
    messages.note(SHOP, conversation(20), opening_of(100, fragments=6), 0.0)
    messages.note(MALLORY, conversation(5), opening_of(200, fragments=6), 200.0)
    assert messages.idle(299.0) == []
    assert messages.idle(300.0) == [conversation(number) for number in range(10) if number != 5]


def test_when_to_look(messages: UnfinishedMessages) -> None:
    assert (messages.wake_at, messages.is_due(10.0**9)) == (NEVER, False)
    messages.note(SHOP, conversation(1), opening_of(100, fragments=6), 100.0)
    messages.note(SHOP, conversation(2), opening_of(100, fragments=6), 120.0)
    assert messages.wake_at == 100.0 + SEARCH_INTERVAL_S
    assert not messages.is_due(129.0)
    assert messages.is_due(130.0)
    assert messages.wake_at == 130.0 + SEARCH_INTERVAL_S
    assert messages.quiet(130.0) == [conversation(1)]
    messages.forget(conversation(1))
    messages.forget(conversation(2))
    messages.forget(conversation(3))
    assert messages.wake_at == NEVER


def test_a_restart_loads_stored_messages(messages: UnfinishedMessages) -> None:
    rows = [Stored(conversation(number), MALLORY, opening_of(200, fragments=6), float(number)) for number in range(10)]
    messages.load(rows, 1_000.0)
    assert messages.owner(conversation(3)) == MALLORY
    assert messages.owner(conversation(30)) is None
    allowances = [messages.allowance(MALLORY, conversation(number), 6) for number in range(10)]
    assert allowances == [NO_ALLOWANCE] * 9 + [CURRENT]
    assert messages.idle(1_299.0) == [conversation(number) for number in (9, 8, 7, 6, 5, 4, 3, 2, 1)]


def test_each_message_that_is_kept_counts_for_its_memory_too() -> None:
    limits = Limits(fragment_size=100)
    into = Incoming(Progress(limits=limits))
    assert into.begun is None
    for number in (1, 2, 5):
        into.arrived(number, 0, 1, Part("t", Content.DATA, b"x"))
    each = limits.unfinished_cost + limits.kept_cost + limits.message_cost
    assert into.begun == Begun(0, 0, 0, 3 * (each + 1))
    for fragment in (0, 3):
        into.arrived(0, fragment, 9, Part("t", Content.DATA, bytes(100)))
    assert into.begun == Begun(0, 900, each + limits.message_cost + 200, 3 * (each + 1))


steps = st.tuples(
    st.sampled_from((SHOP, MALLORY)), st.integers(0, 9), st.integers(0, 20), st.integers(0, 300), st.integers(0, 300)
)


@given(st.lists(steps, max_size=60))
def test_the_accounts_are_the_sum_of_kept_messages(taken: list[tuple[str, int, int, int, int]]) -> None:
    messages, kept = UnfinishedMessages(LIMITS, BUDGETS), {}
    for now, (owner, number, fragments, current, ahead) in enumerate(taken):
        handle = conversation(number)
        message = opening_of(
            current if fragments else 0, fragments=fragments if current else 0, ahead=ahead, number=now // 20
        )
        messages.note(owner, handle, message, float(now))
        kept.pop(handle, None)
        if message.current or message.ahead:
            kept[handle] = owner, message
        assert {handle for handle in map(conversation, range(10)) if handle in messages} == set(kept)
        shared, reserved, waiting = defaultdict(int), defaultdict(int), defaultdict(int)
        for place, (whose, begins) in kept.items():
            is_reserved = messages._conversations[place].is_reserved
            shared[whose] += begins.ahead + (0 if is_reserved else begins.current)
            reserved[whose] += begins.declared if is_reserved else 0
            waiting[whose] += not is_reserved and begins.declared > 0
        accounts = {whose: (a.shared, a.reserved, len(a.waiting)) for whose, a in messages._accounts.items()}
        assert accounts == {whose: (shared[whose], reserved[whose], waiting[whose]) for whose, _ in kept.values()}
        assert all(waiting[whose] == 0 or reserved[whose] > 0 for whose in accounts)


IDLE_S, IDLE_FULL_S = LIMITS.unfinished_idle, LIMITS.unfinished_idle_full


@pytest.mark.parametrize(
    ("begun", "timeout"),
    [
        (opening_of(100, fragments=6), IDLE_S),
        (opening_of(100, fragments=6, number=3), IDLE_S),
        (opening_of(ahead=100, number=3), IDLE_S),
        (opening_of(ahead=100), IDLE_FULL_S),  # an opening that lacks its first message
    ],
)
def test_each_kind_of_idle_messages_has_its_timeout(begun: Begun, timeout: float) -> None:
    messages = UnfinishedMessages(LIMITS, BUDGETS)
    messages.note(SHOP, conversation(1), begun, 0.0)
    assert messages.idle(timeout - 1) == []
    assert messages.idle(timeout) == [conversation(1)]


def test_a_peer_that_has_used_up_its_openings_is_searched_sooner() -> None:
    budgets = Budgets(Budget(unfinished_bytes=QUOTA_BYTES, openings=2))
    messages = UnfinishedMessages(LIMITS, budgets)
    messages.note(SHOP, conversation(1), opening_of(10, fragments=1), 0.0)
    assert messages.has_room(SHOP, 0)
    assert not messages.has_room(SHOP, 1)
    assert messages.idle(IDLE_FULL_S) == []
    messages.note(SHOP, conversation(2), opening_of(10, fragments=1), 0.0)
    messages.note(MALLORY, conversation(3), opening_of(10, fragments=1), 0.0)
    assert not messages.has_room(SHOP, 0)
    assert messages.has_room(MALLORY, 0)
    assert messages.idle(IDLE_FULL_S - 1) == []
    assert messages.idle(IDLE_FULL_S) == [conversation(1), conversation(2)]
    messages.note(SHOP, conversation(2), opening_of(10, fragments=1, number=1), 0.0)  # its first message was delivered
    assert messages.idle(IDLE_FULL_S) == []
