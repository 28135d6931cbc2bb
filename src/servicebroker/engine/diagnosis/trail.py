"""The trail: an event log of conversations, off by default.

Triggers write it (`store/trail.sql`), in the transaction and the round trip of the verb. They exist only while the
trail is on, and only on the tables that it needs. So a trail that is off costs nothing.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Final, NamedTuple
from uuid import UUID

from servicebroker.engine.diagnosis.audit import record_action
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


TRAIL_RETENTION = timedelta(days=7)
_DAYS_AHEAD = 2  # days ahead for which partitions are created
_SAMPLE_UNITS = 10_000  # the sampled share of conversations is stored in ten thousandths
_TABLE = "<table>"  # a placeholder for the table's name in a trigger
_MAX_EVENTS = 500  # events of a conversation that `find_events` returns

EVENT_WORDS: Final = {
    "B": "began",
    "S": "state",
    "A": "arrived in its queue",
    "R": "left its queue",
    "W": "waits to be transmitted",
    "L": "waits no longer",
    "F": "failed",
    "P": "set aside",
    "M": "moved to the group",
    "T": "timer",
    "G": "is gone",
}


class TrailSettings(NamedTuple):
    """The conversations that are logged: a sample of those of `services`, and each of `conversations`.

    `share` is the size of the sample, 0 to 1. Without `services` the sample is taken of all conversations.
    """

    is_on: bool
    share: float
    services: list[str]
    conversations: list[UUID]


class Event(NamedTuple):
    """An event on one side of a conversation: of a run of messages, or of the endpoint itself.

    `what` is a key of `EVENT_WORDS`; the numbers are of messages, None for an event of the endpoint.
    """

    at: datetime
    transaction: int
    handle: UUID
    what: str
    first: int | None
    last: int | None
    messages: int | None
    message_type: str
    detail: str


class TriggerChange(NamedTuple):
    """A statement that creates and drops triggers of one table."""

    table: str
    statement: Statement


def settings() -> Steps[TrailSettings]:
    """Return the settings of the trail."""
    rows = yield SQL("settings")
    is_on, share, services, conversations = rows[0]
    return TrailSettings(is_on, share / _SAMPLE_UNITS, list(services), list(conversations))


def find_conversations(handles: Sequence[UUID]) -> Statement:
    """Return handle and conversation identifier of endpoints. They are looked up by either of the two."""
    return SQL("find_conversations", (list(handles),))


def with_conversation(handle: UUID) -> Steps[TrailSettings]:
    """Return the settings with one more conversation, and without conversations that do not exist any more."""
    stored = yield from settings()
    if not stored.is_on:
        return TrailSettings(True, 0.0, [], [handle])
    existing = {conversation for _, conversation in (yield find_conversations(stored.conversations))}
    return stored._replace(
        conversations=[*(conversation for conversation in stored.conversations if conversation in existing), handle]
    )


def save_settings(wanted: TrailSettings) -> Steps[None]:
    """Store the settings of the trail; `find_trigger_changes` returns the statements that apply them.

    Raises:
        BrokerError: 15151 no such service, 8426 no such conversation, 402 a share outside of 0 to 1.
    """
    if not 0 <= wanted.share <= 1:
        raise BrokerError(402, "the share", wanted.share, "from 0 to 1")
    known = yield SQL("save_settings.find_services", (wanted.services,))
    for service in wanted.services:
        if (service,) not in known:
            raise BrokerError(15151, "find", "service", service)
    rows = yield find_conversations(wanted.conversations)
    identifiers = {identifier: conversation for handle, conversation in rows for identifier in (handle, conversation)}
    for wanted_id in wanted.conversations:
        if wanted_id not in identifiers:
            raise BrokerError(8426, wanted_id)
    chosen = sorted({identifiers[wanted_id] for wanted_id in wanted.conversations}, key=str)
    yield SQL("save_settings.update", (wanted.is_on, round(wanted.share * _SAMPLE_UNITS), wanted.services, chosen))
    audited = {
        "share": wanted.share,
        "services": ", ".join(wanted.services),
        "conversations": ", ".join(map(str, chosen)),
    }
    yield from record_action("TRAIL ON" if wanted.is_on else "TRAIL OFF", "", "", audited if wanted.is_on else {})


def find_trigger_changes() -> Steps[list[TriggerChange]]:
    """Return the changes that make the triggers match the settings; each needs a transaction of its own."""
    stored = yield from settings()
    wanted: dict[str, dict[str, str]] = {}
    if stored.is_on:
        arguments, queues = yield from _trigger_arguments(stored)
        for queue_id in queues:
            wanted[f"queue_{queue_id}"] = _message_triggers("trail_messages", ("A", "R"), arguments)
        wanted["transmission_queue"] = _message_triggers("trail_sent", ("W", "L"), arguments)
        trigger = f"after insert or delete or update of state, conversation_group_id, dialog_timer on {_TABLE}"
        wanted["conversation_endpoints"] = {
            _trigger_name("E", arguments): f"{trigger} for each row execute function "
            f"servicebroker.trail_endpoint({_quoted_arguments(arguments)})"
        }
        for table, when, letter in (
            ("failed_messages", "after insert or update", "F"),
            ("set_aside_messages", "after insert", "P"),
        ):
            wanted[table] = {
                _trigger_name(letter, arguments): f"{when} on {_TABLE} for each row execute function "
                f"servicebroker.trail_failure({_quoted_arguments((letter, *arguments))})"
            }
    rows = yield SQL("find_trigger_changes")
    existing: dict[str, set[str]] = {}
    for table, name in rows:
        existing.setdefault(table, set()).add(name)
    return [
        TriggerChange(table, _recreate_triggers(table, wanted.get(table, {}), existing.get(table, set())))
        for table in sorted(wanted.keys() | existing.keys())
        if wanted.get(table, {}).keys() != existing.get(table, set())
    ]


def with_short_lock_timeout(statement: Statement) -> Steps[None]:
    """Run a change of a table with a short lock timeout, because other sessions wait behind its lock."""
    yield SQL("with_short_lock_timeout", prepared=False)
    yield statement


def _trigger_arguments(stored: TrailSettings) -> Steps[tuple[tuple[str, ...], list[int]]]:
    """Return the arguments of the triggers, and the queues that need them. No arguments: log all conversations."""
    rows = yield SQL(
        "trigger_arguments",
        (stored.services, stored.conversations, names.FIRST_USER_ID, not stored.services and stored.share > 0),
    )
    services, queues = rows[0]
    if stored.share == 1 and not stored.services:
        return (), list(queues)
    chosen = (
        ",".join(str(number) for number in services),
        ",".join(str(conversation) for conversation in stored.conversations),
    )
    return (str(round(stored.share * _SAMPLE_UNITS)), f"{{{chosen[0]}}}", f"{{{chosen[1]}}}"), list(queues)


def _message_triggers(function: str, letters: tuple[str, str], arguments: tuple[str, ...]) -> dict[str, str]:
    """Return the triggers that log messages which enter and leave a table."""
    return {
        _trigger_name(letter, arguments): (
            f"after {event} on {_TABLE} referencing {rows} table as moved for each statement "
            f"execute function servicebroker.{function}({_quoted_arguments((letter, *arguments))})"
        )
        for letter, event, rows in zip(letters, ("insert", "delete"), ("new", "old"), strict=True)
    }


def _trigger_name(letter: str, arguments: Sequence[str]) -> str:
    """Return the name of a trigger. It has a hash of the arguments, so that a change of them creates a new trigger."""
    return f"trailed_{letter.lower()}_{hashlib.sha256(' '.join(arguments).encode()).hexdigest()[:12]}"


def _quoted_arguments(arguments: Sequence[str]) -> str:
    return ", ".join(f"'{argument}'" for argument in arguments)  # numbers and identifiers only, so that quoting is safe


def _recreate_triggers(table: str, wanted: dict[str, str], existing: set[str]) -> Statement:
    qualified = f"servicebroker.{table}"
    drops = [f"drop trigger {name} on {qualified};" for name in sorted(existing - wanted.keys())]
    makes = [
        f"create trigger {name} {text.replace(_TABLE, qualified)};"
        for name, text in wanted.items()
        if name not in existing
    ]
    return Statement(
        "trail.recreate_triggers", f"do $make$ begin\n{chr(10).join(drops + makes)}\nend $make$", prepared=False
    )


def partitions(now: datetime) -> Steps[list[Statement]]:
    """Return statements that create partitions for the next days and drop old ones."""
    stored = yield from settings()
    rows = yield SQL("partitions.find")
    existing = {name for (name,) in rows}
    ((oldest_unassigned, newest_unassigned),) = yield SQL("partitions.find_times_of_default")
    todo = []
    for ahead in range(_DAYS_AHEAD + 1 if stored.is_on else 0):
        day = (now + timedelta(days=ahead)).date()
        after = day + timedelta(days=1)
        # no row of the default partition may fall into the new one
        is_free = newest_unassigned is None or newest_unassigned.date() < day
        if (name := f"trail_d{day:%Y%m%d}") not in existing and is_free:
            text = f"for values from ('{day} 00:00:00+00') to ('{after} 00:00:00+00')"
            todo.append(
                f"do $make$ begin create table servicebroker.{name} partition of servicebroker.trail {text}; "
                # a partition does not inherit the replica identity
                f"alter table servicebroker.{name} replica identity full; end $make$"
            )
    oldest = f"trail_d{(now - TRAIL_RETENTION).date():%Y%m%d}"
    todo += [f"drop table servicebroker.{name}" for name in sorted(existing) if name < oldest]
    statements = [Statement("trail.partitions.change", text, prepared=False) for text in todo]
    if oldest_unassigned is not None and oldest_unassigned < now - TRAIL_RETENTION:
        statements.append(SQL("partitions.forget", (now - TRAIL_RETENTION,)))
    return statements


def find_events(handle: UUID) -> Steps[list[Event]]:
    """Return the logged events of both sides of a conversation, in order: the latest `_MAX_EVENTS`."""
    rows = yield Statement(
        "trail.find_events",
        "with sides as (select conversation_handle, conversation_id from servicebroker.trail "
        "  where conversation_handle = $1 union select conversation_handle, conversation_id "
        "  from servicebroker.conversation_endpoints where conversation_handle = $1), "
        "handles as (select conversation_handle from sides union select t.conversation_handle "
        "  from servicebroker.trail t join sides using (conversation_id) where t.what = 'B' "
        "  union select e.conversation_handle "
        "  from servicebroker.conversation_endpoints e join sides using (conversation_id) union "
        "  select e.far_handle from servicebroker.conversation_endpoints e "
        "  where e.conversation_handle = $1 and e.far_handle is not null) "
        "select * from (select t.at, t.transaction_id, t.conversation_handle, t.what::text, "
        "t.first_number, t.last_number, t.messages, coalesce((select m.name from servicebroker.message_types m "
        "  where m.message_type_id = t.message_type_id limit 1), ''), coalesce(t.detail, '') "
        "from servicebroker.trail t join handles using (conversation_handle) "
        f"order by t.at desc limit {_MAX_EVENTS}) l order by 1, 2",
        (handle,),
    )
    return merge_runs([Event(*row) for row in rows])


def merge_runs(events: Sequence[Event]) -> list[Event]:
    """Merge equal events of one transaction whose messages have consecutive numbers."""
    merged_events: list[Event] = []
    for event in events:
        last = merged_events[-1] if merged_events else None
        if (
            last is not None
            and event.first is not None
            and last.last is not None
            and (last.transaction, last.handle, last.what, last.detail)
            == (event.transaction, event.handle, event.what, event.detail)
            and event.first == last.last + 1
        ):
            both = (last.messages or 0) + (event.messages or 0)
            kind = last.message_type if last.message_type == event.message_type else ""
            merged_events[-1] = last._replace(last=event.last, messages=both, message_type=kind)
        else:
            merged_events.append(event)
    return merged_events
