"""The fence: permissions as in the model, pinned functions, and the findings of check and doctor."""

from __future__ import annotations

import random
from collections import Counter
from datetime import timedelta
from uuid import uuid4

import psycopg
import pytest

import servicebroker as sb
from fence_support import Town, conversation
from servicebroker.engine.diagnosis.consistency import tampered
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
from support import eventually, in_thread, query, queue_number, refused


def test_the_verbs_for_triggers_ask_for_permissions_too(town: Town) -> None:
    begin = "select servicebroker_fence.begin_dialog('Bank', %s, '//bank/Den', '//bank/Contract')"
    alices, _ = conversation(town, "Alice", "Vault", b"")
    with psycopg.connect(town.mallory, autocommit=True) as mallory:
        ((handle,),) = mallory.execute(begin, ("//bank/Mallory",)).fetchall()
        send = "select servicebroker_fence.send(%s, '//bank/Order', 'x')"
        assert mallory.execute(send, (handle,)).fetchall() == [(0,)]
        for text, value, state in (
            (begin, "//bank/Alice", "S8494"),
            (begin, "//bank/nobody", "S8423"),
            (send, alices, "S8494"),
            (send, uuid4(), "S8426"),
            (send, None, "S8418"),
        ):
            with pytest.raises(psycopg.Error) as caught:
                mallory.execute(text, (value,))
            assert caught.value.sqlstate == state, str(caught.value)
    with town.database.instance.connection() as owner, pytest.raises(psycopg.errors.InsufficientPrivilege):
        owner.execute(begin, ("//bank/Alice",))  # the owner has servicebroker.begin_dialog


@pytest.mark.parametrize("statement", FENCED_STATEMENTS)
def test_permissions_are_decided_as_the_model_decides(town: Town, statement: str, seeded_random: random.Random) -> None:
    database, chance = town.database, seeded_random
    user = User(database.database_id, "Bank", 70_001, "somebody")
    kinds = [need.kind for need in NEEDS[statement]]
    rights = [right for right in IMPLIED_BY if right[0] in (Kind.DATABASE, Kind.SCHEMA, *kinds)]
    rights += [right for need in NEEDS[statement] for right in implied_by(need.kind, need.permission)] * 5
    with database.instance.connection() as connection, pytest.raises(ZeroDivisionError), connection.transaction():
        number = user.database_id
        for principal in (70_001, 70_002):
            connection.execute(
                "insert into servicebroker.principals (database_id, principal_id, name, is_role) "
                "values (%s, %s, %s, true)",
                (number, principal, f"p{principal}"),
            )
        outcomes = Counter[bool]()
        for _ in range(120):
            connection.execute("delete from servicebroker.permissions where database_id = %s", (number,))
            some = [70_002, *(principal.principal_id for principal in FIXED_PRINCIPALS)]
            identities = frozenset([70_001, PUBLIC_ID, *chance.sample(some, chance.choice([0, 0, 1]))])
            kind = chance.choice(kinds)
            number_of = 0 if kind is Kind.DATABASE else chance.choice([7, 70_000])
            on = Securable(
                kind, number_of, chance.choice([DBO_ID, 70_001, 70_009, 70_009, 70_009]), "it", 70_020, "there"
            )
            entries = []
            for right in chance.sample(rights, chance.randrange(4)):
                places = {Kind.DATABASE: [0], Kind.SCHEMA: [on.schema_id, 70_021]}
                major = chance.choice(places.get(right[0], [on.major_id, 70_005]))
                grantee = chance.choice([70_001, 70_002, PUBLIC_ID])
                entry = Entry(right[0], major, grantee, right[1], chance.choice([GRANT, GRANT, GRANT, DENY]))
                entries = [
                    *(old for old in entries if old[:4] != entry[:4]),
                    entry,
                ]  # one entry per key, as in the table
            for entry in entries:
                connection.execute(
                    "insert into servicebroker.permissions values (%s, %s, %s, %s, 1, %s, %s)",
                    (number, entry.kind.value, entry.major_id, entry.grantee_id, entry.permission, entry.state),
                )
            expected = None
            for need in NEEDS[statement]:
                if need.kind is kind and not is_allowed(identities, need.permission, on, entries):
                    expected = refusal(statement, need, on, user, ("end", "h", "CD"))
                    break
            row = connection.execute(
                "select servicebroker.refusal(%s, %s, %s, %s, %s, %s, 'it', %s, %s)",
                (statement, number, list(identities), kind.value, on.major_id, on.owner_id, on.schema_id, on.schema),
            ).fetchone()
            assert row is not None
            outcomes[expected is None] += 1
            assert (row[0] is None) is (expected is None), (statement, on, identities, entries, row)
            if expected is not None and expected.number in (229, 8494):
                assert str(sb.BrokerError(int(row[0][0]), *row[0][1:])) == str(expected)
            elif expected is not None:
                assert row[0][0] == str(expected.number)
        assert len(outcomes) == 2
        raise ZeroDivisionError


