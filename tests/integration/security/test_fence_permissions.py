"""The fence: its permissions are those of the model, its functions have a fixed search_path, check and doctor report.

The fence is the schema with the functions for restricted roles.
"""

from __future__ import annotations

import random
import re
from collections import Counter
from datetime import timedelta
from typing import Any, NamedTuple
from uuid import uuid4

import psycopg
import pytest

import hostile_role
import servicebroker as sb
from fence_support import TwoRoles, conversation
from servicebroker.engine.diagnosis.consistency import find_tampering
from servicebroker.engine.diagnosis.facts import gather
from servicebroker.engine.diagnosis.judgement import judge
from servicebroker.model.messages import error_body
from servicebroker.model.security.permissions import (
    DBO_ID,
    DENY,
    FIXED_PRINCIPALS,
    GRANT,
    IMPLIED_BY,
    NEEDS,
    PUBLIC_ID,
    Entry,
    Kind,
    Securable,
    User,
    implied_by,
    is_allowed,
    refusal,
)
from servicebroker.store import locks
from servicebroker.store.running import run
from servicebroker.store.sql_verbs import FENCED_STATEMENTS
from support import eventually, group_of, in_thread, query, queue_number, refused

# Invented ids, which no object of the database has. OTHER_ ids belong to nothing that the user may use.
USER_ID, ROLE_ID, OTHER_OWNER_ID = 70_001, 70_002, 70_009
OBJECT_ID, OTHER_OBJECT_ID = 70_000, 70_005
SYSTEM_OBJECT_ID = 7
SCHEMA_ID, OTHER_SCHEMA_ID = 70_020, 70_021


def test_the_verbs_for_triggers_ask_for_permissions_too(two_roles: TwoRoles) -> None:
    begin = "select servicebroker_fence.begin_dialog('Bank', %s, '//bank/Den', '//bank/Contract')"
    alices_handle, _ = conversation(two_roles, "Alice", "Vault", b"")
    with psycopg.connect(two_roles.mallory, autocommit=True) as mallory:
        ((handle,),) = mallory.execute(begin, ("//bank/Mallory",)).fetchall()
        send = "select servicebroker_fence.send(%s, '//bank/Order', 'x')"
        assert mallory.execute(send, (handle,)).fetchall() == [(0,)]
        for text, value, state in (
            (begin, "//bank/Alice", "S8494"),
            (begin, "//bank/nobody", "S8423"),
            (send, alices_handle, "S8494"),
            (send, uuid4(), "S8426"),
            (send, None, "S8418"),
        ):
            with pytest.raises(psycopg.Error) as error:
                mallory.execute(text, (value,))
            assert error.value.sqlstate == state, str(error.value)
    with two_roles.database.instance.connection() as owner, pytest.raises(psycopg.errors.InsufficientPrivilege):
        owner.execute(begin, ("//bank/Alice",))  # the owner calls servicebroker.begin_dialog instead


