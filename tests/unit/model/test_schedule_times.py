"""The times of schedules."""

from __future__ import annotations

import random
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4
from zoneinfo import ZoneInfo

import pytest

from servicebroker.model.errors import BrokerError
from servicebroker.model.handlers.schedules import MAX_NAME, Firing, Schedule, is_of_schedule, name_of, new_group
from servicebroker.model.messages import Message
from servicebroker.model.names import DIALOG_TIMER, DIALOG_TIMER_ID, ERROR, ERROR_ID
from support import refused


def times(rule: str, start: str, count: int, zone: str = "UTC") -> list[str]:
    schedule, moment, fire_times = Schedule.of(rule, zone, "once"), datetime.fromisoformat(start), []
    for _ in range(count):
        moment = schedule.following(moment)
        fire_times.append(f"{moment.astimezone(ZoneInfo(zone)):%m-%d %H:%M%z}")
    return fire_times


@pytest.mark.parametrize(
    ("rule", "start", "expected"),
    [
        ("*/5 * * * *", "2026-01-01T00:03:00Z", ["01-01 00:05", "01-01 00:10"]),
        ("*/5 * * * *", "2026-01-01T00:05:00Z", ["01-01 00:10", "01-01 00:15"]),
        ("@hourly", "2026-01-01T00:05:30Z", ["01-01 01:00", "01-01 02:00"]),
        ("0 9-17/4 * * mon-fri", "2026-01-02T10:00:00Z", ["01-02 13:00", "01-02 17:00", "01-05 09:00"]),
        ("30 2 1,15 feb *", "2026-01-02T10:00:00Z", ["02-01 02:30", "02-15 02:30", "02-01 02:30"]),
        ("0 0 29 2 *", "2026-01-02T10:00:00Z", ["02-29 00:00", "02-29 00:00"]),
        ("0 0 13 * fri", "2026-02-07T00:00:00Z", ["02-13 00:00", "02-20 00:00", "02-27 00:00", "03-06 00:00"]),
        ("0 0 */10 * 1", "2026-06-01T01:00:00Z", ["08-31 00:00"]),  # with a star in one of them, both must match
        ("59 23 31 12 7", "2026-01-01T00:00:00Z", ["12-06 23:59"]),
        ("5/20 4 * * *", "2026-01-01T04:06:00Z", ["01-01 04:25", "01-01 04:45", "01-02 04:05"]),
        ("@weekly", "2026-01-01T00:00:00Z", ["01-04 00:00"]),
    ],
)
def test_a_rule_fires_at_its_times(rule: str, start: str, expected: list[str]) -> None:
    assert [text[:11] for text in times(rule, start, len(expected))] == expected


@pytest.mark.parametrize(
    ("rule", "start", "expected"),
    [
        # in Berlin 02:00 becomes 03:00 on 29 March 2026, and 03:00 becomes 02:00 on 25 October
        ("30 2 * * *", "2026-03-28T00:00:00Z", ["03-28 02:30+0100", "03-29 03:00+0200", "03-30 02:30+0200"]),
        ("0,30 2 * * *", "2026-03-28T12:00:00Z", ["03-29 03:00+0200", "03-30 02:00+0200"]),
        ("30 2 * * *", "2026-10-24T12:00:00Z", ["10-25 02:30+0200", "10-26 02:30+0100"]),
        ("30 * * * *", "2026-10-24T23:45:00Z", ["10-25 02:30+0200", "10-25 02:30+0100", "10-25 03:30+0100"]),
        ("30 * * * *", "2026-03-29T00:00:00Z", ["03-29 01:30+0100", "03-29 03:30+0200"]),
        ("0 0 * * *", "2026-03-28T12:00:00Z", ["03-29 00:00+0100", "03-30 00:00+0200"]),
    ],
)
def test_times_where_the_clock_is_changed(rule: str, start: str, expected: list[str]) -> None:
    assert times(rule, start, len(expected), "Europe/Berlin") == expected


def test_a_time_in_a_gap_of_the_clock_fires_after_the_gap() -> None:
    """In Santiago the clock jumps from 00:00 to 01:00."""
    assert times("0 0 * * *", "2026-09-05T12:00:00Z", 2, "America/Santiago") == ["09-06 01:00-0300", "09-07 00:00-0300"]


def test_intervals_are_the_same_for_all() -> None:
    schedule = Schedule.of(timedelta(minutes=90), "UTC", "once")
    assert schedule.following(datetime(1970, 1, 1, 1, tzinfo=UTC)) == datetime(1970, 1, 1, 1, 30, tzinfo=UTC)
    assert schedule.following(datetime(1970, 1, 1, 1, 30, tzinfo=UTC)) == datetime(1970, 1, 1, 3, tzinfo=UTC)


@pytest.mark.parametrize(
    ("every", "zone", "missed"),
    [
        *((rule, "UTC", "once") for rule in ("", "* * * *", "* * * * * *", "60 * * * *", "a * * * *", "* 24 * * *")),
        *((rule, "UTC", "once") for rule in ("* * 0 * *", "* * * 13 *", "* * * * 8", "*/0 * * * *", "5-1 * * * *")),
        *((rule, "UTC", "once") for rule in ("1- * * * *", "-1 * * * *", "1,,2 * * * *", "@every 5", "@reboot")),
        *((rule, "UTC", "once") for rule in ("0 0 30 2 *", 5, None, timedelta(), timedelta(seconds=1.5))),
        *((rule, "UTC", "once") for rule in (timedelta(days=3_000_000), "9" * 5_000 + " * * * *")),
        *(("* * * * *", zone, "once") for zone in ("Mars/Base", "", "../etc/passwd", None, "/etc/localtime")),
        *(("* * * * *", "UTC", missed) for missed in ("twice", None, 1)),
    ],
)
def test_invalid_schedules_are_refused(every: object, zone: object, missed: object) -> None:
    with refused(402):
        Schedule.of(every, zone, missed)


