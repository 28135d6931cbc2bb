"""Conversation groups of requests hold the deadline of the answer, and PostgreSQL can sort them."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from uuid import UUID, uuid4

import pytest

from servicebroker.model.requests import LateAnswerTreatment, is_request, late_groups, request_group

NOW = datetime(2030, 1, 1, 12, tzinfo=UTC)


@pytest.mark.parametrize("late", list(LateAnswerTreatment))
def test_a_request_is_late_from_its_second_on(late: LateAnswerTreatment) -> None:
    group = request_group(NOW + timedelta(seconds=0.2), late, uuid4())
    for seconds, is_late in ((0, False), (0.9, False), (1, True), (10**6, True)):
        lowest, highest = late_groups(NOW + timedelta(seconds=seconds), late)
        assert (lowest <= group <= highest) is is_late


def test_groups_sort_by_time_as_bytes(seeded_random: random.Random) -> None:
    times = sorted(seeded_random.uniform(0, 140 * 365 * 86400) for _ in range(1000))
    groups = [request_group(NOW + timedelta(seconds=int(s)), LateAnswerTreatment.DROP, uuid4()) for s in times]
    by_second = {group: int(s) for group, s in zip(groups, times, strict=True)}
    assert [by_second[group] for group in sorted(groups, key=lambda group: group.bytes)] == [int(s) for s in times]


def test_an_answer_to_be_handled_is_never_dropped() -> None:
    handled = request_group(NOW, LateAnswerTreatment.HANDLE, uuid4())
    lowest, highest = late_groups(datetime.max.replace(tzinfo=UTC), LateAnswerTreatment.DROP)
    assert not lowest <= handled <= highest


def test_only_groups_of_requests_are_requests() -> None:
    group = request_group(NOW, LateAnswerTreatment.DROP, uuid4())
    assert is_request(group)
    assert (group.version, group.variant) == (8, uuid4().variant)
    assert not is_request(UUID(int=group.int & ~(0xF << 76) | 4 << 76))  # the same, but of version 4
    assert not is_request(UUID(int=group.int ^ 1 << 127))
    assert not any(is_request(uuid4()) for _ in range(1000))


def test_requests_of_one_second_have_groups_of_their_own() -> None:
    assert len({request_group(NOW, LateAnswerTreatment.DROP, uuid4()) for _ in range(1000)}) == 1000
