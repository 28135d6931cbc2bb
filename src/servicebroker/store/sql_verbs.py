"""SEND, RECEIVE and the rest as functions of the server: `verbs.sql` for owners, `fence.sql` for restricted roles."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from datetime import timedelta
from importlib import resources

from servicebroker.model import names
from servicebroker.model.arguments import (
    DEFAULT_LEVEL,
    MAX_BODY_BYTES,
    MAXIMUM_DESCRIPTION,
    MAXIMUM_HANDLES,
    MAXIMUM_KEY,
    MAXIMUM_SLOTS,
)
from servicebroker.model.errors import ERROR_NAMESPACE, MAXIMUM_LIFETIME, RULES
from servicebroker.model.event_types import BROKER_QUEUE_DISABLED
from servicebroker.model.handlers.schedules import MAX_NAME, MAX_RULE
from servicebroker.model.poison import MAXIMUM_PAUSE_S
from servicebroker.model.requests import all_groups
from servicebroker.model.security.permissions import (
    DBO_ID,
    GUEST_ID,
    NEEDS,
    PUBLIC_ID,
    Kind,
    bringing,
    fixed_roles_with,
)
from servicebroker.model.states import REPLAY_PROTECTION, TRANSITIONS, EndpointState, Event
from servicebroker.model.waiting import DELAYED, TARGET_QUEUE_OFF
from servicebroker.model.wording import MAXIMUM_TRACEBACK
from servicebroker.store import locks

DELIVERY_CHANNEL = "servicebroker_delivery"  # notified after SENDs that must be delivered
MONITORS_CHANNEL = "servicebroker_activation"  # notified after changes for queue monitors

AUDIT_KEPT = timedelta(days=365)  # of audit records

TRACE_BYTES = 25  # of a trace context
MAX_ERROR_CHARACTERS = 1000  # characters of the error with which a message failed
MAXIMUM_FAILURES = 1_000_000_000  # of one message; higher counts would overflow the column
MAX_COUNTED_ROWS = 100_000  # rows counted for a user

# the statements of restricted roles that check permissions
FENCED_VERBS = (
    *("CONNECT", "BEGIN DIALOG", "BEGIN CONVERSATION TIMER", "SEND", "RECEIVE", "GET CONVERSATION GROUP"),
    *("MOVE CONVERSATION", "END CONVERSATION", "END ENDED CONVERSATION WITH CLEANUP"),
)


def verbs() -> str:
    """Return the statements that create or recreate the functions for the owner of the schema."""
    return _filled("verbs.sql")


def fence() -> str:
    """Return the statements that create or recreate the functions for restricted roles."""
    return _filled("fence.sql")


def audit() -> str:
    """Return the statements that create or recreate the triggers that record definitions."""
    return _filled("audit.sql")


def trail() -> str:
    """Return the statements that create or recreate the functions of the trail's triggers."""
    return _template("trail.sql")


def _filled(name: str) -> str:
    values = _values()
    return re.sub(r"\{([a-z_]+)\}", lambda slot: str(values[slot[1]]), _template(name))


def _template(name: str) -> str:
    return (resources.files(__package__) / name).read_text()