@pytest.mark.parametrize(
    ("missed", "late", "fires", "following"),
    [
        ("once", 0, "12:00", "12:05"),
        ("once", 59, "12:00", "12:05"),
        ("once", 3600, "13:00", "13:05"),
        ("once", 3700, "13:00", "13:05"),
        ("all", 3600, "12:00", "12:05"),
        ("skip", 60, "12:00", "12:05"),
        ("skip", 61, None, "12:05"),
        ("skip", 3600, "13:00", "13:05"),
        ("skip", 3700, None, "13:05"),
        ("once", -1, None, "12:00"),
        ("all", -1, None, "12:00"),
    ],
)
def test_missed_times_fire_by_their_option(missed: str, late: int, fires: str | None, following: str) -> None:
    due = datetime(2026, 1, 1, 12, tzinfo=UTC)
    turn = Schedule.of("*/5 * * * *", "UTC", missed).turn(due, due + timedelta(seconds=late))
    assert (turn.time and f"{turn.time:%H:%M}", f"{turn.following:%H:%M}") == (fires, following)


def test_random_rules_agree_with_a_search_minute_by_minute(seeded_random: random.Random) -> None:
    def field(lowest: int, highest: int) -> str:
        first = seeded_random.randint(lowest, highest)
        last = seeded_random.randint(first, highest)
        return seeded_random.choice(["*", "*", str(first), f"{first}-{last}", f"*/{seeded_random.randint(1, 9)}"])

    for _ in range(60):
        rule = " ".join([field(0, 59), field(0, 23), field(1, 28), "*", field(0, 6)])
        schedule = Schedule.of(rule, "UTC", "once")
        start = datetime(2026, 1, 1, tzinfo=UTC) + timedelta(minutes=seeded_random.randrange(500_000))
        minutes, hours, days, _, weekdays = rule.split()
        allowed = [
            set(field)
            for field in (
                _matching_values(minutes, 0, 59),
                _matching_values(hours, 0, 23),
                _matching_values(days, 1, 31),
                _matching_values(weekdays, 0, 6),
            )
        ]
        is_either = not days.startswith("*") and not weekdays.startswith("*")
        moment = start.replace(second=0) + timedelta(minutes=1)
        for _ in range(60 * 24 * 5):
            fits_day = [moment.day in allowed[2], moment.isoweekday() % 7 in allowed[3]]
            if moment.minute in allowed[0] and moment.hour in allowed[1] and (any if is_either else all)(fits_day):
                assert schedule.following(start) == moment, (rule, start)
                break
            moment += timedelta(minutes=1)
        else:
            assert schedule.following(start) > moment - timedelta(minutes=1), (rule, start)


def _matching_values(text: str, lowest: int, highest: int) -> range:
    if text.startswith("*/"):
        return range(lowest, highest + 1, int(text[2:]))
    first, _, last = text.partition("-")
    return range(lowest, highest + 1) if text == "*" else range(int(first), int(last or first) + 1)


# ---------------------------------------------------------------- messages of schedules


def timer(**changes: Any) -> Message:
    values = dict.fromkeys(Message._fields) | {
        "conversation_group_id": new_group(), "message_type_name": DIALOG_TIMER, "message_type_id": DIALOG_TIMER_ID
    }  # fmt: skip
    return Message(**(values | changes))  # type: ignore[arg-type]


def test_only_a_timer_in_a_group_of_its_own_is_of_a_schedule() -> None:
    assert is_of_schedule(timer())
    assert not is_of_schedule(timer(conversation_group_id=uuid4()))
    assert not is_of_schedule(timer(message_type_name=ERROR, message_type_id=ERROR_ID))
    groups = {new_group() for _ in range(100)}
    assert len(groups) == 100
    assert {group.version for group in groups} == {8}


@pytest.mark.parametrize("zone", ["UTC", "Asia/Kolkata", "America/New_York"])
def test_a_handler_gets_the_time_in_utc_or_is_not_called(zone: str) -> None:
    at = datetime(2026, 1, 1, 12, tzinfo=UTC)
    message = Firing("nightly", at.astimezone(ZoneInfo(zone))).given(timer())
    assert message is not None
    assert message.message_body == b"2026-01-01T12:00:00+00:00"
    assert Firing("nightly", None).given(timer()) is None  # missed


@pytest.mark.parametrize("time", [None, datetime(2026, 1, 1, tzinfo=UTC)])
def test_a_replayed_turn_keeps_its_time(time: datetime | None) -> None:
    replayed = timer(message_body=b"2025-12-31T12:00:00+00:00")
    assert Firing("nightly", time).given(replayed) == replayed


@pytest.mark.parametrize("name", ["", "x" * (MAX_NAME + 1), "a\0b", "\ud800", 7, b"name"])
def test_no_name_of_a_schedule(name: object) -> None:
    with pytest.raises(BrokerError, match="a name of 1 to 128 characters"):
        name_of(name, test_no_name_of_a_schedule)  # type: ignore[arg-type]
    assert name_of("x" * MAX_NAME, test_no_name_of_a_schedule) == "x" * MAX_NAME
    assert name_of(None, test_no_name_of_a_schedule) == "test_no_name_of_a_schedule"
