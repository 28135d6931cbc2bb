"""Names: the built-in objects, the rules for a name, and the PostgreSQL name derived from it.

The rules: docs/reference/rules.md#names.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import NamedTuple

from servicebroker.model.errors import BrokerError

MAXIMUM_NAME = 128  # characters of a name in DDL
MAXIMUM_SERVICE_NAME = 256  # characters of a service name given as a literal
POSTGRES_IDENTIFIER = 63  # bytes

SYSTEM_SCHEMAS = frozenset({"sys", "information_schema"})  # schemas in which no objects can be created

_NAME_PART = r"(?:\[(?:[^\]]|\]\])+\]|[^.\[\]]+)"  # one part of a name, in brackets or plain

_BROKER = "http://schemas.microsoft.com/SQL/ServiceBroker/"
_NOTIFICATIONS = "http://schemas.microsoft.com/SQL/Notifications/"

DEFAULT = "DEFAULT"
"""`DEFAULT`: the message type and the contract that every database has; either side may send any body."""
ERROR = _BROKER + "Error"
"""The type of the message with the reason why a conversation has failed; `read_error` reads its body."""
END_DIALOG = _BROKER + "EndDialog"
"""The type of the message after the other side has ended the conversation; it has no body."""
DIALOG_TIMER = _BROKER + "DialogTimer"
"""The type of the message that a conversation timer puts into the queue of the side that set it; it has no body."""

EVENT_NOTIFICATION = _NOTIFICATIONS + "EventNotification"
POST_EVENT_NOTIFICATION = _NOTIFICATIONS + "PostEventNotification"
EVENT_NOTIFICATION_SERVICE = _NOTIFICATIONS + "EventNotificationService"

ERROR_ID, END_DIALOG_ID, DIALOG_TIMER_ID, DEFAULT_ID = 1, 2, 5, 14
FIRST_USER_ID = 65536


class MessageTypeRow(NamedTuple):
    """One built-in message type; `validation` is the catalog letter N, E or X."""

    message_type_id: int
    name: str
    validation: str


CONFIGURATION_NOTICE = _BROKER + "BrokerConfigurationNotice"  # the contract with the dynamic routing service
# the service that asks the dynamic routing service, and answers Echo and Query
SERVICE_BROKER = _BROKER + "ServiceBroker"
SERVICE_ECHO_ID = 4
SERVICE_ECHO = _BROKER + "ServiceEcho"  # the contract for Echo
ECHO = SERVICE_ECHO + "/Echo"  # a message that is returned as it was sent
SERVICE_DIAGNOSTIC_ID = 5
SERVICE_DIAGNOSTIC = _BROKER + "ServiceDiagnostic"  # the contract for Query
QUERY, STATUS, DESCRIPTION = (f"{SERVICE_DIAGNOSTIC}/{name}" for name in ("Query", "Status", "Description"))
_NOTICES = ("MissingRoute", "FailedRoute", "MissingRemoteServiceBinding", "FailedRemoteServiceBinding")

SYSTEM_MESSAGE_TYPES = (
    MessageTypeRow(ERROR_ID, ERROR, "X"),
    MessageTypeRow(END_DIALOG_ID, END_DIALOG, "E"),
    MessageTypeRow(3, _NOTIFICATIONS + "QueryNotification", "X"),
    MessageTypeRow(4, EVENT_NOTIFICATION, "X"),
    MessageTypeRow(DIALOG_TIMER_ID, DIALOG_TIMER, "E"),
    *(MessageTypeRow(6 + n, f"{CONFIGURATION_NOTICE}/{name}", "X") for n, name in enumerate(_NOTICES)),
    MessageTypeRow(10, ECHO, "N"),
    MessageTypeRow(11, QUERY, "X"),
    MessageTypeRow(12, STATUS, "X"),
    MessageTypeRow(13, DESCRIPTION, "N"),
    MessageTypeRow(DEFAULT_ID, DEFAULT, "N"),
)


class ContractRow(NamedTuple):
    """One built-in contract; `usages` maps the id of a message type to INITIATOR, TARGET or ANY."""

    service_contract_id: int
    name: str
    usages: dict[int, str]


SYSTEM_CONTRACTS = (
    ContractRow(1, _NOTIFICATIONS + "PostQueryNotification", {3: "INITIATOR"}),
    ContractRow(2, POST_EVENT_NOTIFICATION, {4: "INITIATOR"}),
    ContractRow(3, CONFIGURATION_NOTICE, dict.fromkeys((6, 7, 8, 9), "INITIATOR")),
    ContractRow(SERVICE_ECHO_ID, SERVICE_ECHO, {10: "ANY"}),
    ContractRow(SERVICE_DIAGNOSTIC_ID, SERVICE_DIAGNOSTIC, {11: "INITIATOR", 12: "TARGET", 13: "TARGET"}),
    ContractRow(6, DEFAULT, {DEFAULT_ID: "ANY"}),
)


# name and error queue; only SERVICE_BROKER accepts conversations, on the contracts SERVICE_ECHO and SERVICE_DIAGNOSTIC
SYSTEM_SERVICES = (
    (_NOTIFICATIONS + "QueryNotificationService", "QueryNotificationErrorsQueue"),
    (EVENT_NOTIFICATION_SERVICE, "EventNotificationErrorsQueue"),
    (SERVICE_BROKER, "ServiceBrokerQueue"),
)


def short(name: str) -> str:
    """Return the last part of a system object's name, such as EndDialog; other names unchanged."""
    is_system = name.startswith((_BROKER, _NOTIFICATIONS))
    return name.rpartition("/")[2] if is_system else name


