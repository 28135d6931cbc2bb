"""Message rates of queues in the last hour, day and month, computed from samples of PostgreSQL's statistics.

A sample has one row for each queue that has changed, with the total numbers of messages in and out. So a missing sample
loses no message, and idle queues cost nothing. Sampling does not read queue tables.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from datetime import datetime, timedelta
from typing import Final, NamedTuple

from servicebroker.engine.diagnosis.queue_counts import FLOWS, TRANSMISSION_QUEUE
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


SAMPLE_INTERVAL_S = 10.0  # seconds between two samples
# The retention of samples, by their interval in seconds
RETENTION: Final = {10: timedelta(hours=1), 60: timedelta(days=1), 600: timedelta(days=30)}
MAX_PARTS = 60  # parts of a history; a short history has one part for each sample
_SAMPLED_QUEUES = 1000  # queues in one sample, those with the most changes; the others are in later samples


class RateHistory(NamedTuple):
    """The rates of one queue, or of all queues, from `since` on, in equal parts of `part_s` seconds.

    `rates_in` and `rates_out` have the messages per second in each part, and `depths` the highest depth. The values of
    a part without samples are None.
    """

    since: datetime
    part_s: float
    rates_in: list[float | None]
    rates_out: list[float | None]
    depths: list[int | None]

    def with_current_depth(self, messages: int) -> RateHistory:
        """Return the history whose last part has this counted depth, so that a page shows one number twice.

        The samples have the highest depth of a part, and PostgreSQL's estimate of it (decision 108).
        """
        return self._replace(depths=[*self.depths[:-1], messages])


class Change(NamedTuple):
    """The changes of a queue in one part: messages in and out, the highest depth, and the depth at its end."""

    part: int
    added: int
    removed: int
    peak: int
    messages: int


def record_history_sample() -> Steps[None]:
    """Take a sample, if one is due and no other session has taken it. Deletes old samples once a minute."""
    rows = yield SQL("record_history_sample.begin")
    if not rows:
        return
    at, step = rows[0]
    yield Statement(
        "history.record_history_sample.take",
        "insert into servicebroker.history (queue_id, at, step, arrived, departed, messages, peak, minute_peak) "
        "select f.queue_id, $1, $2, f.arrived, f.departed, f.messages, greatest(f.messages, ("
        "  select max(h.peak) from servicebroker.history h "
        "  where h.queue_id = f.queue_id and h.at > coalesce(b.at, '-infinity'))), "
        "case when $2 > 60 then greatest(f.messages, ("
        "  select max(h.peak) from servicebroker.history h where h.queue_id = f.queue_id and h.at > coalesce(("
        "    select max(m.at) from servicebroker.history m where m.queue_id = f.queue_id and m.step >= 60), "
        "  '-infinity'))) end "
        f"from ({FLOWS}) f left join lateral (select * from servicebroker.history h "
        "  where h.queue_id = f.queue_id and h.step >= $2 order by h.at desc limit 1) b on true "
        "where (f.arrived, f.departed, f.messages) is distinct from (b.arrived, b.departed, b.messages) "
        f"order by f.arrived - coalesce(b.arrived, 0) desc limit {_SAMPLED_QUEUES} on conflict do nothing",
        (at, step),
    )
    if step == min(RETENTION):
        return
    for kept_step, age in RETENTION.items():
        yield SQL("record_history_sample.forget", (kept_step, at - age))


def queue_histories(
    now: datetime, span: timedelta, queue_id: int | None = None
) -> Steps[dict[tuple[str, str], RateHistory]]:
    """Return the rates of the last `span`, by database and `schema.name`, of all queues with samples.

    The transmission queue has two empty names; with `queue_id` only that queue is returned.
    """
    period = _Period.of(now, span)
    rows = yield Statement(
        "history.queue_histories",
        f"{_CHANGES} select coalesce(d.name, ''), coalesce(q.schema_name || '.' || q.name, ''), c.part, "
        "sum(c.came)::bigint, sum(c.departed)::bigint, max(c.peak), (array_agg(c.messages order by c.at desc))[1] "
        "from changes c left join servicebroker.queues q using (queue_id) "
        "left join servicebroker.databases d using (database_id) "
        f"where q.queue_id is not null or c.queue_id = {TRANSMISSION_QUEUE} group by 1, 2, 3 order by 1, 2, 3",
        (*period.read, queue_id),
    )
    watched = yield from _find_parts(period)
    changes_by_queue: dict[tuple[str, str], list[Change]] = {}
    for database, queue, *change in rows:
        changes_by_queue.setdefault((database, queue), []).append(Change(*change))
    return {
        name: history_of(period.since, period.part_s, period.parts, watched, changes)
        for name, changes in changes_by_queue.items()
    }


def total_history(now: datetime, span: timedelta) -> Steps[RateHistory]:
    """Return the rates of all application queues in sum."""
    period = _Period.of(now, span)
    rows = yield Statement(
        "history.total_history",
        f"{_CHANGES}, parts as (select part, sum(came) as came, sum(departed) as departed, "
        "sum(sum(more)) over (order by part) as messages "
        f"from changes where queue_id <> {TRANSMISSION_QUEUE} group by 1) "
        "select part, came::bigint, departed::bigint, "
        "greatest(messages, lag(messages, 1, 0::numeric) over (order by part))::bigint, messages::bigint "
        "from parts order by part",
        (*period.read, None),
    )
    watched = yield from _find_parts(period)
    return history_of(period.since, period.part_s, period.parts, watched, [Change(*row) for row in rows])


# One row for each sample of a queue, with the changes since its previous sample; part -1 is the state before $1. If a
# counter is lower than before, it was reset. Samples with a finer step than $2 are read only from time $3 on,
# for the step that is not complete yet. `peak` is the highest depth within the step $2.
_CHANGES = (
    "with known as (select * from servicebroker.history h "
    "  where h.at > $1 and (h.step >= $2 or h.at > $3) and ($5::int is null or h.queue_id = $5) "
    "union all select b.* from (select queue_id from servicebroker.queues "
    f"  union all select {TRANSMISSION_QUEUE}) q cross join lateral (select * from servicebroker.history h "
    "  where h.queue_id = q.queue_id and h.at <= $1 order by h.at desc limit 1) b "
    "  where $5::int is null or q.queue_id = $5), "
    "steps as (select *, lag(arrived) over w as old_arrived, lag(departed) over w as old_departed, "
    "  lag(messages) over w as old_messages from known window w as (partition by queue_id order by at)), "
    "changes as (select queue_id, at, messages, "
    "  case when $2 < 60 then messages when $2 < 600 then coalesce(minute_peak, peak) else peak end as peak, "
    "  case when at <= $1 then -1 else floor(extract(epoch from at - $1) / $4)::int end as part, "
    "  coalesce(case when arrived < old_arrived then arrived else arrived - old_arrived end, 0) as came, "
    "  coalesce(case when departed < old_departed then departed else departed - old_departed end, 0) as departed, "
    "  messages - coalesce(old_messages, 0) as more from steps)"
)


class _Period(NamedTuple):
    """A time span: `parts` parts of `part_s` seconds, from `since` on. Samples with the step `step` (s) are read."""

    since: datetime
    part_s: float
    parts: int
    step: int

    @classmethod
    def of(cls, now: datetime, span: timedelta) -> _Period:
        parts = max(1, min(MAX_PARTS, int(span.total_seconds() / SAMPLE_INTERVAL_S)))
        part_s = span.total_seconds() / parts
        fine = [step for step, age in RETENTION.items() if age >= span] or [max(RETENTION)]
        return cls(now - span, part_s, parts, max([fine[0], *(step for step in fine if step <= part_s)]))

    @property
    def read(self) -> tuple[datetime, int, datetime, float]:
        """The parameters $1 to $4 of `_CHANGES`."""
        recent = self.since + timedelta(seconds=self.part_s * self.parts - 2 * self.step)
        return self.since, self.step, recent, self.part_s


def _find_parts(period: _Period) -> Steps[frozenset[int]]:
    """Return the parts that have samples."""
    rows = yield SQL("find_parts", period.read)
    # a sample covers the time since the previous one, which is several parts if a part is shorter than the step
    reach = max(1, round(period.step / period.part_s))
    return frozenset(part - back for (part,) in rows for back in range(reach))


def history_of(
    since: datetime, part_s: float, parts: int, watched: Collection[int], changes: Iterable[Change]
) -> RateHistory:
    """Return the history with these changes. `watched` are the parts with samples; part -1 is before `since`."""
    by_part = {change.part: change for change in changes}
    depth = by_part[-1].messages if -1 in by_part else None
    rates_in: list[float | None] = []
    rates_out: list[float | None] = []
    depths: list[int | None] = []
    for part in range(parts):
        change = by_part.get(part)
        if change is not None:
            rates_in.append(change.added / part_s)
            rates_out.append(change.removed / part_s)
            depths.append(change.peak)
            depth = change.messages
        else:
            is_watched = part in watched
            rates_in.append(0.0 if is_watched else None)
            rates_out.append(0.0 if is_watched else None)
            depths.append(depth if is_watched else None)
    return RateHistory(since, part_s, rates_in, rates_out, depths)