@pytest.mark.parametrize("statement", FENCED_STATEMENTS)
def test_permissions_are_decided_as_the_model_decides(
    two_roles: TwoRoles, statement: str, seeded_random: random.Random
) -> None:
    """Random users, objects and permissions: `servicebroker.refusal` allows and refuses what the model does."""
    database, rng = two_roles.database, seeded_random
    user = User(database.database_id, "Bank", USER_ID, "somebody")
    kinds = [need.kind for need in NEEDS[statement]]
    rights = [right for right in IMPLIED_BY if right[0] in (Kind.DATABASE, Kind.SCHEMA, *kinds)]
    rights += [right for need in NEEDS[statement] for right in implied_by(need.kind, need.permission)] * 5
    with database.instance.connection() as connection, connection.transaction(force_rollback=True):
        database_id = user.database_id
        for principal in (USER_ID, ROLE_ID):
            connection.execute(
                "insert into servicebroker.principals (database_id, principal_id, name, is_role) "
                "values (%s, %s, %s, true)",
                (database_id, principal, f"p{principal}"),
            )
        outcomes = Counter[bool]()
        for _ in range(120):
            connection.execute("delete from servicebroker.permissions where database_id = %s", (database_id,))
            memberships = [ROLE_ID, *(principal.principal_id for principal in FIXED_PRINCIPALS)]
            identities = frozenset([USER_ID, PUBLIC_ID, *rng.sample(memberships, rng.choice([0, 0, 1]))])
            kind = rng.choice(kinds)
            securable = Securable(
                kind,
                major_id=0 if kind is Kind.DATABASE else rng.choice([SYSTEM_OBJECT_ID, OBJECT_ID]),
                owner_id=rng.choice([DBO_ID, USER_ID, OTHER_OWNER_ID, OTHER_OWNER_ID, OTHER_OWNER_ID]),
                name="it",
                schema_id=SCHEMA_ID,
                schema="there",
            )
            entries: list[Entry] = []
            for right in rng.sample(rights, rng.randrange(4)):
                major_ids = {Kind.DATABASE: [0], Kind.SCHEMA: [securable.schema_id, OTHER_SCHEMA_ID]}
                major = rng.choice(major_ids.get(right[0], [securable.major_id, OTHER_OBJECT_ID]))
                grantee = rng.choice([USER_ID, ROLE_ID, PUBLIC_ID])
                entry = Entry(right[0], major, grantee, right[1], rng.choice([GRANT, GRANT, GRANT, DENY]))
                # one entry per key, as in the table
                entries = [*(existing for existing in entries if existing[:4] != entry[:4]), entry]
            for entry in entries:
                connection.execute(
                    "insert into servicebroker.permissions values (%s, %s, %s, %s, 1, %s, %s)",
                    (database_id, entry.kind.value, entry.major_id, entry.grantee_id, entry.permission, entry.state),
                )
            expected = None
            for need in NEEDS[statement]:
                if need.kind is kind and not is_allowed(identities, need.permission, securable, entries):
                    values_of_text = ("end", "h", "CD")  # the verb, the handle and the state in the text of 8494
                    expected = refusal(statement, need, securable, user, values_of_text)
                    break
            row = connection.execute(
                "select servicebroker.refusal(%s, %s, %s, %s, %s, %s, 'it', %s, %s)",
                (
                    statement,
                    database_id,
                    list(identities),
                    kind.value,
                    securable.major_id,
                    securable.owner_id,
                    securable.schema_id,
                    securable.schema,
                ),
            ).fetchone()
            assert row is not None
            outcomes[expected is None] += 1
            assert (row[0] is None) is (expected is None), (statement, securable, identities, entries, row)
            if expected is not None and expected.number in (229, 8494):
                assert str(sb.BrokerError(int(row[0][0]), *row[0][1:])) == str(expected)
            elif expected is not None:
                assert row[0][0] == str(expected.number)
        assert len(outcomes) == 2


def test_the_needs_of_the_server_are_those_of_the_model(two_roles: TwoRoles) -> None:
    rows = query(
        two_roles.database, "select statement, class, permission, number from servicebroker.needs order by 1, place"
    )
    assert rows == [
        (statement, need.kind.value, need.permission, need.number)
        for statement in sorted(FENCED_STATEMENTS)
        for need in NEEDS[statement]
    ]
    assert all(need.or_else is None for statement in FENCED_STATEMENTS for need in NEEDS[statement])


def test_the_body_of_an_error_is_that_of_the_model(two_roles: TwoRoles, seeded_random: random.Random) -> None:
    letters = "aZ é<>&\"'\t\n\r\x01\x1f\x7f\ufffd\uffff\ufffe\U0001f4a5\U0010ffff"
    for code in (1, 2**31 - 1):
        text = "".join(seeded_random.choices(letters, k=200))
        assert query(two_roles.database, "select servicebroker.error_body(%s, %s)", code, text) == [
            (error_body(code, text),)
        ]
    assert query(two_roles.database, "select servicebroker.error_body(1, '')") == [(error_body(1, ""),)]


