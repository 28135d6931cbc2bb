"""Checks of the arguments of verbs and definitions, without the catalog or any conversation."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, TypeVar
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.errors import MAXIMUM_LIFETIME, BrokerError
from servicebroker.model.handlers import check_kind, check_parameters
from servicebroker.model.wording import short_repr
from servicebroker.overriding import override

VALID_XML = "VALID_XML"
VALIDATIONS = {"NONE": "N", "EMPTY": "E", "WELL_FORMED_XML": "X", VALID_XML: "X"}
SENT_BY = {"INITIATOR": (True, False), "TARGET": (False, True), "ANY": (True, True)}

MAX_BODY_BYTES = 512 * 1024 * 1024  # bytes of a message body, unless the instance was opened with another limit
HIGHEST_MAX_BODY_BYTES = 900 * 1024 * 1024  # bytes; PostgreSQL fails at 1 GB, with the rest of the row
MAXIMUM_DESCRIPTION = 3000  # characters
MAXIMUM_KEY = 256  # characters of an idempotency key: an entry of its index has 2,700 bytes at most
MAXIMUM_GROUPS = 60  # groups in a transaction: one subtransaction each; PostgreSQL keeps 64 of a backend in memory
MAXIMUM_SLOTS = 1_000  # handler slots of a queue's workers: a waiting reader tries each
MAXIMUM_HANDLES = 10_000  # handles in one SEND: each may need a lock, and the server's lock table is bounded
CURRENT_DATABASE = "CURRENT DATABASE"
NAME_TAKEN = 2714
ANY = "ANY"  # the value of a criterion that a broker priority does not use
_RATE = re.compile(r"(?P<count>\d{1,9}(\.\d{1,9})?)/(?P<unit>s|min|h)")
_UNIT_S = {"s": 1.0, "min": 60.0, "h": 3600.0}
DEFAULT_LEVEL = 5  # the priority of a conversation without a broker priority

Body = bytes | bytearray | memoryview | str
Given = TypeVar("Given")


class Omitted:
    """The value of an omitted body, which differs from NULL."""

    @override
    def __repr__(self) -> str:
        return "OMITTED"


OMITTED = Omitted()


# ---------------------------------------------------------------- verbs


def check_handle(handle: object) -> None:
    """Refuse a value that cannot be a conversation handle, before any query.

    Raises:
        BrokerError: 8418 the handle is missing, 402 another type.
    """
    if handle is None:
        raise BrokerError(8418)
    if not isinstance(handle, UUID):
        raise BrokerError(402, "the conversation handle", type(handle).__name__, "uuid.UUID")


def check_handles(handles: object) -> None:
    """Refuse a value that cannot be a list of conversation handles.

    Raises:
        BrokerError: 402 no list, none or too many handles, or one twice; 8418 one is missing.
    """
    if not isinstance(handles, Sequence) or isinstance(handles, str | bytes | bytearray):
        raise BrokerError(402, "the conversation handle", type(handles).__name__, "uuid.UUID or a list of them")
    if not 1 <= len(handles) <= MAXIMUM_HANDLES:
        raise BrokerError(402, "the list of handles", f"{len(handles)} long", f"1 to {MAXIMUM_HANDLES} handles long")
    seen = set()
    for handle in handles:
        check_handle(handle)
        if handle in seen:
            raise BrokerError(402, "the list of handles", f"one with {handle} twice", "different handles")
        seen.add(handle)


_CODEC_HINT = 'To send other objects, register a codec of the message type: @sb.codec("//shop/Order").'


def stored_body(body: Body | Omitted | None, maximum: int = MAX_BODY_BYTES) -> bytes | None:
    """Return the bytes to store: None for an omitted or empty body; a str as UTF-8.

    Raises:
        BrokerError: 8433 NULL, 8459 more than `maximum` bytes, 402 another type.
    """
    if type(body) is bytes and len(body) <= maximum:  # the usual case, first because a loop of SENDs feels each check
        return body or None
    if isinstance(body, Omitted):
        return None
    if body is None:
        raise BrokerError(8433)
    if isinstance(body, str):
        if not names.is_encodable(body):
            raise BrokerError(402, "the message body", "a str that UTF-8 cannot carry", "bytes or str")
        body = body.encode()
    elif not isinstance(body, (bytes, bytearray, memoryview)):
        raise BrokerError(402, "the message body", type(body).__name__, "bytes or str", hint=_CODEC_HINT)
    if memoryview(body).nbytes > maximum:  # before copying it
        raise BrokerError(8459, maximum)
    return bytes(body) or None


def checked_maximum(maximum: object) -> int:
    """Check and return the limit of bodies for opening an instance, in bytes."""
    if not isinstance(maximum, int) or isinstance(maximum, bool) or not 0 < maximum <= HIGHEST_MAX_BODY_BYTES:
        raise BrokerError(402, "maximum_body", short_repr(maximum), f"bytes, 1 to {HIGHEST_MAX_BODY_BYTES}")
    return maximum


def stored_bodies(bodies: Iterable[Body], maximum: int = MAX_BODY_BYTES) -> list[bytes | None]:
    """Return the bytes to store for the bodies of a batch, at least one."""
    if isinstance(bodies, str | bytes | bytearray | memoryview) or not isinstance(bodies, Iterable):
        raise BrokerError(402, "the batch", type(bodies).__name__, "a list of bodies")
    contents = [stored_body(body, maximum) for body in bodies]
    if not contents:
        raise BrokerError(402, "the batch", "empty", "at least one body")
    return contents


def check_script(script: object, parameters: object) -> None:
    """Refuse T-SQL that is not a str, and parameters that are not a mapping of names to values."""
    if not isinstance(script, str):
        raise BrokerError(402, "the script", type(script).__name__, "str")
    if parameters is not None and not (isinstance(parameters, Mapping) and all(isinstance(p, str) for p in parameters)):
        raise BrokerError(402, "the parameters", short_repr(parameters), "values by their names")


def check_wait(wait: object) -> None:
    """Refuse a value that is not a number of seconds for WAITFOR."""
    if not isinstance(wait, int | float) or isinstance(wait, bool) or not wait >= 0:
        raise BrokerError(402, "wait", short_repr(wait), "seconds, 0 or more")


def check_seconds(name: str, seconds: object) -> None:
    """Refuse a value that is not a finite number of seconds.

    Raises:
        BrokerError: 402 another value.
    """
    is_number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
    if not is_number or not 0 <= seconds <= MAXIMUM_LIFETIME:  # type: ignore[operator] # it is a number
        raise BrokerError(402, name, short_repr(seconds), f"seconds, 0 to {MAXIMUM_LIFETIME}")


def due_time(delay: object, at: object, now: datetime) -> datetime | None:
    """Return the time until which a SEND is delayed; None if it is not delayed, or the time has passed.

    Raises:
        BrokerError: 402 no duration, no time with a time zone, or both.
    """
    if delay is not None and at is not None:
        raise BrokerError(402, "SEND", "delay and at", "one of the two")
    if at is not None:
        if not isinstance(at, datetime) or at.utcoffset() is None:
            raise BrokerError(402, "at", short_repr(at), "a datetime with a time zone")
        due = _in_utc(at)
    elif delay is not None:
        seconds = delay.total_seconds() if isinstance(delay, timedelta) else delay
        check_seconds("delay", seconds)
        due = now + timedelta(seconds=seconds)  # type: ignore[arg-type] # it is a number
    else:
        return None
    return due if due > now else None


def _in_utc(at: datetime) -> datetime:
    try:
        return at.astimezone(UTC)
    except OverflowError:  # UTC has no such year
        raise BrokerError(402, "at", short_repr(at), "a time in the years 1 to 9999 in UTC") from None


def check_procedure(procedure: object, *, may_be_async: bool) -> None:
    """Refuse a function that `process` cannot run.

    Raises:
        BrokerError: 402 no function of a transaction and its messages, or one whose call runs nothing.
    """
    if not callable(procedure):
        raise BrokerError(402, "procedure", short_repr(procedure), "a function of a transaction and its messages")
    check_kind("procedure", procedure, may_be_async=may_be_async)
    check_parameters("procedure", procedure, "transaction", "messages")


def check_policy(policy: object) -> None:
    """Refuse a retry policy that cannot be called with a failure.

    Raises:
        BrokerError: 402 no function of a Failure, or one whose call runs nothing.
    """
    if policy is None:
        return
    if not callable(policy):
        raise BrokerError(402, "poison", short_repr(policy), "a function with one argument, the Failure")
    check_kind("poison", policy, may_be_async=False)
    check_parameters("poison", policy, "failure")


def check_count(name: str, count: object) -> None:
    """Refuse a value that is not a count of at least one."""
    if not isinstance(count, int) or isinstance(count, bool) or not 1 <= count <= 2_147_483_647:
        raise BrokerError(402, name, short_repr(count), "an int of 1 or more")


def messages_per_second(name: str, rate: object) -> float:
    """Return the number of a rate such as "100/s", "30/min" or "1000/h". `name` is that of the argument.

    Raises:
        BrokerError: 402 another value, or none above 0.
    """
    match = _RATE.fullmatch(rate) if isinstance(rate, str) else None
    if match is None or not float(match["count"]):
        raise BrokerError(402, name, short_repr(rate), 'a number above 0 of messages by s, min or h: "100/s"')
    return float(match["count"]) / _UNIT_S[match["unit"]]


def check_priority(priority: object) -> None:
    """Refuse a value that is not a priority of a conversation; None means without one.

    Raises:
        BrokerError: 402 another value.
    """
    is_level = isinstance(priority, int) and not isinstance(priority, bool) and 1 <= priority <= 10
    if priority is not None and not is_level:
        raise BrokerError(402, "priority", short_repr(priority), "an int from 1 to 10")


def check_idempotency(key: object, seconds: object) -> None:
    """Refuse an invalid idempotency key or time to live; None means without a key.

    Raises:
        BrokerError: 402 another value.
    """
    is_text = isinstance(key, str) and 0 < len(key) <= MAXIMUM_KEY and "\0" not in key and names.is_encodable(key)
    if key is not None and not is_text:
        raise BrokerError(402, "idempotency_key", short_repr(key), f"a str of 1 to {MAXIMUM_KEY} characters")
    is_count = isinstance(seconds, int) and not isinstance(seconds, bool)
    if not is_count or not 1 <= seconds <= MAXIMUM_LIFETIME:  # type: ignore[operator] # it is an int
        raise BrokerError(402, "idempotency_ttl", short_repr(seconds), f"an int from 1 to {MAXIMUM_LIFETIME} (seconds)")


def check_groups(groups: object) -> None:
    """Refuse a value that is not a valid number of conversation groups for one transaction."""
    check_count("groups", groups)
    if groups > MAXIMUM_GROUPS:  # type: ignore[operator]
        raise BrokerError(402, "groups", short_repr(groups), f"at most {MAXIMUM_GROUPS}: each costs a subtransaction")


def check_slots(slots: object) -> None:
    """Refuse a value that is not a number of concurrent handlers of a queue's workers."""
    check_count("global_concurrency", slots)
    if slots > MAXIMUM_SLOTS:  # type: ignore[operator]
        raise BrokerError(402, "global_concurrency", short_repr(slots), f"at most {MAXIMUM_SLOTS}")


