"""The limits of all workers of a queue together (`global_concurrency`, `global_rate`), and their current use."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import NamedTuple

from servicebroker.engine.diagnosis.findings import UNEXPLAINED_WAIT, duration
from servicebroker.model.arguments import MAXIMUM_SLOTS
from servicebroker.model.wording import counted
from servicebroker.store import locks
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)

MAX_AGE_DAYS = 1  # a limit that no worker has used for longer may have gone from the code, and is not shown
MAX_PIDS_SHOWN = 5
_UNITS = (("s", 1), ("min", 60), ("h", 3600))


class WorkerLimits(NamedTuple):
    """The limits that the workers of a queue declare. The worker that used a limit last has recorded it.

    Attributes:
        slots: the handlers at a time, `global_concurrency`; None without this limit.
        sessions: the process ids of the sessions that hold a slot.
        interval_s: the seconds between two messages at the rate, `global_rate`; None without this limit.
        next_time: when the next message may be received. It is in the past if no worker waits for it.
    """

    slots: int | None = None
    sessions: Sequence[int] = ()
    interval_s: float | None = None
    next_time: datetime | None = None

    @property
    def rate(self) -> str:
        """The rate as a worker declares it: `100/s`, `30/min`; '' without one."""
        if self.interval_s is None:
            return ""
        for unit, length_s in _UNITS:
            count = length_s / self.interval_s
            if abs(count - round(count)) < 1e-6 * count and round(count):
                return f"{round(count)}/{unit}"
        unit, length_s = next((unit for unit in _UNITS if unit[1] > self.interval_s), _UNITS[-1])
        return f"{length_s / self.interval_s:.4g}/{unit}"

    @property
    def are_slots_taken(self) -> bool:
        """True if a further handler has to wait for a slot."""
        return self.slots is not None and len(self.sessions) >= self.slots

    def is_rate_used(self, now: datetime) -> bool:
        """Check whether workers have received at the rate in the last seconds, or wait for the next message's time."""
        return self.next_time is not None and now - self.next_time < UNEXPLAINED_WAIT

    def as_json(self) -> dict[str, object]:
        """Return the limits for `--json`."""
        return {
            "global_concurrency": self.slots,
            "sessions_with_slot": list(self.sessions),
            "global_rate": self.rate or None,
            "next_time": self.next_time,
        }

    def describe(self, now: datetime) -> str:
        """Return the limits and their use in words."""
        parts = []
        if self.slots is not None:
            holders = f" by {self.holders}" if self.sessions else ""
            parts.append(f"{len(self.sessions)} of {counted(self.slots, 'slot')} taken{holders}")
        if self.interval_s is not None:
            parts.append(f"at most {self.rate}{self._pause(now)}")
        return "; ".join(parts)

    @property
    def holders(self) -> str:
        """The sessions with a slot in words: `sessions 12 and 13`."""
        shown = ", ".join(map(str, self.sessions[:MAX_PIDS_SHOWN]))
        more = len(self.sessions) - MAX_PIDS_SHOWN
        return f"session{'s' if len(self.sessions) > 1 else ''} {shown}{f' and {more} more' if more > 0 else ''}"

    def _pause(self, now: datetime) -> str:
        if self.next_time is None or self.next_time - now < timedelta(seconds=1):
            return ""
        return f", the next message in {duration(self.next_time - now)}"


def find_worker_limits() -> Steps[dict[int, WorkerLimits]]:
    """Return the limits of the workers of each queue that has some, by queue id.

    Returns none on a standby, where the unlogged table cannot be read, and in the schema of an older version, which
    doctor reads too.
    """
    ((table,),) = yield SQL("find_worker_limits.table")
    if table is None:
        return {}
    rows = yield Statement(
        "worker_limits.find_worker_limits",
        "select w.queue_id, case when w.slots_time > r.oldest or s.pids is not null then w.slots end, "
        "coalesce(s.pids, '{}'), case when w.next_time > r.oldest then w.interval_s end, "
        "case when w.next_time > r.oldest then w.next_time end "
        f"from (select clock_timestamp() - make_interval(days => {MAX_AGE_DAYS}) as oldest) r, "
        "servicebroker.worker_limits w left join lateral (select array_agg(distinct l.pid order by l.pid) as pids "
        "from pg_locks l where l.locktype = 'advisory' and l.granted and l.objsubid = 2 "
        f"and l.classid::bigint = {locks.QUEUE_SLOT} "
        "and l.database = (select oid from pg_database where datname = current_database()) "
        f"and ((l.objid::bigint - servicebroker.slot_key(w.queue_id, 0)) & 2147483647) < {MAXIMUM_SLOTS}) s on true",
    )
    limits = {queue_id: WorkerLimits(*limit) for queue_id, *limit in rows}
    return {queue_id: limit for queue_id, limit in limits.items() if limit.slots or limit.interval_s}