def checked(kind: str, name: object, maximum: int = MAXIMUM_NAME) -> str:
    """Return `name` if it is valid for a `kind` ('queue', 'service', ...).

    Raises:
        BrokerError: 402 the name is not a str; 15151 it is empty, too long, or has a NUL or half of a surrogate pair.
    """
    if not isinstance(name, str):
        raise BrokerError(402, f"the {kind} name", type(name).__name__, "str")
    if not name or len(name) > maximum or "\0" in name or not (name.isascii() or is_encodable(name)):
        shown = name[:40] + "…" if len(name) > 40 else name
        raise BrokerError(15151, "use", kind, shown, hint=f"A {kind} name has 1 to {maximum} characters and no NUL.")
    return name


def name_parts(kind: str, name: object, most: int) -> list[str]:
    """Return the parts of `name`, `schema.name` or `[database].[schema].[name]`, at most `most`.

    Raises:
        BrokerError: 9609 more parts, 15151 an empty part or a stray bracket.
    """
    text = checked(kind, name, most * (2 * MAXIMUM_NAME + 3))
    if not re.fullmatch(rf"{_NAME_PART}(\.{_NAME_PART})*", text):
        raise BrokerError(15151, "use", kind, text, hint="Write a name with dots or brackets as [name]; ] is ]].")
    parts = [part[1:-1].replace("]]", "]") if part[0] == "[" else part for part in re.findall(_NAME_PART, text)]
    if len(parts) > most:
        raise BrokerError(9609, kind, text, most - 1)
    return [checked(kind, part) for part in parts]


def bracketed(*parts: str) -> str:
    """Return the name with each part in brackets, as `name_parts` reads it. Missing parts stay empty, as in a..b."""
    return ".".join(f"[{part.replace(']', ']]')}]" if part else "" for part in parts)


def split_name(kind: str, name: object) -> tuple[str, str]:
    """Return schema and name of an object whose name has at most these two parts; the default schema is dbo."""
    *schema, own = name_parts(kind, name, 2)
    return (schema or ["dbo"])[0], own


def split_queue_name(name: object) -> tuple[str, str]:
    """Return schema and name of a queue."""
    return split_name("queue", name)


def is_encodable(text: str) -> bool:
    """Return False if `text` has a lone half of a surrogate pair, which UTF-8 cannot encode."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def checked_queue(name: object) -> str:
    """Return a queue's name if it is valid: as `checked`, and without a leading # (docs/reference/rules.md#names)."""
    text = checked("queue", name)
    if text.startswith("#"):
        raise BrokerError(15151, "use", "queue", text, hint="A queue name may not begin with #.")
    return text


def postgres_stem(name: str) -> str:
    """Return the common prefix of all PostgreSQL names that an object of this name may get."""
    return postgres_name(name).encode()[: POSTGRES_IDENTIFIER - 9].decode(errors="ignore")


def postgres_name(*parts: str, taken: frozenset[str] = frozenset()) -> str:
    """Return the PostgreSQL name of an object: its parts joined by _, in lower case, at most 63 bytes.

    A name that had to be cut, or that is already `taken`, ends in eight hex digits of its hash. Names that PostgreSQL
    reserves get a leading _.

    Raises:
        BrokerError: 15151 a name with half of a surrogate pair.
    """
    full = "_".join(parts)
    name = full.lower()
    if not (name.isascii() or is_encodable(name)):
        raise BrokerError(15151, "use", "name", ascii(full[:40]), hint="A name has no half of a surrogate pair.")
    if name.startswith("pg_") or name == "information_schema":
        name = "_" + name
    candidate, attempt = name, ""
    while len(candidate.encode()) > POSTGRES_IDENTIFIER or candidate in taken:
        digest = hashlib.sha256((full + attempt).encode()).hexdigest()[:8]
        room = POSTGRES_IDENTIFIER - len(digest) - 1
        candidate = name.encode()[:room].decode(errors="ignore") + "_" + digest
        attempt += "'"
    return candidate


def advise_contract(contract: str, suitable: Sequence[str]) -> str:
    """Return the hint of 8431: the contract of the conversation, and up to three contracts with the message type."""
    named = "DEFAULT, since its BEGIN DIALOG named none" if contract == DEFAULT else f"'{contract}'"
    others = " or ".join(f"'{name}'" for name in suitable[:3])
    advice = f"Begin it with contract {others}, which has the type." if others else "No contract has the type."
    return f"The contract of this conversation is {named}. {advice}"