def test_each_function_of_the_fence_has_a_fixed_search_path_and_no_public_right(two_roles: TwoRoles) -> None:
    rows = query(
        two_roles.database,
        "select proname::text from pg_proc where pronamespace = 'servicebroker_fence'::regnamespace "
        "and proname <> 'me' and (not prosecdef "
        "or not 'search_path=pg_catalog, pg_temp' = any (coalesce(proconfig, '{}')))",
    )
    assert rows == []
    rows = query(
        two_roles.database,
        "select p.oid::regprocedure::text from pg_proc p "
        "cross join aclexplode(coalesce(proacl, acldefault('f', proowner))) a "
        "where pronamespace in ('servicebroker'::regnamespace, 'servicebroker_fence'::regnamespace) and a.grantee = 0 "
        "and proname not in ('rows_here', 'readers_here', 'approximate_count', 'shown_number')",
    )
    assert rows == []


# Calls on objects of Alice, valid but for the permission. The values are those of `alices_objects`.
FOREIGN_CALLS = {
    "answer_queue": "{database}, {handle}",
    "answered": "{queue}, array[{handle}]",
    "begin_and_send": "{database}, gen_random_uuid(), gen_random_uuid(), '//bank/Alice', '//bank/Vault', "
    "'//bank/Contract', 60, null, false, array['//bank/Order'], array[bytea 'x']",
    "begin_conversation": "{database}, '//bank/Alice', '//bank/Vault', '//bank/Contract', 60, null, null, null, false, "
    "null, null, null",
    "begin_conversation_timer": "{database}, {handle}, 5",
    "begin_dialog": "'Bank', '//bank/Alice', '//bank/Vault', '//bank/Contract'",
    "cancel_delayed": "{database}, {late}, null",
    "delayed_messages": "{database}, {late}",
    "disable_queue": "{queue}",
    "drawn": "{queue}",
    "end_conversation": "{database}, {handle}, null, null, false",
    "expected_types": "{queue}",
    "failures": "{database}, {handle}, 0, 1",
    "find_schedule": "{queue}, 'daily'",
    "forget_failures": "{database}, array[{handle}]",
    "get_conversation_group": "{queue}",
    "labels": "{database}",
    "late_answers": "{queue}, '00000000-0000-0000-0000-000000000000', 'ffffffff-ffff-ffff-ffff-ffffffffffff'",
    "leave_traces": "{database}, array[{handle}], array[0], 1, decode(repeat('00', 25), 'hex')",
    "move_conversation": "{database}, {handle}, {late_group}",
    "own_conversation": "{database}, {handle}, 10",
    "own_queues": "10",
    "own_waits": "10",
    "receivable": "{queue}, {handle}, {group}",
    "receive": "{queue}, 1, null, null",
    "receive_groups": "{queue}, 1, 2, false",
    "schedule_of": "{stuck}",
    "send": "{handle}, '//bank/Order', 'x'",
    "send_all": "{database}, array[{handle}], '//bank/Order', array[bytea 'x'], null, null",
    "service_changes": "{queue}",
    "set_aside": "{database}, {handle}, 0, 1, 'x', now(), 1, now(), 'e', 't'",
    "set_next_time": "{stuck}, now()",
    "set_schedule": "{queue}, 'weekly', {stuck}, 'r', 'UTC', 'skip', now()",
    "settle_place": "{queue}, 1",
    "sweep_failures": "{queue}",
    "take": "{queue}, {group}, array[{priority}]::smallint[], array[{number}]",
    "take_place": "{queue}, 1",
    "take_slot": "{queue}, 1",
    "take_traces": "{database}, array[{handle}], array[0]",
    "track_failure": "{database}, {handle}, 0, 1, 1, now(), 'e', 'e', 0",
    "transmission_status": "{database}, {stuck}",
    "wait_for": "array[{queue}]",
}
LISTS = {"labels", "own_queues", "own_waits"}  # of objects that the caller may use
# names and numbers that everybody may ask for; locks that the session has already
UNCHECKED = {"database", "home", "is_there", "keep_lock", "me", "migrations", "principal", "queue", "release_slot"}