def test_the_needs_of_the_server_are_those_of_the_model(town: Town) -> None:
    rows = query(
        town.database, "select statement, class, permission, number from servicebroker.needs order by 1, place"
    )
    assert rows == [
        (statement, need.kind.value, need.permission, need.number)
        for statement in sorted(FENCED_STATEMENTS)
        for need in NEEDS[statement]
    ]
    assert all(need.or_else is None for statement in FENCED_STATEMENTS for need in NEEDS[statement])


def test_the_body_of_an_error_is_that_of_the_model(town: Town, seeded_random: random.Random) -> None:
    letters = "aZ é<>&\"'\t\n\r\x01\x1f\x7f\ufffd\uffff\ufffe\U0001f4a5\U0010ffff"
    for code in (1, 2**31 - 1):
        text = "".join(seeded_random.choices(letters, k=200))
        assert query(town.database, "select servicebroker.error_body(%s, %s)", code, text) == [
            (error_body(code, text),)
        ]
    assert query(town.database, "select servicebroker.error_body(1, '')") == [(error_body(1, ""),)]


def test_each_function_of_the_fence_is_pinned_and_nobodys(town: Town) -> None:
    rows = query(
        town.database,
        "select proname::text from pg_proc where pronamespace = 'servicebroker_fence'::regnamespace "
        "and proname <> 'me' and (not prosecdef "
        "or not 'search_path=pg_catalog, pg_temp' = any (coalesce(proconfig, '{}')))",
    )
    assert rows == []
    rows = query(
        town.database,
        "select p.oid::regprocedure::text from pg_proc p "
        "cross join aclexplode(coalesce(proacl, acldefault('f', proowner))) a "
        "where pronamespace in ('servicebroker'::regnamespace, 'servicebroker_fence'::regnamespace) and a.grantee = 0 "
        "and proname not in ('rows_here', 'readers_here', 'approximate_count', 'shown_number')",
    )
    assert rows == []


def test_a_new_queue_is_nobodys_either(town: Town) -> None:
    town.database.create_queue("New")
    with town.database.instance.connection() as owner, psycopg.connect(town.mallory) as mallory:
        number = queue_number(town.database, "New")
        open_to_all = owner.execute(
            "select proname from pg_proc p cross join aclexplode(coalesce(proacl, acldefault('f', proowner))) a "
            "where proname like '%%' || %s and a.grantee = 0",
            (f"_{number}",),
        ).fetchall()
        assert open_to_all == []
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            mallory.execute(f"select nextval('servicebroker.queue_{number}_receives')")  # type: ignore[call-overload]
    with sb.open(town.mallory) as instance, refused(229, "New"):
        instance.database("Bank").receive("New")
    town.database.drop_queue("New")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("grant execute on function servicebroker.send to public", "everybody may execute"),
        ("alter table servicebroker.totals owner to mallory", "belongs to mallory"),
        ("alter function servicebroker.send_on owner to mallory", "belongs to mallory"),
        ("alter table servicebroker.queues enable row level security", "queues has row level security"),
    ],
)
def test_check_detects_changed_rights(town: Town, change: str, said: str) -> None:
    with town.database.instance.connection() as connection, connection.transaction(force_rollback=True):
        assert run(connection, tampered()) == []
        connection.execute(change)  # type: ignore[call-overload]
        findings = run(connection, tampered())
        assert len(findings) == 1
        assert said in findings[0]


def test_check_says_it(town: Town) -> None:
    instance = town.database.instance
    with instance.connection() as connection:
        connection.execute("alter table servicebroker.queues enable row level security")
        (finding,) = [finding for finding in instance.check().findings if finding.number == 8992]
        connection.execute("alter table servicebroker.queues disable row level security")
    assert "queues has row level security" in finding.text


def test_doctor_names_the_holder_of_a_lock_of_ours(town: Town) -> None:
    """A session of the owner can hold a lock for which others wait."""
    with (
        psycopg.connect(town.database.instance.url, autocommit=True, application_name="forgotten") as holder,
        town.database.instance.connection() as owner,
    ):
        holder.execute("select pg_advisory_lock(%s, 0)", (locks.PARKED_DELIVERY,))
        handle = town.database.begin_dialog("//bank/Alice", "//bank/nowhere", contract="//bank/Contract")
        sending = in_thread(town.database.send, handle, "//bank/Order", b"x")
        waiting = "select count(*) from pg_locks where locktype = 'advisory' and not granted"
        eventually(lambda: owner.execute(waiting).fetchone() == (1,))
        later = town.database.instance.clock() + timedelta(minutes=5)
        findings = judge(run(owner, gather(later)))
        holder.execute("select pg_advisory_unlock(%s, 0)", (locks.PARKED_DELIVERY,))
        sending.result(30)
    (finding,) = [finding for finding in findings if "the broker's lock of delivery" in finding.problem]
    assert "forgotten" in finding.problem
    assert "pg_terminate_backend" in finding.advice