def _values() -> dict[str, object]:
    numbers = {need.number for statement in FENCED_VERBS for need in NEEDS[statement]}
    for name in ("verbs.sql", "fence.sql"):
        numbers |= {int(one) for one in re.findall(r"(?:refuse\(|array\[')(\d+)\b", _template(name))}
    return {
        "texts": _literal(json.dumps({number: _for_format(RULES[number].text) for number in sorted(numbers)})),
        "group_lock": locks.CONVERSATION_GROUP,
        "begin_lock": locks.DIALOG_BEGIN,
        "begin_in_lock": locks.DATABASE_BEGIN,
        "delivery_lock": locks.PARKED_DELIVERY,
        "service_lock": locks.SERVICE_NAME,
        "pipeline_lock": locks.PIPELINE_QUEUE,
        "move_lock": locks.CONVERSATION_MOVE,
        "slot_lock": locks.QUEUE_SLOT,
        "maximum_slots": MAXIMUM_SLOTS,
        "delivery_channel": DELIVERY_CHANNEL,
        "monitors_channel": MONITORS_CHANNEL,
        "default_priority": DEFAULT_LEVEL,
        "maximum_lifetime": MAXIMUM_LIFETIME,
        "maximum_service_name": names.MAXIMUM_SERVICE_NAME,
        "maximum_body": MAX_BODY_BYTES,
        "maximum_key": MAXIMUM_KEY,
        "maximum_handles": MAXIMUM_HANDLES,
        "maximum_schedule": MAX_NAME,
        "maximum_rule": MAX_RULE,
        "waiting_counted": MAX_COUNTED_ROWS,
        "maximum_description": MAXIMUM_DESCRIPTION,
        "all": 2**31 - 1,
        "dbo": DBO_ID,
        "guest": GUEST_ID,
        "public": PUBLIC_ID,
        "queue": Kind.QUEUE.value,
        "schema": Kind.SCHEMA.value,
        "service": Kind.SERVICE.value,
        "contract": Kind.CONTRACT.value,
        "first_user_id": names.FIRST_USER_ID,
        "lowest_request": f"''{all_groups()[0]}''",
        "highest_request": f"''{all_groups()[1]}''",
        "needs": ", ".join(_needs()),
        "timed": _quoted(state for state, event in TRANSITIONS if event is Event.TIMER),
        "moved": _quoted(state for state, event in TRANSITIONS if event is Event.MOVE),
        "failing": _quoted(
            s for (s, event), to in TRANSITIONS.items() if event is Event.ERROR_ARRIVED and to is EndpointState.ERROR
        ),
        "ending": " ".join(
            f"when '{state.value}' then '{to.value if to else ''}'"
            for (state, event), to in TRANSITIONS.items()
            if event is Event.END
        ),
        "takes_end": _quoted(state for state, event in TRANSITIONS if event is Event.END_DIALOG_ARRIVED),
        "takes_error": _quoted(state for state, event in TRANSITIONS if event is Event.ERROR_ARRIVED),
        "replay_protection": f"interval '{REPLAY_PROTECTION.total_seconds()} s'",
        "error": names.ERROR,
        "error_id": names.ERROR_ID,
        "timer_id": names.DIALOG_TIMER_ID,
        "end_dialog": names.END_DIALOG,
        "error_namespace": ERROR_NAMESPACE,
        "trace_bytes": TRACE_BYTES,
        "error_kept": MAX_ERROR_CHARACTERS,
        "traceback_kept": MAXIMUM_TRACEBACK,
        "maximum_failures": MAXIMUM_FAILURES,
        "maximum_pause": int(MAXIMUM_PAUSE_S),
        "counted_at_most": MAX_COUNTED_ROWS,
        "delayed": _literal(DELAYED),
        "queue_off": _literal(TARGET_QUEUE_OFF),
        "queue_disabled": BROKER_QUEUE_DISABLED,
        "audit_kept": f"interval '{AUDIT_KEPT.days} days'",
        # settings that a caller may have: names of its own before ours, other rules for the strings in our functions
        "pinned": "set search_path = pg_catalog, pg_temp set standard_conforming_strings = on",
    }


def _needs() -> Iterable[str]:
    """Return the rows of `NEEDS` that are checked here, each with all rights that imply the needed one."""
    for statement in FENCED_VERBS:
        for place, need in enumerate(NEEDS[statement]):
            rights = bringing(need.kind, need.permission)
            brought_by = _quoted(f"{kind.value} {permission}" for kind, permission in sorted(rights))
            allowed, denied = (f"array{roles}::integer[]" for roles in fixed_roles_with(rights))
            yield (
                f"('{statement}', {place}, {need.kind.value}, '{need.permission}', {need.number}, "
                f"array[{brought_by}], {allowed}, {denied})"
            )


def _quoted(texts: Iterable[str]) -> str:
    return ", ".join(_literal(str(text)) for text in texts)


def _literal(text: str) -> str:
    escaped = text.replace("'", "''").replace("\\", "\\\\")
    return f" E'{escaped}'" if "\\" in text else f"'{escaped}'"


def _for_format(text: str) -> str:
    """Turn a text with {0} into one with %1$s."""
    return re.sub(r"\{(\d)\}", lambda slot: f"%{int(slot[1]) + 1}$s", text)
