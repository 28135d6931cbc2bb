"""SQL functions for SEND, RECEIVE and the other statements of Service Broker, filled in from templates.

`verbs.sql` has the functions of the schema's owner. `fence.sql` has those of restricted roles, the "fence": SECURITY
DEFINER functions that check the permissions of the caller.
"""

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
    fixed_roles_with,
    implied_by,
)
from servicebroker.model.states import REPLAY_PROTECTION, TRANSITIONS, EndpointState, Event
from servicebroker.model.waiting import DELAYED, TARGET_QUEUE_OFF
from servicebroker.model.wording import MAXIMUM_TRACEBACK
from servicebroker.store import locks

DELIVERY_CHANNEL = "servicebroker_delivery"  # notified after SENDs that must be delivered
MONITORS_CHANNEL = "servicebroker_activation"  # notified after changes for queue monitors

AUDIT_RETENTION = timedelta(days=365)

TRACE_CONTEXT_BYTES = 25  # the size of a W3C trace context in binary form
MAX_ERROR_CHARACTERS = 1000  # kept of the error with which a message failed
MAX_FAILURE_COUNT = 1_000_000_000  # failures of one message; a higher count would overflow the column
MAX_COUNTED_ROWS = 100_000  # rows: a count that a user reads stops at this number, because counting takes time

# the statements for which the functions of restricted roles check permissions
FENCED_STATEMENTS = (
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
    """Return the statements that create or recreate the triggers of the audit, which record changed definitions."""
    return _filled("audit.sql")


def trail() -> str:
    """Return the statements that create or recreate the trigger functions of the trail, an optional log of messages."""
    return _template("trail.sql")


def _filled(name: str) -> str:
    values = _values()
    return re.sub(r"\{([a-z_]+)\}", lambda placeholder: str(values[placeholder[1]]), _template(name))


def _template(name: str) -> str:
    return (resources.files(__package__) / name).read_text()


def _values() -> dict[str, object]:
    numbers = {need.number for statement in FENCED_STATEMENTS for need in NEEDS[statement]}
    for name in ("verbs.sql", "fence.sql"):
        numbers |= {int(number) for number in re.findall(r"(?:refuse\(|array\[')(\d+)\b", _template(name))}
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
        "max_counted_rows": MAX_COUNTED_ROWS,
        "maximum_description": MAXIMUM_DESCRIPTION,
        "all_rows": 2**31 - 1,  # a LIMIT that means no limit
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
        "permission_rows": ", ".join(_permission_rows()),
        # states of an endpoint, and the state after END CONVERSATION
        "states_with_timer": _quoted(state for state, event in TRANSITIONS if event is Event.TIMER),
        "states_that_move": _quoted(state for state, event in TRANSITIONS if event is Event.MOVE),
        "states_that_fail": _quoted(
            state
            for (state, event), to in TRANSITIONS.items()
            if event is Event.ERROR_ARRIVED and to is EndpointState.ERROR
        ),
        "states_after_end": " ".join(
            f"when '{state.value}' then '{to.value if to else ''}'"
            for (state, event), to in TRANSITIONS.items()
            if event is Event.END
        ),
        "states_that_accept_end": _quoted(state for state, event in TRANSITIONS if event is Event.END_DIALOG_ARRIVED),
        "states_that_accept_error": _quoted(state for state, event in TRANSITIONS if event is Event.ERROR_ARRIVED),
        "replay_protection": f"interval '{REPLAY_PROTECTION.total_seconds()} s'",
        "error": names.ERROR,
        "error_id": names.ERROR_ID,
        "timer_id": names.DIALOG_TIMER_ID,
        "end_dialog": names.END_DIALOG,
        "error_namespace": ERROR_NAMESPACE,
        "trace_bytes": TRACE_CONTEXT_BYTES,
        "error_kept": MAX_ERROR_CHARACTERS,
        "traceback_kept": MAXIMUM_TRACEBACK,
        "maximum_failures": MAX_FAILURE_COUNT,
        "maximum_pause": int(MAXIMUM_PAUSE_S),
        "delayed": _literal(DELAYED),
        "queue_off": _literal(TARGET_QUEUE_OFF),
        "queue_disabled": BROKER_QUEUE_DISABLED,
        "audit_kept": f"interval '{AUDIT_RETENTION.days} days'",
        # A caller's own settings would change the objects and strings that the functions mean.
        "pinned": "set search_path = pg_catalog, pg_temp set standard_conforming_strings = on",
    }


def _permission_rows() -> Iterable[str]:
    """Return a row of SQL for each permission that a statement needs, with all permissions that imply it."""
    for statement in FENCED_STATEMENTS:
        for position, need in enumerate(NEEDS[statement]):
            rights = implied_by(need.kind, need.permission)
            brought_by = _quoted(f"{kind.value} {permission}" for kind, permission in sorted(rights))
            allowed, denied = (f"array{roles}::integer[]" for roles in fixed_roles_with(rights))
            yield (
                f"('{statement}', {position}, {need.kind.value}, '{need.permission}', {need.number}, "
                f"array[{brought_by}], {allowed}, {denied})"
            )


def _quoted(texts: Iterable[str]) -> str:
    return ", ".join(_literal(str(text)) for text in texts)


def _literal(text: str) -> str:
    escaped = text.replace("'", "''").replace("\\", "\\\\")
    return f" E'{escaped}'" if "\\" in text else f"'{escaped}'"


def _for_format(text: str) -> str:
    """Turn a text with {0} into one with %1$s."""
    return re.sub(r"\{(\d)\}", lambda placeholder: f"%{int(placeholder[1]) + 1}$s", text)
