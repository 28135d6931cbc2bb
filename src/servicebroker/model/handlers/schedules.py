"""Schedules of workers: the times of a cron rule or of an interval, and the treatment of missed times.

A rule with fixed hours uses local time. If daylight saving skips a time, the handler is called right after the gap. A
time that occurs twice counts once. A rule for every hour uses real time, so it has each hour.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import UTC, date, datetime, time, timedelta
from functools import lru_cache
from typing import TYPE_CHECKING, Literal, NamedTuple, TypeAlias, get_args
from uuid import UUID, uuid4

from servicebroker.model.errors import MAXIMUM_LIFETIME, BrokerError
from servicebroker.model.messages import Message
from servicebroker.model.names import is_encodable
from servicebroker.model.wording import short_repr

if TYPE_CHECKING:
    from zoneinfo import ZoneInfo

Missed: TypeAlias = Literal["skip", "once", "all"]

MISSED_AFTER = timedelta(seconds=60)  # a time is missed if no worker has handled it by then; only "skip" uses this
MAX_NAME = 128  # characters of a schedule's name
MAX_RULE = 500  # characters: one that names each minute, hour, day, month and weekday has 350

# The first bytes of a schedule's conversation group, a UUID of version 8
_GROUP_MARK = bytes.fromhex("53434845445b8000")
_SEARCHED_YEARS = 30  # the range of the search for the next time: 29 February on a Monday comes every 28 years
_SHORTHANDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
_MONTH_NAMES = ("jan", "feb", "mar", "apr", "may", "jun", "jul", "aug", "sep", "oct", "nov", "dec")
_MONTHS = {name: number for number, name in enumerate(_MONTH_NAMES, 1)}
_WEEKDAYS = {name: number for number, name in enumerate(("sun", "mon", "tue", "wed", "thu", "fri", "sat"))}
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


class ScheduledJob(NamedTuple):
    """A stored schedule.

    Attributes:
        queue: schema and name of its queue.
        name: its name in the queue.
        rule: five fields of cron, or "@every" and a number of seconds.
        time_zone: the zone of the fields.
        missed: "skip", "once" or "all".
        next_time: the time for which its handler is called next.
        conversation_handle: the conversation whose timer fires it.
    """

    queue: str
    name: str
    rule: str
    time_zone: str
    missed: str
    next_time: datetime
    conversation_handle: UUID


class Firing(NamedTuple):
    """The current turn of a named schedule: its handler is called for `time`, or not at all."""

    name: str
    time: datetime | None

    def given(self, message: Message) -> Message | None:
        """Return the message for the handler, whose body is the time; None if it is not called."""
        if is_replayed(message):
            return message
        return None if self.time is None else message._replace(message_body=_body_of(self.time))


class Turn(NamedTuple):
    """The result of `Schedule.turn`: the time to call the handler for, None if missed; the next time is `following`."""

    time: datetime | None
    following: datetime


class Schedule(NamedTuple):
    """The times of a schedule.

    Attributes:
        rule: five fields of cron, or a number of seconds, such as "@every 300".
        time_zone: the name of the zone of the fields.
        missed: the treatment of times that passed while no worker ran.
    """

    rule: str
    time_zone: str
    missed: str

    @classmethod
    def of(cls, every: object, time_zone: object, missed: object) -> Schedule:
        """Return the schedule of an application's arguments.

        Raises:
            BrokerError: 402 no rule, no zone, no policy.
        """
        if missed not in get_args(Missed):
            raise BrokerError(402, "missed", short_repr(missed), '"skip", "once" or "all"')
        if not isinstance(time_zone, str) or not _is_zone(time_zone):
            raise BrokerError(402, "time_zone", short_repr(time_zone), "the name of a time zone, such as Europe/Berlin")
        if isinstance(every, timedelta):
            seconds = every / timedelta(seconds=1)
            if not 1 <= seconds <= MAXIMUM_LIFETIME or seconds != int(seconds):
                raise BrokerError(402, "every", short_repr(every), f"whole seconds, 1 to {MAXIMUM_LIFETIME}")
            rule = f"@every {int(seconds)}"
        elif isinstance(every, str) and not every.startswith("@every"):
            rule = _SHORTHANDS.get(every.strip().lower(), " ".join(every.split()))
            if len(rule) > MAX_RULE:
                raise BrokerError(402, "every", short_repr(every), f"a rule of at most {MAX_RULE} characters")
            _Fields.parse(rule)
        else:
            raise BrokerError(402, "every", short_repr(every), 'cron\'s five fields, as "*/5 * * * *", or a timedelta')
        schedule = cls(rule, time_zone, str(missed))
        schedule.following(datetime.now(UTC))
        return schedule

    def following(self, after: datetime) -> datetime:
        """Return the first time after `after`.

        Raises:
            BrokerError: 402 there is none, as for 30 February.
        """
        if self.rule.startswith("@every"):
            interval = timedelta(seconds=int(self.rule.split()[1]))
            return _EPOCH + (after - _EPOCH) // interval * interval + interval
        from zoneinfo import ZoneInfo  # imported here: few applications have schedules

        fields, zone = _Fields.parse(self.rule), ZoneInfo(self.time_zone)
        search = _real_times if len(fields.hours) == 24 else _wall_times  # all hours of a day
        for instant in search(fields, zone, after.astimezone(UTC)):
            if instant > after:
                return instant
        raise BrokerError(402, "every", short_repr(self.rule), "a rule that has times")

    def turn(self, due: datetime, now: datetime) -> Turn:
        """Return the turn at `now` of a schedule whose next time is `due`."""
        if now < due:
            return Turn(None, due)
        if self.missed == "all":
            return Turn(due, self.following(due))
        latest = self._latest(due, now)
        is_missed = self.missed == "skip" and now - latest > MISSED_AFTER
        return Turn(None if is_missed else latest, self.following(now))

    def _latest(self, due: datetime, now: datetime) -> datetime:
        """Return the last time until now. The search doubles its step back from now, since `due` may be long ago."""
        back = timedelta(minutes=1)
        while now - back > due and self.following(now - back) > now:
            back *= 2
        latest = due if now - back <= due else self.following(now - back)
        while (following := self.following(latest)) <= now:
            latest = following
        return latest


def new_group() -> UUID:
    """Return the id of a new conversation group. It distinguishes the timer of a schedule from other timers."""
    return UUID(bytes=_GROUP_MARK + b"\x80" + uuid4().bytes[9:])


def is_of_schedule(message: Message) -> bool:
    """Return whether a message is the timer of a schedule."""
    return message.is_timer and message.conversation_group_id.bytes.startswith(_GROUP_MARK)


def is_replayed(message: Message) -> bool:
    """Return whether the message of a schedule is a dead letter that was replayed: its body is the time of its turn."""
    return message.message_body is not None


def _body_of(firing: datetime) -> bytes:
    """Return the body of the message that the handler gets: the time of the schedule, as ISO 8601 in UTC."""
    return firing.astimezone(UTC).isoformat().encode()


def name_of(name: str | None, function: Callable[..., object]) -> str:
    """Return the name of a schedule: the given one, or that of the function.

    Raises:
        BrokerError: 402 no name, or too long a one.
    """
    schedule_name = getattr(function, "__name__", "") if name is None else name
    if (
        not isinstance(schedule_name, str)
        or not 1 <= len(schedule_name) <= MAX_NAME
        or not is_encodable(schedule_name)
        or "\0" in schedule_name
    ):
        raise BrokerError(402, "name", short_repr(schedule_name), f"a name of 1 to {MAX_NAME} characters")
    return schedule_name


# ---------------------------------------------------------------- cron


class _Fields(NamedTuple):
    """The values that each field of a rule allows. `is_either`: day of month or weekday, as cron combines them."""

    minutes: tuple[int, ...]
    hours: tuple[int, ...]
    days: frozenset[int]
    months: frozenset[int]
    weekdays: frozenset[int]
    is_either: bool

    @staticmethod
    @lru_cache(maxsize=256)
    def parse(rule: str) -> _Fields:
        """Return the fields of a rule.

        Raises:
            BrokerError: 402 the text is not a rule.
        """
        texts = rule.lower().split()
        if len(texts) != 5:  # the fields of cron
            raise BrokerError(402, "every", short_repr(rule), 'cron\'s five fields, as "*/5 * * * *", or a timedelta')
        minutes, hours = _values(rule, texts[0], 0, 59, {}), _values(rule, texts[1], 0, 23, {})
        days, months = _values(rule, texts[2], 1, 31, {}), _values(rule, texts[3], 1, 12, _MONTHS)
        weekdays = {day % 7 for day in _values(rule, texts[4], 0, 7, _WEEKDAYS)}
        is_either = not texts[2].startswith("*") and not texts[4].startswith("*")
        return _Fields(
            tuple(sorted(minutes)),
            tuple(sorted(hours)),
            frozenset(days),
            frozenset(months),
            frozenset(weekdays),
            is_either,
        )

    def has_day(self, day: date) -> bool:
        """Return whether the rule has times on a day."""
        if day.month not in self.months:
            return False
        in_month, in_week = day.day in self.days, day.isoweekday() % 7 in self.weekdays
        return in_month or in_week if self.is_either else in_month and in_week


def _values(rule: str, text: str, lowest: int, highest: int, names: dict[str, int]) -> set[int]:
    """Return the values that a field allows."""
    values: set[int] = set()
    for part in text.split(","):
        span, has_step, step = part.partition("/")
        first, has_end, last = span.partition("-")
        if span == "*":
            begin, end = lowest, highest
        else:
            begin = _number(rule, first, names)
            end = _number(rule, last, names) if has_end else highest if has_step else begin
        width = _number(rule, step, {}) if has_step else 1
        if not lowest <= begin <= end <= highest or width < 1:
            raise BrokerError(
                402, "every", short_repr(rule), f"a rule with {lowest} to {highest} where {short_repr(part)} stands"
            )
        values.update(range(begin, end + 1, width))
    return values


def _number(rule: str, text: str, names: dict[str, int]) -> int:
    if text in names:
        return names[text]
    if not (text.isascii() and text.isdigit()):
        raise BrokerError(402, "every", short_repr(rule), f"a number in place of {short_repr(text)}")
    return int(text)


def _days(fields: _Fields, first: date) -> Iterator[date]:
    """Yield the days of the rule, from a day on."""
    day = first
    while day.year < first.year + _SEARCHED_YEARS:
        if day.month not in fields.months:
            day = date(day.year + day.month // 12, day.month % 12 + 1, 1)
            continue
        if fields.has_day(day):
            yield day
        day += timedelta(days=1)


def _wall_times(fields: _Fields, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the times of a rule with fixed hours, from the day of `after` on, as the clock on the wall shows them."""
    for day in _days(fields, after.astimezone(zone).date()):
        for hour in fields.hours:
            for minute in fields.minutes:
                yield _instant(datetime.combine(day, time(hour, minute)), zone)


