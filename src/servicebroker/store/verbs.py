"""The verbs as functions of the server, made from the template `verbs.sql`."""

from __future__ import annotations

import json
import re
from importlib import resources

from psycopg import sql

from servicebroker.model import names
from servicebroker.model.arguments import DEFAULT_LEVEL, MAXIMUM_BODY
from servicebroker.model.errors import MAXIMUM_LIFETIME, RULES
from servicebroker.store import locks

DELIVERY_CHANNEL = "servicebroker_delivery"  # a notification: something was sent that is to be delivered


def verbs() -> str:
    """The statements that make, or make anew, the functions."""
    text = (resources.files(__package__) / "verbs.sql").read_text()
    numbers = {int(number) for number in re.findall(r"servicebroker\.refuse\((\d+)", text)}
    texts = {number: _for_format(RULES[number].text) for number in numbers}
    values = {
        "texts": sql.Literal(json.dumps(texts)).as_string(None),
        "group_lock": locks.GROUP,
        "begin_lock": locks.BEGIN,
        "begin_in_lock": locks.BEGIN_IN,
        "delivery_lock": locks.DELIVERY,
        "service_lock": locks.SERVICE,
        "delivery_channel": DELIVERY_CHANNEL,
        "default_priority": DEFAULT_LEVEL,
        "maximum_lifetime": MAXIMUM_LIFETIME,
        "maximum_service_name": names.MAXIMUM_SERVICE_NAME,
        "maximum_body": MAXIMUM_BODY,
    }
    return re.sub(r"\{([a-z_]+)\}", lambda slot: str(values[slot[1]]), text)


def _for_format(text: str) -> str:
    """A text with {0} as one with %1$s."""
    return re.sub(r"\{(\d)\}", lambda slot: f"%{int(slot[1]) + 1}$s", text)
