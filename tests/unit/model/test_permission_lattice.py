"""The permission decision as a pure function of plain values."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.model.errors import RULES
from servicebroker.model.security.permissions import (
    DB_DDLADMIN_ID,
    DB_OWNER_ID,
    DBO_ID,
    DBO_SCHEMA_ID,
    DENY,
    GRANT,
    GRANT_WITH_GRANT_OPTION,
    IMPLIED_BY,
    NEEDS,
    NOBODY_ID,
    PUBLIC_ID,
    UNASKED,
    Entry,
    Kind,
    Securable,
    User,
    implied_by,
    is_allowed,
    is_denied,
    may_grant,
    refusal,
)
from support import refused

APP_ID, READERS_ID, OTHER_ID, OWNER_ID = 70_000, 70_001, 70_002, 70_003  # users, but READERS, a role
ME = frozenset({APP_ID, READERS_ID, PUBLIC_ID})
DATABASE = Securable(Kind.DATABASE, 0, DBO_ID, "Shop")
QUEUE = Securable(Kind.QUEUE, 65_536, OWNER_ID, "Orders", DBO_SCHEMA_ID)
SERVICE = Securable(Kind.SERVICE, 65_537, OWNER_ID, "//shop")
CONTRACT = Securable(Kind.CONTRACT, 65_538, OWNER_ID, "//contract")
TYPE = Securable(Kind.MESSAGE_TYPE, 65_539, OWNER_ID, "//type")
ROUTE = Securable(Kind.ROUTE, 65_540, OWNER_ID, "AutoCreatedLocal")
BINDING = Securable(Kind.REMOTE_SERVICE_BINDING, 65_541, OWNER_ID, "ToStock")
CERTIFICATE = Securable(Kind.CERTIFICATE, 65_542, OWNER_ID, "stock")
SCHEMA = Securable(Kind.SCHEMA, DBO_SCHEMA_ID, DBO_ID, "dbo", DBO_SCHEMA_ID)
TABLE = Securable(Kind.OBJECT, 65_543, OWNER_ID, "Parcels", DBO_SCHEMA_ID)
USER = Securable(Kind.USER, OTHER_ID, NOBODY_ID, "Other")
SERVER = Securable(Kind.SERVER, 0, NOBODY_ID, "")
LOGIN = Securable(Kind.LOGIN, 65_544, NOBODY_ID, "boss")
BUILT_IN = Securable(Kind.CONTRACT, 6, DBO_ID, "DEFAULT")
_ALL = (DATABASE, QUEUE, SERVICE, CONTRACT, TYPE, ROUTE, BINDING, CERTIFICATE, SCHEMA, TABLE, USER, SERVER, LOGIN)
OF_LOGINS = (Kind.SERVER, Kind.LOGIN)  # a principal of a database has none of these
OBJECTS = {operation.kind: operation for operation in _ALL}


def entry(state: str, permission: str, on: Securable, grantee: int = APP_ID) -> Entry:
    return Entry(on.kind, on.major_id, grantee, permission, state)


@pytest.mark.parametrize(
    ("permission", "on", "entries", "allowed"),
    [
        ("RECEIVE", QUEUE, [], False),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE)], True),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE, READERS_ID)], True),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE, PUBLIC_ID)], True),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE, OTHER_ID)], False),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE._replace(major_id=1))], False),
        ("RECEIVE", QUEUE, [entry("G", "REFERENCES", QUEUE)], False),
        ("RECEIVE", QUEUE, [entry("G", "CONTROL", QUEUE)], True),
        ("RECEIVE", QUEUE, [entry("W", "RECEIVE", QUEUE)], True),
        ("RECEIVE", QUEUE, [entry("G", "CONTROL", DATABASE)], True),
        ("RECEIVE", QUEUE, [entry("G", "ALTER", DATABASE)], False),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE), entry("D", "RECEIVE", QUEUE)], False),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE), entry("D", "RECEIVE", QUEUE, READERS_ID)], False),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE), entry("D", "RECEIVE", QUEUE, PUBLIC_ID)], False),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE), entry("D", "CONTROL", QUEUE)], False),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE), entry("D", "CONTROL", DATABASE)], False),
        ("RECEIVE", QUEUE, [entry("G", "CONTROL", QUEUE), entry("D", "RECEIVE", QUEUE)], False),
        ("RECEIVE", QUEUE, [entry("G", "RECEIVE", QUEUE), entry("D", "ALTER", QUEUE)], True),
        ("ALTER", QUEUE, [entry("G", "ALTER ANY SCHEMA", DATABASE)], True),
        ("ALTER", SERVICE, [entry("G", "ALTER ANY SERVICE", DATABASE)], True),
        ("ALTER", SERVICE, [entry("G", "ALTER ANY CONTRACT", DATABASE)], False),
        ("ALTER", BINDING, [entry("G", "ALTER ANY REMOTE SERVICE BINDING", DATABASE)], True),
        ("CONTROL", CERTIFICATE, [entry("G", "ALTER ANY CERTIFICATE", DATABASE)], False),
        ("CREATE CERTIFICATE", DATABASE, [entry("G", "ALTER ANY CERTIFICATE", DATABASE)], True),
        ("ALTER", CONTRACT, [entry("G", "ALTER", DATABASE)], True),
        ("REFERENCES", TYPE, [entry("G", "REFERENCES", DATABASE)], True),
        ("SEND", SERVICE, [entry("G", "REFERENCES", DATABASE)], False),
        ("VIEW DEFINITION", TYPE, [entry("G", "VIEW DEFINITION", DATABASE)], True),
        ("TAKE OWNERSHIP", TYPE, [entry("G", "ALTER", DATABASE)], False),
        ("CREATE SERVICE", DATABASE, [entry("G", "ALTER ANY SERVICE", DATABASE)], True),
        ("CREATE QUEUE", DATABASE, [entry("G", "CONTROL", DATABASE)], True),
        ("CREATE QUEUE", DATABASE, [entry("G", "CREATE SERVICE", DATABASE)], False),
        ("REFERENCES", BUILT_IN, [], True),
        ("REFERENCES", BUILT_IN, [entry("D", "REFERENCES", DATABASE)], False),
        ("ALTER", BUILT_IN, [], False),
        ("IMPERSONATE", USER, [entry("G", "IMPERSONATE", USER)], True),
        ("IMPERSONATE", USER, [entry("G", "IMPERSONATE", USER._replace(major_id=APP_ID))], False),
        ("IMPERSONATE", USER, [entry("G", "ALTER ANY USER", DATABASE)], False),
        ("ALTER", USER, [entry("G", "ALTER ANY USER", DATABASE)], True),
        ("IMPERSONATE", USER, [entry("G", "CONTROL", DATABASE)], True),
        ("IMPERSONATE", USER, [entry("G", "CONTROL", DATABASE), entry("D", "IMPERSONATE", USER)], False),
        ("SELECT", TABLE, [], False),
        ("SELECT", TABLE, [entry("G", "SELECT", TABLE)], True),
        ("SELECT", TABLE, [entry("G", "SELECT", SCHEMA)], True),
        ("SELECT", TABLE, [entry("G", "SELECT", SCHEMA._replace(major_id=7))], False),
        ("SELECT", TABLE, [entry("G", "SELECT", DATABASE)], True),
        ("SELECT", TABLE, [entry("G", "SELECT", DATABASE), entry("D", "SELECT", SCHEMA, PUBLIC_ID)], False),
        ("SELECT", TABLE, [entry("G", "SELECT", TABLE), entry("D", "SELECT", SCHEMA)], False),
        ("INSERT", TABLE, [entry("G", "SELECT", TABLE)], False),
        ("SELECT", QUEUE, [entry("G", "SELECT", QUEUE)], True),
        ("SELECT", QUEUE, [entry("G", "RECEIVE", QUEUE)], False),
        ("RECEIVE", QUEUE, [entry("G", "SELECT", QUEUE)], False),
        ("SELECT", QUEUE, [entry("G", "SELECT", SCHEMA)], True),
        ("ALTER", TABLE, [entry("G", "ALTER", SCHEMA)], True),
        ("CREATE SCHEMA", DATABASE, [entry("G", "ALTER ANY SCHEMA", DATABASE)], True),
        ("IMPERSONATE", LOGIN, [entry("G", "IMPERSONATE", LOGIN)], True),
        ("IMPERSONATE", LOGIN, [entry("G", "IMPERSONATE ANY LOGIN", SERVER)], True),
        ("IMPERSONATE", LOGIN, [entry("G", "ALTER ANY LOGIN", SERVER)], False),
        ("CREATE ANY DATABASE", SERVER, [entry("G", "CONTROL SERVER", SERVER)], True),
        ("CREATE ANY DATABASE", SERVER, [entry("G", "ALTER ANY LOGIN", SERVER)], False),
    ],
)
def test_a_permission_or_an_implying_one_allows(
    permission: str, on: Securable, entries: list[Entry], allowed: bool
) -> None:
    assert is_allowed(ME, permission, on, entries) is allowed
    denied = [Entry(kind, OBJECTS[kind].major_id, OTHER_ID, name, DENY) for kind, name in IMPLIED_BY]
    assert is_allowed(ME, permission, on, entries + denied) is allowed  # denials for other users do not count


@pytest.mark.feature(167)
@pytest.mark.parametrize(
    ("entries", "denied"),
    [
        ([], False),
        ([entry("G", "RECEIVE", QUEUE)], False),
        ([entry("D", "RECEIVE", QUEUE)], True),
        ([entry("D", "RECEIVE", QUEUE, READERS_ID), entry("G", "CONTROL", QUEUE)], True),
        ([entry("D", "RECEIVE", QUEUE, PUBLIC_ID)], True),
        ([entry("D", "CONTROL", QUEUE)], True),
        ([entry("D", "CONTROL", DATABASE)], True),
        ([entry("D", "RECEIVE", QUEUE, OTHER_ID)], False),
        ([entry("D", "RECEIVE", QUEUE._replace(major_id=1))], False),
        ([entry("D", "ALTER", QUEUE)], False),
    ],
)
def test_is_denied_by_its_entries(entries: list[Entry], denied: bool) -> None:
    assert is_denied(ME, "RECEIVE", QUEUE, entries) is denied
    assert not is_denied(ME | {OWNER_ID}, "RECEIVE", QUEUE, entries)
    assert not is_denied(ME | {DBO_ID}, "RECEIVE", QUEUE, entries)


def test_fixed_roles_allow_their_permissions() -> None:
    owner, ddl = frozenset({APP_ID, PUBLIC_ID, DB_OWNER_ID}), frozenset({APP_ID, PUBLIC_ID, DB_DDLADMIN_ID})
    for kind, permission in IMPLIED_BY:
        assert is_allowed(owner, permission, OBJECTS[kind], []) is (kind not in OF_LOGINS)
    for on in (QUEUE, SERVICE, CONTRACT, TYPE, ROUTE):
        assert is_allowed(ddl, "ALTER", on, [])
        assert not is_allowed(ddl, "CONTROL", on, [])
    assert is_allowed(ddl, "REFERENCES", QUEUE, [])
    assert not is_allowed(ddl, "RECEIVE", QUEUE, [])
    assert not is_allowed(ddl, "ALTER", DATABASE, [])
    assert not is_allowed(owner, "RECEIVE", QUEUE, [entry("D", "RECEIVE", QUEUE)])


def test_fixed_roles_allow_reading_and_writing_tables() -> None:
    reader, denied = frozenset({APP_ID, PUBLIC_ID, 16_390}), frozenset({APP_ID, PUBLIC_ID, 16_390, 16_392})
    assert is_allowed(reader, "SELECT", TABLE, [])
    assert is_allowed(reader, "SELECT", QUEUE, [])
    assert not is_allowed(reader, "INSERT", TABLE, [])
    assert not is_allowed(denied, "SELECT", TABLE, [])
    assert not is_allowed(denied, "SELECT", TABLE, [entry("G", "CONTROL", DATABASE)])
    writer = frozenset({APP_ID, PUBLIC_ID, 16_391})
    assert is_allowed(writer, "DELETE", TABLE, [])
    assert not is_allowed(writer, "SELECT", TABLE, [])
    assert not is_allowed(writer | {16_393}, "DELETE", TABLE, [])


@pytest.mark.parametrize(
    ("entries", "allowed"),
    [
        ([], False),
        ([entry("G", "SEND", SERVICE)], False),
        ([entry("W", "SEND", SERVICE)], True),
        ([entry("W", "SEND", SERVICE), entry("D", "SEND", SERVICE, READERS_ID)], False),
        ([entry("G", "CONTROL", SERVICE)], True),
        ([entry("G", "CONTROL", DATABASE)], True),
        ([entry("G", "SEND", SERVICE), entry("W", "ALTER", SERVICE)], False),
    ],
)
def test_may_grant_by_its_entries(entries: list[Entry], allowed: bool) -> None:
    assert may_grant(ME, "SEND", SERVICE, entries) is allowed


@pytest.mark.parametrize("kind", [kind for kind in OBJECTS if kind not in OF_LOGINS])
def test_an_owner_has_all_permissions_on_its_object_and_none_on_the_database(kind: Kind) -> None:
    """The owner of a database is dbo in it. A Securable of a database names no other owner."""
    on = OBJECTS[kind]._replace(owner_id=APP_ID)
    for permission in (name for of, name in IMPLIED_BY if of is kind):
        assert is_allowed(ME, permission, on, []) is (kind is not Kind.DATABASE)


def test_an_owner_may_grant() -> None:
    assert may_grant(frozenset({OWNER_ID}), "SEND", SERVICE, [])
    assert may_grant(frozenset({DBO_ID}), "ALTER", DATABASE, [])


# ---------------------------------------------------------------- random entries

some_entries = st.lists(
    st.builds(
        lambda right, own, grantee, state: Entry(
            right[0], OBJECTS[right[0]].major_id + (not own), grantee, right[1], state
        ),
        st.sampled_from(sorted(IMPLIED_BY)),
        st.booleans(),
        st.sampled_from([APP_ID, READERS_ID, PUBLIC_ID, OTHER_ID]),
        st.sampled_from([GRANT, GRANT_WITH_GRANT_OPTION, DENY]),
    ),
    max_size=8,
)
some_right = st.sampled_from(sorted(IMPLIED_BY))


def brings(kind: Kind, permission: str) -> set[tuple[Kind, str]]:
    """Return all permissions that one implies, computed in the opposite direction from `implied_by`."""
    found = {(kind, permission)}
    while True:
        more = {right for right, sources in IMPLIED_BY.items() if found & set(sources)} - found
        if not more:
            return found
        found |= more


@given(some_entries, some_right)
def test_the_decision_agrees_with_the_implied_permissions(entries: list[Entry], right: tuple[Kind, str]) -> None:
    kind, permission = right
    on = OBJECTS[kind]
    states = {
        e.state
        for e in entries
        if e.grantee_id in ME
        and right in brings(e.kind, e.permission)
        and (
            e.kind in (Kind.DATABASE, Kind.SERVER)
            or (e.kind, e.major_id) in ((on.kind, on.major_id), (Kind.SCHEMA, on.schema_id))
        )
    }
    assert is_allowed(ME, permission, on, entries) == (bool(states) and DENY not in states)


@given(some_entries, some_right, st.sampled_from(sorted(ME)))
def test_a_deny_beats_everything_but_ownership(entries: list[Entry], right: tuple[Kind, str], grantee: int) -> None:
    kind, permission = right
    for source_kind, source in implied_by(kind, permission):
        denied = [*entries, entry(DENY, source, OBJECTS[source_kind], grantee)]
        assert not is_allowed(ME, permission, OBJECTS[kind], denied)
        assert is_allowed(ME | {DBO_ID}, permission, OBJECTS[kind], denied)
        if OBJECTS[kind].owner_id == OWNER_ID:
            assert is_allowed(ME | {OWNER_ID}, permission, OBJECTS[kind], denied)


@given(some_entries, some_right)
def test_a_grantor_has_the_permission_or_control(entries: list[Entry], right: tuple[Kind, str]) -> None:
    kind, permission = right
    if kind is not Kind.SERVER and may_grant(ME, permission, OBJECTS[kind], entries):
        assert is_allowed(ME, permission, OBJECTS[kind], entries) or is_allowed(ME, "CONTROL", OBJECTS[kind], entries)


# ---------------------------------------------------------------- the tables


@pytest.mark.parametrize("statement", sorted(NEEDS))
def test_every_need_can_be_granted_and_has_an_error(statement: str) -> None:
    user = User(1, "Shop", APP_ID, "App")
    for need in NEEDS[statement]:
        assert (need.kind, need.permission) in IMPLIED_BY
        assert need.or_else is None or need.or_else in IMPLIED_BY
        subject = {28006: ("end", "handle", "DO")}.get(need.number, ())
        error = refusal(statement, need, OBJECTS[need.kind], user, subject)
        assert error.number == need.number
        assert error.severity == RULES[need.number].severity


@pytest.mark.parametrize("kind", list(Kind))
def test_a_permission_that_a_kind_does_not_have(kind: Kind) -> None:
    for permission in ("SHUTDOWN", "receive", "", "SEND" if kind is not Kind.SERVICE else "RECEIVE"):
        with refused(4606, permission):
            implied_by(kind, permission)


def test_permissions_without_effect_are_in_no_table() -> None:
    assert UNASKED.isdisjoint(IMPLIED_BY)
    assert UNASKED.isdisjoint((need.kind, need.permission) for needs in NEEDS.values() for need in needs)