def _real_times(fields: _Fields, zone: ZoneInfo, after: datetime) -> Iterator[datetime]:
    """Yield the times of a rule for every hour: each minute after `after` whose local time matches the fields."""
    moment = after.replace(second=0, microsecond=0)
    end = moment + timedelta(days=366 * _SEARCHED_YEARS)
    while moment < end:
        moment += timedelta(minutes=1)
        wall = moment.astimezone(zone)
        if not fields.has_day(wall.date()):
            following = next(_days(fields, wall.date() + timedelta(days=1)), None)
            if following is None:
                return
            moment = max(moment, _instant(datetime.combine(following, time()), zone) - timedelta(minutes=1))
        elif wall.minute in fields.minutes:
            yield moment
        else:
            ahead = next((minute for minute in fields.minutes if minute > wall.minute), 60)
            moment += timedelta(minutes=ahead - wall.minute - 1)


def _instant(wall: datetime, zone: ZoneInfo) -> datetime:
    """Return the moment at which the clock first shows a time; if it skips the time, the moment behind the gap."""
    instant = wall.replace(tzinfo=zone).astimezone(UTC)
    if instant.astimezone(zone).replace(tzinfo=None) == wall:
        return instant
    early = wall.replace(tzinfo=zone, fold=1).astimezone(UTC)  # before the gap
    late = instant  # behind it
    while late - early > timedelta(seconds=1):
        middle = early + (late - early) // 2
        if middle.astimezone(zone).utcoffset() == late.astimezone(zone).utcoffset():
            late = middle
        else:
            early = middle
    return late.replace(microsecond=0)


def _is_zone(name: str) -> bool:
    from zoneinfo import ZoneInfo

    try:
        ZoneInfo(name)
    except (OSError, ValueError, KeyError):  # ZoneInfoNotFoundError is a KeyError
        return False
    return True