def check_error_code(code: object) -> None:
    """Refuse a value that is not a valid code of END CONVERSATION WITH ERROR."""
    if not isinstance(code, int) or isinstance(code, bool) or not 0 < code <= 2_147_483_647:
        raise BrokerError(402, "the error code", short_repr(code), "a positive int")


def broker_instance(given: object) -> str | None:
    """Return the identifier in its usual spelling, CURRENT_DATABASE, or None if none was given.

    Raises:
        BrokerError: 1093 no identifier, 8413 too long, 402 another type.
    """
    if given is None or isinstance(given, UUID):
        return None if given is None else str(given)
    if not isinstance(given, str):
        raise BrokerError(402, "the broker instance", type(given).__name__, "str or uuid.UUID")
    if len(given.encode(errors="replace")) > 256:
        raise BrokerError(8413, given)
    if given.upper() == CURRENT_DATABASE:
        return CURRENT_DATABASE
    try:
        return str(UUID(given))
    except ValueError:
        raise BrokerError(1093, given) from None


# ---------------------------------------------------------------- definitions


def validation_letter(validation: object, schema_collection: object = None) -> str:
    """Return the catalog letter of a message type's VALIDATION; only VALID_XML takes a schema collection.

    Raises:
        BrokerError: 402 an unknown validation, VALID_XML without a collection or a collection without it.
    """
    if not isinstance(validation, str) or validation not in VALIDATIONS:
        raise BrokerError(402, "VALIDATION", short_repr(validation), "one of " + ", ".join(VALIDATIONS))
    if (validation == VALID_XML) != (schema_collection is not None):
        raise BrokerError(
            402, "the schema collection", short_repr(schema_collection), f"named with {VALID_XML}, and only with it"
        )
    return VALIDATIONS[validation]


