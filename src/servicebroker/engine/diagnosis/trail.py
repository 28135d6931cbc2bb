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
_SHARE_UNITS = 10_000  # the sampled share of conversations is stored in ten thousandths
_TABLE = "<table>"  # a placeholder for the table's name in a trigger
_MAX_EVENTS = 500  # events of a conversation that `life` returns

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
    """The conversations that are logged: a sample of those of these services, and these single ones.

    `share` is the sampled part, 0 to 1. Without `services` it is of all services.
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


class Change(NamedTuple):
    """A statement that creates and drops triggers of one table."""

    table: str
    statement: Statement


def settings() -> Steps[TrailSettings]:
    """Return the settings of the trail."""
    rows = yield SQL("settings")
    is_on, share, services, conversations = rows[0]
    return TrailSettings(is_on, share / _SHARE_UNITS, list(services), list(conversations))


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


def switch(wanted: TrailSettings) -> Steps[None]:
    """Store the settings of the trail; `changes` returns the statements that apply them.

    Raises:
        BrokerError: 15151 no such service, 8426 no such conversation, 402 a share outside of 0 to 1.
    """
    if not 0 <= wanted.share <= 1:
        raise BrokerError(402, "the share", wanted.share, "from 0 to 1")
    known = yield SQL("switch.find_services", (wanted.services,))
    for service in wanted.services:
        if (service,) not in known:
            raise BrokerError(15151, "find", "service", service)
    rows = yield find_conversations(wanted.conversations)
    identifiers = {identifier: conversation for handle, conversation in rows for identifier in (handle, conversation)}
    for wanted_id in wanted.conversations:
        if wanted_id not in identifiers:
            raise BrokerError(8426, wanted_id)
    chosen = sorted({identifiers[wanted_id] for wanted_id in wanted.conversations}, key=str)
    yield SQL("switch.update", (wanted.is_on, round(wanted.share * _SHARE_UNITS), wanted.services, chosen))
    audited = {
        "share": wanted.share,
        "services": ", ".join(wanted.services),
        "conversations": ", ".join(map(str, chosen)),
    }
    yield from record_action("TRAIL ON" if wanted.is_on else "TRAIL OFF", "", "", audited if wanted.is_on else {})


def changes() -> Steps[list[Change]]:
    """Return the changes that make the triggers match the settings; each needs a transaction of its own."""
    stored = yield from settings()
    wanted: dict[str, dict[str, str]] = {}
    if stored.is_on:
        arguments, queues = yield from _followed(stored)
        for queue_id in queues:
            wanted[f"queue_{queue_id}"] = _of_messages("trail_messages", ("A", "R"), arguments)
        wanted["transmission_queue"] = _of_messages("trail_sent", ("W", "L"), arguments)
        endpoint = f"after insert or delete or update of state, conversation_group_id, dialog_timer on {_TABLE}"
        wanted["conversation_endpoints"] = {
            _name("E", arguments): f"{endpoint} for each row execute function "
            f"servicebroker.trail_endpoint({_listed(arguments)})"
        }
        for table, when, what in (
            ("failed_messages", "after insert or update", "F"),
            ("set_aside_messages", "after insert", "P"),
        ):
            wanted[table] = {
                _name(what, arguments): f"{when} on {_TABLE} for each row execute function "
                f"servicebroker.trail_failure({_listed((what, *arguments))})"
            }
    rows = yield SQL("changes")
    existing: dict[str, set[str]] = {}
    for table, name in rows:
        existing.setdefault(table, set()).add(name)
    return [
        Change(table, _remade(table, wanted.get(table, {}), existing.get(table, set())))
        for table in sorted(wanted.keys() | existing.keys())
        if wanted.get(table, {}).keys() != existing.get(table, set())
    ]


def briefly(statement: Statement) -> Steps[None]:
    """Run a change of a table with a short lock timeout, because other sessions wait behind its lock."""
    yield SQL("briefly", prepared=False)
    yield statement


def _followed(stored: TrailSettings) -> Steps[tuple[tuple[str, ...], list[int]]]:
    """Return the arguments of the triggers, and the queues that need them."""
    rows = yield SQL(
        "followed",
        (stored.services, stored.conversations, names.FIRST_USER_ID, not stored.services and stored.share > 0),
    )
    services, queues = rows[0]
    if stored.share == 1 and not stored.services:
        return (), list(queues)
    chosen = (
        ",".join(str(number) for number in services),
        ",".join(str(conversation) for conversation in stored.conversations),
    )
    return (str(round(stored.share * _SHARE_UNITS)), f"{{{chosen[0]}}}", f"{{{chosen[1]}}}"), list(queues)


def _of_messages(function: str, letters: tuple[str, str], arguments: tuple[str, ...]) -> dict[str, str]:
    """Return the triggers that log messages which enter and leave a table."""
    return {
        _name(letter, arguments): f"after {event} on {_TABLE} referencing {rows} table as moved for each statement "
        f"execute function servicebroker.{function}({_listed((letter, *arguments))})"
        for letter, event, rows in zip(letters, ("insert", "delete"), ("new", "old"), strict=True)
    }


def _name(letter: str, arguments: Sequence[str]) -> str:
    """Return the name of a trigger. It has a hash of the arguments, so that a change of them creates a new trigger."""
    return f"trailed_{letter.lower()}_{hashlib.sha256(' '.join(arguments).encode()).hexdigest()[:12]}"


def _listed(arguments: Sequence[str]) -> str:
    return ", ".join(f"'{argument}'" for argument in arguments)  # numbers and identifiers only, so that quoting is safe


def _remade(table: str, wanted: dict[str, str], existing: set[str]) -> Statement:
    whole = f"servicebroker.{table}"
    drops = [f"drop trigger {name} on {whole};" for name in sorted(existing - wanted.keys())]
    makes = [
        f"create trigger {name} {text.replace(_TABLE, whole)};" for name, text in wanted.items() if name not in existing
    ]
    return Statement("trail.remade", f"do $make$ begin\n{chr(10).join(drops + makes)}\nend $make$", prepared=False)


def partitions(now: datetime) -> Steps[list[Statement]]:
    """Return statements that create partitions for the next days and drop old ones."""
    stored = yield from settings()
    rows = yield SQL("partitions.find")
    existing = {name for (name,) in rows}
    rest = yield SQL("partitions.find_rest")
    todo = []
    for ahead in range(_DAYS_AHEAD + 1 if stored.is_on else 0):
        day = (now + timedelta(days=ahead)).date()
        after = day + timedelta(days=1)
        is_free = rest[0][1] is None or rest[0][1].date() < day
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
    if rest[0][0] is not None and rest[0][0] < now - TRAIL_RETENTION:
        statements.append(SQL("partitions.forget", (now - TRAIL_RETENTION,)))
    return statements


def life(handle: UUID) -> Steps[list[Event]]:
    """Return the logged events of both sides of a conversation, in order: the latest `_MAX_EVENTS`."""
    rows = yield Statement(
        "trail.life",
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
    return merged([Event(*row) for row in rows])


def merged(events: Sequence[Event]) -> list[Event]:
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