def alices_objects(two_roles: TwoRoles) -> dict[str, object]:
    """Make conversations, messages, a schedule, a failure and a trace context of Alice. Return SQL of their values."""
    database = two_roles.database
    handle, _ = conversation(two_roles, "Alice", "Vault", b"")
    late, stuck = (
        database.begin_dialog("//bank/Alice", service, contract="//bank/Contract")
        for service in ("//bank/Vault", "//bank/Nobody")
    )
    database.send(late, "//bank/Order", b"", delay=3600)
    database.send(stuck, "//bank/Order", b"")
    if not query(database, "select from servicebroker.service_contracts where name = '//bank/Reports'"):
        database.create_contract("//bank/Reports", {"//bank/Order": "INITIATOR"})
        database.alter_service("//bank/Alice", add_contracts=["//bank/Reports"])
    number = queue_number(database, "Alice")
    with database.instance.connection() as owner:
        owner.execute("select servicebroker.set_schedule(%s, 'daily', %s, 'r', 'UTC', 'skip', now())", (number, stuck))
        owner.execute(
            "insert into servicebroker.failed_messages select conversation_handle, queue_id, conversation_group_id, "
            "priority, 0, 1, 1, now(), now(), 'e', 'e', null from servicebroker.conversation_endpoints "
            "where conversation_handle = %s",
            (handle,),
        )
        owner.execute(
            "insert into servicebroker.trace_contexts select conversation_id, false, 0, %s, now() "
            "from servicebroker.conversation_endpoints where conversation_handle = %s",
            (bytes(25), handle),
        )
        ((priority, arrival),) = owner.execute(
            f"select priority, queuing_order from servicebroker.queue_{number} where conversation_handle = %s",  # type: ignore[call-overload]
            (handle,),
        ).fetchall()
    uuids = {
        "handle": handle,
        "late": late,
        "stuck": stuck,
        "group": group_of(database, handle),
        "late_group": group_of(database, late),
    }
    numbers = {"database": database.database_id, "queue": number, "priority": priority, "number": arrival}
    return {**{name: f"'{value}'::uuid" for name, value in uuids.items()}, **numbers}


class Outcome(NamedTuple):
    """The rows of a call, as JSON, or the SQLSTATE of its error."""

    rows: list[Any]
    sqlstate: str = ""

    @property
    def values(self) -> list[Any]:
        """The values of the rows, without empty ones and without lists, which name a refusal."""
        columns = [row.values() if isinstance(row, dict) else [row] for row in self.rows]
        return [value for row in columns for value in row if value and not isinstance(value, list)]


def outcome_of(connection: psycopg.Connection[Any], call: str, *, is_void: bool) -> Outcome:
    text = f"select {call}" if is_void else f"select to_jsonb(f) from {call} f"
    try:
        with connection.transaction():
            return Outcome([row[0] for row in connection.execute(text).fetchall()])  # type: ignore[call-overload]
    except psycopg.Error as problem:
        return Outcome([], problem.sqlstate or "")


def test_each_function_refuses_the_objects_of_others_and_only_those(two_roles: TwoRoles) -> None:
    database = two_roles.database
    functions = "select proname::text, prorettype = 'void'::regtype from pg_proc where pronamespace = %s::regnamespace"
    voids = dict(query(database, functions, "servicebroker_fence"))
    assert voids.keys() - UNCHECKED == FOREIGN_CALLS.keys()
    values = alices_objects(two_roles)
    calls = {
        name: f"servicebroker_fence.{name}({arguments.format(**values)})" for name, arguments in FOREIGN_CALLS.items()
    }
    with database.instance.connection() as owner, psycopg.connect(two_roles.mallory, autocommit=True) as mallory:
        before = hostile_role.digest(owner, ["waiting_readers"])
        outcomes_of_mallory = {name: outcome_of(mallory, call, is_void=voids[name]) for name, call in calls.items()}
        after = hostile_role.digest(owner, ["waiting_readers"])
        readers = "select from servicebroker.waiting_readers where queue_id = %s"
        assert owner.execute(readers, (values["queue"],)).fetchall() == []
    assert {name for name in before if before[name] != after[name]} == set()
    for name, outcome in outcomes_of_mallory.items():
        assert name in LISTS or outcome.values == [], (name, outcome)
        assert name not in LISTS or not re.search("Alice|Nobody", str(outcome)), (name, outcome)
    with psycopg.connect(two_roles.alice, autocommit=True) as alice:
        for name, call in calls.items():
            with alice.transaction(force_rollback=True):
                outcome = outcome_of(alice, call, is_void=voids[name])
            assert outcome.sqlstate == "", (name, outcome)
            assert voids[name] or outcome != outcomes_of_mallory[name], (name, outcome)