def checked_sent_by(contract: str, sent_by: Mapping[str, str] | Iterable[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the message types of a contract with their senders.

    Raises:
        BrokerError: 8403 a type is given twice, 8492 the initiator may send nothing, 402 wrong types.
    """
    pairs = _pairs(sent_by)
    message_types = [names.checked("message type", message_type) for message_type, _ in pairs]
    for message_type in message_types:
        if message_types.count(message_type) > 1:
            raise BrokerError(8403, message_type)
    for _, side in pairs:
        if not isinstance(side, str) or side not in SENT_BY:
            raise BrokerError(402, "SENT BY", short_repr(side), "one of " + ", ".join(SENT_BY))
    if not any(SENT_BY[side][0] for _, side in pairs):
        raise BrokerError(8492, contract)
    return pairs


def _pairs(sent_by: object) -> list[tuple[str, str]]:
    """Return message types with their senders, from a mapping or from pairs."""
    pairs = list(sent_by.items() if isinstance(sent_by, Mapping) else sent_by if isinstance(sent_by, Iterable) else [0])
    if not all(isinstance(pair, tuple) and len(pair) == 2 for pair in pairs):
        raise BrokerError(402, "the message types", type(sent_by).__name__, "a mapping or pairs of type and sender")
    return pairs


def checked_contracts(contracts: Iterable[str]) -> list[str]:
    """Check and return contract names. A name that occurs twice is refused with 8404."""
    if isinstance(contracts, str) or not isinstance(contracts, Iterable):
        raise BrokerError(402, "the contracts", type(contracts).__name__, "a list of names")
    contract_names = [names.checked("service contract", contract) for contract in contracts]
    for contract in contract_names:
        if contract_names.count(contract) > 1:
            raise BrokerError(8404, contract)
    return contract_names


def check_switch(option: str, given: object) -> None:
    """Refuse a value for an option that is neither True (ON) nor False (OFF)."""
    if not isinstance(given, bool):
        raise BrokerError(402, option, short_repr(given), "True for ON, False for OFF")


@contextmanager
def may_exist(allowed: bool) -> Iterator[None]:
    """Run a definition; if `allowed`, ignore that its name is taken."""
    check_switch("exist_ok", allowed)
    try:
        yield
    except BrokerError as refused:
        if not allowed or refused.number != NAME_TAKEN:
            raise


def check_changes(**options: object) -> None:
    """Refuse options of an ALTER that are neither ON, OFF nor None; None means unchanged."""
    for option, value in options.items():
        if value is not None:
            check_switch(option, value)


def check_broker_options(*chosen: bool) -> None:
    """Refuse more than one of ENABLE_BROKER, DISABLE_BROKER, NEW_BROKER and ERROR_BROKER_CONVERSATIONS."""
    for option in chosen:
        check_switch("SET", option)
    if sum(chosen) > 1:
        raise BrokerError(402, "SET", "two of the broker's options", "one of them")


class Termination(NamedTuple):
    """The treatment of sessions that use a database: end them after some seconds, or fail immediately.

    Without either, the statement waits until they end.
    """

    rollback_after: float | None = None
    no_wait: bool = False


def checked_termination(no_wait: bool, rollback_after: object) -> Termination:
    """Return the termination of WITH: NO_WAIT, ROLLBACK AFTER seconds, or neither.

    Raises:
        BrokerError: 402 both, no number of seconds, or another type.
    """
    check_switch("NO_WAIT", no_wait)
    if rollback_after is None:
        return Termination(no_wait=no_wait)
    if no_wait:
        raise BrokerError(402, "WITH", "NO_WAIT and ROLLBACK AFTER", "one of the two")
    if not isinstance(rollback_after, int | float) or isinstance(rollback_after, bool) or not rollback_after >= 0:
        raise BrokerError(402, "ROLLBACK AFTER", short_repr(rollback_after), "seconds, 0 or more")
    return Termination(rollback_after=rollback_after)


def criterion(priority: str, clause: str, given: object, maximum: int) -> str | None:
    """Return a name in SET (...) of a broker priority; None for ANY and for an omitted clause.

    Raises:
        BrokerError: 33301 empty or longer than `maximum` characters, 402 another type.
    """
    if given is None or given == ANY:
        return None
    if not isinstance(given, str):
        raise BrokerError(402, clause, type(given).__name__, "str")
    if not 0 < len(given) <= maximum or "\0" in given or not names.is_encodable(given):
        raise BrokerError(33301, clause, priority, maximum)
    return given


def priority_level(priority: str, given: object) -> int | None:
    """Return PRIORITY_LEVEL of a broker priority, None if it was not given.

    Raises:
        BrokerError: 33302 not from 1 to 10, 402 another type.
    """
    if given is None:
        return None
    if given == "DEFAULT":
        return DEFAULT_LEVEL
    if not isinstance(given, int) or isinstance(given, bool):
        raise BrokerError(402, "PRIORITY_LEVEL", short_repr(given), "an int from 1 to 10 or DEFAULT")
    if not 1 <= given <= 10:
        raise BrokerError(33302, priority)
    return given


# ---------------------------------------------------------------- keys


SHORTEST_PASSWORD = 8  # characters
LONGEST_PASSWORD = 1_023  # bytes in UTF-8: the most that OpenSSL takes


def checked_password(clause: str, password: object, *, is_new: bool = False) -> str:
    """Check and return a password, which must not be too short if it is new.

    Raises:
        BrokerError: 402 no text that UTF-8 can encode, or too long; 15116 too short.
    """
    if not isinstance(password, str) or not names.is_encodable(password):
        raise BrokerError(402, clause, type(password).__name__, "str")
    if is_new and len(password) < SHORTEST_PASSWORD:
        raise BrokerError(15116, hint=f"It has at least {SHORTEST_PASSWORD} characters.")
    if len(password.encode()) > LONGEST_PASSWORD:
        raise BrokerError(402, clause, f"{len(password):,} characters", f"at most {LONGEST_PASSWORD:,} bytes in UTF-8")
    return password


def read_once(given: Given) -> Given | list[Any]:
    """Return the items of an iterator as a list, so that they can be read more than once."""
    return list(given) if isinstance(given, Iterator) else given