def test_public_has_no_right_on_a_new_queue(two_roles: TwoRoles) -> None:
    two_roles.database.create_queue("New")
    with two_roles.database.instance.connection() as owner, psycopg.connect(two_roles.mallory) as mallory:
        number = queue_number(two_roles.database, "New")
        open_to_all = owner.execute(
            "select proname from pg_proc p cross join aclexplode(coalesce(proacl, acldefault('f', proowner))) a "
            "where proname like '%%' || %s and a.grantee = 0",
            (f"_{number}",),
        ).fetchall()
        assert open_to_all == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mallory.execute(f"select nextval('servicebroker.queue_{number}_receives')")  # type: ignore[call-overload]
    with sb.open(two_roles.mallory) as instance, refused(229, "New"):
        instance.database("Bank").receive("New")
    two_roles.database.drop_queue("New")


@pytest.mark.parametrize(
    ("change", "expected_text"),
    [
        ("grant execute on function servicebroker.send to public", "everybody may execute"),
        ("alter table servicebroker.totals owner to mallory", "belongs to mallory"),
        ("alter function servicebroker.send_on owner to mallory", "belongs to mallory"),
        ("alter table servicebroker.queues enable row level security", "queues has row level security"),
    ],
)
def test_check_detects_changed_rights(two_roles: TwoRoles, change: str, expected_text: str) -> None:
    with two_roles.database.instance.connection() as connection, connection.transaction(force_rollback=True):
        assert run(connection, find_tampering()) == []
        connection.execute(change)  # type: ignore[call-overload]
        findings = run(connection, find_tampering())
        assert len(findings) == 1
        assert expected_text in findings[0]


def test_check_reports_row_level_security(two_roles: TwoRoles) -> None:
    instance = two_roles.database.instance
    with instance.connection() as connection:
        connection.execute("alter table servicebroker.queues enable row level security")
        (finding,) = [finding for finding in instance.check().findings if finding.number == 8992]
        connection.execute("alter table servicebroker.queues disable row level security")
    assert "queues has row level security" in finding.text


def test_doctor_names_the_holder_of_a_lock_of_ours(two_roles: TwoRoles) -> None:
    """Another session has waited for the lock for five minutes: doctor reports the holder."""
    with (
        psycopg.connect(two_roles.database.instance.url, autocommit=True, application_name="forgotten") as holder,
        two_roles.database.instance.connection() as owner,
    ):
        holder.execute("select pg_advisory_lock(%s, 0)", (locks.PARKED_DELIVERY,))
        handle = two_roles.database.begin_dialog("//bank/Alice", "//bank/nowhere", contract="//bank/Contract")
        sending = in_thread(two_roles.database.send, handle, "//bank/Order", b"x")
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        eventually(lambda: owner.execute(waiting).fetchone() == (1,))
        later = two_roles.database.instance.clock() + timedelta(minutes=5)
        findings = judge(run(owner, gather(later)))
        holder.execute("select pg_advisory_unlock(%s, 0)", (locks.PARKED_DELIVERY,))
        sending.result(30)
    (finding,) = [finding for finding in findings if "the broker's lock of delivery" in finding.problem]
    assert "forgotten" in finding.problem
    assert "pg_terminate_backend" in finding.advice
