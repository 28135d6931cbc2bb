"""A hostile restricted role: its statements, arguments, shadowing objects and members change no data of others."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable
from threading import Event, Thread
from typing import Any
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

import hostile_role
import servicebroker as sb
from fence_support import ALICE, MALLORY, SECRET, TwoRoles, conversation, deliver_now, in_queue
from servicebroker.engine.diagnosis.facts import gather
from servicebroker.engine.diagnosis.judgement import judge
from servicebroker.model import names
from servicebroker.model.names import DEFAULT
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.migrations import mend
from servicebroker.store.running import run
from support import as_role, bodies, group_of, let_in, query, queue_number

_SLICE_S = 0.3  # seconds without Mallory, and seconds with her
_LOOK_S = 0.01  # seconds between two checks for waits
_MOST_WAITS = 0.1  # share of all checks


def names_of(two_roles: TwoRoles, connection: psycopg.Connection[Any]) -> dict[str, str]:
    owner = query(two_roles.database, "select current_user::text")[0][0]
    return {"role": MALLORY, "victim": ALICE, "owner": owner, "database": connection.info.dbname}


def test_a_hostile_role_changes_and_reads_nothing_of_others_by_any_statement(two_roles: TwoRoles) -> None:
    conversation(two_roles, "Alice", "Vault", SECRET)
    with (
        two_roles.database.instance.connection() as owner,
        psycopg.connect(two_roles.mallory, autocommit=True) as mallory,
    ):
        before = hostile_role.digest(owner)
        objects = hostile_role.objects(owner)
        assert len(objects.tables) > 100
        assert len(objects.functions) > 100
        names = names_of(two_roles, mallory)
        texts = [*hostile_role.statements(objects, names), *hostile_role.at_large(names)]
        tried = hostile_role.attempt(mallory, texts)
        done = {attempt.statement for attempt in tried if not attempt.sqlstate}
        # Allowed: read and lock its own key, GRANT and REVOKE without effect and with a warning, SET ROLE to itself.
        harmless = re.compile(
            r"(select|table|copy|declare|explain|create|do) .*servicebroker_fence\.caller|grant |revoke |"
            r"lock servicebroker_fence\.caller in access share mode|"
            r"set local session authorization default; set role mallory"
        )
        assert {text for text in done if not harmless.match(text)} == set()
        states = Counter(attempt.sqlstate for attempt in tried)
        assert states["42501"] > 0.75 * len(tried), states
        assert hostile_role.digest(owner) == before
    # the statements are valid: most succeed for the owner
    with two_roles.database.instance.connection() as owner, pytest.raises(ZeroDivisionError), owner.transaction():
        some = hostile_role.Objects(
            [t for t in objects.tables if ".permissions" in t[0]], [], objects.functions[-1:], ["sys"]
        )
        tried = hostile_role.attempt(owner, list(hostile_role.statements(some, names)), undo=True)
        worked = [attempt.statement for attempt in tried if not attempt.sqlstate]
        assert len(worked) > 25
        raise ZeroDivisionError  # roll everything back


def pool(two_roles: TwoRoles, own: tuple[UUID, UUID], alices: tuple[UUID, UUID]) -> dict[str, list[object]]:
    """Return values that Mallory may know: numbers, names, handles and groups of others, and random values."""
    database = two_roles.database
    numbers = [queue_number(database, name) for name in ("Alice", "Vault", "Mallory", "Den")]
    groups = [group_of(database, handle) for handle in (*own, *alices)]
    return {
        "integer": [0, -1, 1, 2, 2**31 - 1, database.database_id, *numbers],
        "bigint": [0, -1, 1, 2**62],
        "uuid": [*own, *alices, *groups, *alices, uuid4(), UUID(int=0)],
        "text": [
            "", "Bank", "msdb", "//bank/Alice", "//bank/Vault", "//bank/Mallory", "Alice", "dbo", "//bank/Order",
            "//bank/Contract", DEFAULT, "'; drop table servicebroker.queues; --", "%1$s", "x" * 300, "CURRENT DATABASE",
        ],
        "bytea": ["", "forged", "\\x00ff"],
        "boolean": ["true", "false"],
        "double precision": ["0", "-1", "1e9", "1e300", "NaN", "Infinity"],
        "timestamp with time zone": ["epoch", "now", "infinity", "-infinity", "11533-01-01", "4000-01-01 BC"],
        "smallint": [0, 5],
    }  # fmt: skip


def impossible_times(owner: psycopg.Connection[Any]) -> list[str]:
    """Return the columns of our tables with a time that Python cannot represent."""
    columns = owner.execute(
        "select table_name, column_name from information_schema.columns join pg_class c on c.relname = table_name "
        "and c.relnamespace = 'servicebroker'::regnamespace and c.relkind = 'r' where table_schema = 'servicebroker' "
        "and data_type = 'timestamp with time zone'"
    ).fetchall()
    assert len(columns) > 60
    impossible = sql.SQL("select from servicebroker.{} where {} not between '0001-01-01' and '9999-12-31'")
    return [
        f"{table}.{column}"
        for table, column in columns
        if owner.execute(impossible.format(sql.Identifier(table), sql.Identifier(column))).rowcount
    ]


def test_every_function_with_hostile_arguments(two_roles: TwoRoles, seeded_random: random.Random) -> None:
    database = two_roles.database
    own, alices = conversation(two_roles, "Mallory", "Den", b"own"), conversation(two_roles, "Alice", "Vault", SECRET)
    before = in_queue(two_roles, "Alice"), in_queue(two_roles, "Vault")
    alice_rows = (
        "select conversation_handle, conversation_group_id, e.queue_id, state, far_handle, far_group_id, far_queue_id, "
        "send_sequence, dialog_timer, lifetime from servicebroker.conversation_endpoints e "
        "join servicebroker.services s using (service_id) where s.name in ('//bank/Alice', '//bank/Vault') order by 1"
    )
    rows = query(database, alice_rows)
    catalog = (
        "queue",
        "transmission",
        "conversation",
        "failed",
        "set_aside",
        "trace",
        "shared",
        "retained",
        "disabled",
    )
    with database.instance.connection() as owner, psycopg.connect(two_roles.mallory, autocommit=True) as mallory:
        sums = hostile_role.digest(owner)
        functions = hostile_role.executable(mallory)
        assert {name for name, _ in functions if name.startswith("servicebroker.")} == set()
        fenced = [function for function in functions if function[0].startswith("servicebroker_fence.")]
        assert len(fenced) > 20
        calls = list(hostile_role.calls(fenced, pool(two_roles, own, alices), seeded_random, 60))
        for text in calls[:: len(calls) // 3]:  # with a savepoint, in a transaction, on an older snapshot
            with mallory.transaction(force_rollback=True):
                hostile_role.say(mallory, [text])
        summary, tried = hostile_role.say(mallory, calls)
        assert SECRET.hex() not in summary
        assert SECRET.decode() not in summary
        keys = owner.execute("select key::text from servicebroker.fenced_roles where postgres_role = %s", (ALICE,))
        assert not any(key in summary for (key,) in keys.fetchall())
        assert Counter(row.sqlstate for row in tried)[""] > len(tried) / 4  # most refusals are returned as rows
        assert not {attempt for attempt in tried if attempt.sqlstate.startswith(("XX", "58"))}
        after = hostile_role.digest(owner)
        changed = {name.split(".")[1] for name in sums if name in after and sums[name] != after[name] and "." in name}
        beside = {"waiting_readers", "savepoint_probes", "queues", "events_to_post", "audit", "worker_limits"}
        assert {name for name in changed if not name.startswith(catalog)} <= beside
        assert sums["functions"] == after["functions"]
        owner.execute("update servicebroker.queues set is_receive_enabled = true, is_enqueue_enabled = true")
        assert impossible_times(owner) == []
    deliver_now(two_roles)
    assert query(database, alice_rows) == rows
    assert (in_queue(two_roles, "Alice"), in_queue(two_roles, "Vault")) == before
    # Messages in the queues of Mallory and the Den come from Mallory or the broker.
    foreign = query(
        database,
        "select s.name from servicebroker.conversation_endpoints e join servicebroker.services s using (service_id) "
        "join servicebroker.conversation_endpoints p on p.conversation_handle = e.far_handle "
        "join servicebroker.services f on f.service_id = p.service_id "
        "where (s.name in ('//bank/Alice', '//bank/Vault')) <> (f.name in ('//bank/Alice', '//bank/Vault')) "
        "and (s.name, f.name) not in (('//bank/Mallory', '//bank/Alice'), ('//bank/Mallory', '//bank/Vault'), "
        "('//bank/Alice', '//bank/Mallory'), ('//bank/Vault', '//bank/Mallory'))",
    )
    assert foreign == []


class Mallory(Thread):
    """A thread that calls, notifies and tries random acts on its own connection, unless paused."""

    def __init__(self, two_roles: TwoRoles, heard_of: dict[str, list[object]], rng: random.Random) -> None:
        super().__init__(daemon=True)
        self.town, self.heard_of, self.rng = two_roles, heard_of, rng
        self.may, self.rests, self.over = Event(), Event(), Event()
        self.heard: set[str] = set()
        self.tried = self.done = 0
        self.failed: BaseException | None = None

    def run(self) -> None:
        try:
            self._mean_harm()
        except BaseException as error:
            self.failed = error
        self.rests.set()

    def _mean_harm(self) -> None:
        with self.town.database.instance.connection() as owner:
            found, names = hostile_role.objects(owner), names_of(self.town, owner)
        texts = [*hostile_role.statements(found, names), *hostile_role.at_large(names)]
        with psycopg.connect(self.town.mallory, autocommit=True) as mallory:
            functions = [
                function
                for function in hostile_role.executable(mallory)
                if function[0].startswith("servicebroker_fence.")
            ]
            while not self.over.is_set():
                if not self.may.is_set():
                    self.rests.set()
                    self.may.wait(0.1)
                    continue
                summary, tried = hostile_role.say(
                    mallory, list(hostile_role.calls(functions, self.heard_of, self.rng, 1))
                )
                self.heard.add(summary)
                self.tried += len(tried)
                self.done += sum(not attempt.sqlstate for attempt in tried)
                self.tried += len(hostile_role.attempt(mallory, self.rng.sample(texts, 20), undo=True))
                for channel in ("servicebroker", "servicebroker_delivery", "servicebroker_activation"):
                    payload = self.rng.choice(["0", "-1", "x" * 100, "9" * 30])
                    mallory.execute("select pg_notify(%s, %s)", (channel, payload))

    def go(self) -> None:
        self.rests.clear()
        self.may.set()

    def pause(self) -> None:
        """Wait until the current act has ended."""
        self.may.clear()
        assert self.rests.wait(60)
        if self.failed is not None:
            raise self.failed


class Waits(Thread):
    """A thread that checks repeatedly if a session waits for a lock of Mallory, and counts both outcomes."""

    def __init__(self, two_roles: TwoRoles) -> None:
        super().__init__(daemon=True)
        self.town, self.over, self.counts = two_roles, Event(), Counter[bool]()

    def run(self) -> None:
        text = (
            "select exists (select from (select pid from pg_stat_activity where wait_event_type = 'Lock' "
            "and usename <> %s offset 0) w join pg_stat_activity m on m.pid = any (pg_blocking_pids(w.pid)) "
            "where m.usename = %s)"
        )
        with psycopg.connect(self.town.database.instance.url, autocommit=True) as connection:
            while not self.over.wait(_LOOK_S):
                row = connection.execute(text, (MALLORY, MALLORY)).fetchone()
                assert row is not None
                self.counts[row[0]] += 1


def test_a_ledger_of_others_stays_exact_meanwhile(
    two_roles: TwoRoles,
    seeded_random: random.Random,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    """Alice's messages, while Mallory calls, notifies and tries what there is; beside the same without her.

    Each slice of Alice's moves messages, and hardly ever does one of them wait for a lock of Mallory's. How long they
    take is told and not judged: the two share the processors, and with other tests.
    """
    database = two_roles.database
    own, alices = conversation(two_roles, "Mallory", "Den", b"own"), conversation(two_roles, "Alice", "Vault", SECRET)
    deliver_now(two_roles)  # including left-over messages of other tests
    for queue in ("Vault", "Alice"):
        while database.receive(queue):
            pass
    sent: list[bytes] = []
    received: list[bytes | None] = []
    quiet: list[float] = []
    harmed: list[float] = []
    with sb.open(two_roles.alice) as instance:
        alice = instance.database("Bank")
        handle = alice.begin_dialog("//bank/Alice", "//bank/Vault", contract="//bank/Contract")

        def messages(took: list[float]) -> None:
            end, before = time.monotonic() + _SLICE_S, len(took)
            while time.monotonic() < end or len(took) == before:
                sent.append(b"%s %d" % (SECRET, len(sent)))
                started_at = time.monotonic()
                alice.send(handle, "//bank/Order", sent[-1])
                deliver_now(two_roles)
                received.extend(bodies(database.receive("Vault")))
                took.append(time.monotonic() - started_at)

        messages([])  # all caches are warm
        mallory = Mallory(two_roles, pool(two_roles, own, alices), seeded_random)
        request.addfinalizer(mallory.over.set)
        mallory.start()
        waits = Waits(two_roles)
        request.addfinalizer(waits.over.set)
        waits.start()
        end = time.monotonic() + request.config.getoption("--hostile-seconds")
        while time.monotonic() < end:
            messages(quiet)
            mallory.go()
            messages(harmed)
            mallory.pause()
        mallory.over.set()
        waits.over.set()
        waits.join(60)
        received += bodies(database.receive("Vault"))
        assert received == sent
        assert not any(SECRET.decode() in said or SECRET.hex() in said for said in mallory.heard)
        assert mallory.done > 0
        alice.end_conversation(handle)
    told = f"{statistics.median(quiet) * 1e3:.1f} ms quiet, {statistics.median(harmed) * 1e3:.1f} ms harmed"
    told += f", {waits.counts[True]} of {waits.counts.total()} looks found a wait"
    record_property("hostile role", f"{told}, {mallory.tried} tried, {mallory.done} done, {len(sent)} messages")
    assert waits.counts[True] <= _MOST_WAITS * waits.counts.total(), told


def test_shadowed_names_in_the_search_path_are_never_called(two_roles: TwoRoles) -> None:
    """The caller's own tables, types, functions and operators, in any schema of its search path."""
    with psycopg.connect(two_roles.mallory, autocommit=True) as mallory:
        mallory.execute("create schema shadows")
        mallory.execute("create table shadows.log (who text)")
        mallory.execute(
            "create function shadows.note() returns boolean language plpgsql volatile as $$ "
            "begin insert into shadows.log values (current_user); return true; end $$"
        )
        for text in (
            "create domain shadows.uuid as pg_catalog.uuid check (shadows.note())",
            "create domain shadows.text as pg_catalog.text check (shadows.note())",
            "create domain shadows.integer as pg_catalog.int4 check (shadows.note())",
            "create domain shadows.bigint as pg_catalog.int8 check (shadows.note())",
            *(
                f"create function shadows.{name}({given}) returns {result} language plpgsql as "
                f"$$ begin perform shadows.note(); return null; end $$"
                for name, given, result in (
                    ("uuid_hash", "pg_catalog.uuid", "int4"), ("hashtext", "pg_catalog.text", "int4"),
                    ("lower", "pg_catalog.text", "pg_catalog.text"), ("nextval", "pg_catalog.text", "int8"),
                    ("pg_notify", "pg_catalog.text, pg_catalog.text", "int4"), ("clock_timestamp", "", "timestamptz"),
                    ("gen_random_uuid", "", "pg_catalog.uuid"),
                    ("current_setting", "pg_catalog.text", "pg_catalog.text"),
                    ("equal", "pg_catalog.uuid, pg_catalog.uuid", "boolean"),
                )
            ),
            "create operator shadows.= (function = shadows.equal, leftarg = pg_catalog.uuid, "
            "rightarg = pg_catalog.uuid)",
            "create temp table fenced_roles (postgres_role text, key uuid)",
            "create temp table conversation_endpoints (x int)",
            "create temp view caller as select gen_random_uuid() as key",
        ):  # fmt: skip
            mallory.execute(text)  # type: ignore[call-overload]
        mallory.execute("set search_path = shadows, pg_temp, pg_catalog")
        mallory.execute("set standard_conforming_strings = off")
        (begun,) = mallory.execute(
            "select servicebroker_fence.begin_dialog('Bank', '//bank/Mallory', '//bank/Den', '//bank/Contract')"
        ).fetchone()
        queue = queue_number(two_roles.database, "Mallory")
        number = two_roles.database.database_id
        for text in (
            f"select servicebroker_fence.send('{begun}', '//bank/Order', 'x')",
            f"select * from servicebroker_fence.receive({queue}, 10, null, null)",
            f"select * from servicebroker_fence.end_conversation({number}, '{begun}', 5, 'no', false)",
            f"set servicebroker.marks_{queue} = '{{9,9,9,9,9,9,9,9,9,9,1}}'",
            f'set servicebroker.survey_{queue} = \'(1,,,"{{3}}","{{3}}","{{1}}",)\'',
            f"select * from servicebroker_fence.receive({queue}, 10, null, null)",
        ):
            try:
                mallory.execute(text)  # type: ignore[call-overload]
            except psycopg.Error as problem:
                assert not isinstance(problem, psycopg.errors.InternalError_), text  # noqa: PT017
        owner = query(two_roles.database, "select current_user::text")[0][0]
        assert mallory.execute("select count(*) from shadows.log where who <> current_user").fetchone() == (0,)
        assert owner != MALLORY
        mallory.execute("drop schema shadows cascade")


def test_the_key_of_another_is_not_to_be_had(two_roles: TwoRoles) -> None:
    with psycopg.connect(two_roles.mallory, autocommit=True) as mallory:
        mallory.execute("create schema thief")
        mallory.execute(
            "create function thief.see(uuid) returns boolean language plpgsql cost 0.0000001 as "
            "$$ begin raise notice '%', $1; return true; end $$"
        )
        notices: list[str] = []
        mallory.add_notice_handler(lambda notice: notices.append(str(notice.message_primary)))
        seen = mallory.execute("select key::text from servicebroker_fence.caller where thief.see(key)").fetchall()
        assert [(text,) for text in notices] == seen
        assert len(seen) == 1
        mallory.execute("drop schema thief cascade")
        for me in ("null", "gen_random_uuid()", "'00000000-0000-0000-0000-000000000000'"):
            with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not call the verbs"):
                mallory.execute(f"select * from servicebroker_fence.wait_for('{{1}}', {me}); select 1/0")  # type: ignore[call-overload]
                mallory.execute(f"select * from servicebroker_fence.principal(2, {me})")  # type: ignore[call-overload]


def test_code_of_the_role_in_other_sessions_is_still_the_role(two_roles: TwoRoles) -> None:
    """The code runs in Alice's session, and when a superuser's session evaluates an index of the role."""
    queue = queue_number(two_roles.database, "Alice")
    conversation(two_roles, "Alice", "Vault", SECRET)
    with psycopg.connect(two_roles.mallory, autocommit=True) as mallory:
        mallory.execute(
            "create schema trap; grant usage on schema trap to public; create table trap.caught (what text)"
        )
        steal = (
            "$$ declare got text; begin "
            f"select string_agg(r::text, '') into got from servicebroker_fence.receive({queue}, 10, null, null) r; "
            "insert into trap.caught values (current_user || ' ' || got); return 1; end $$"
        )
        mallory.execute(f"create function trap.helpful() returns int language plpgsql security definer as {steal}")  # type: ignore[call-overload]
        mallory.execute("create table trap.t (x int); insert into trap.t values (1)")
        mallory.execute(f"create function trap.steal() returns int language plpgsql as {steal}")  # type: ignore[call-overload]
        mallory.execute(
            "create function trap.indexed(int) returns int immutable language plpgsql as "
            "$$ begin return trap.steal(); end $$"
        )
        mallory.execute("create index on trap.t (trap.indexed(x))")
        with psycopg.connect(two_roles.alice, autocommit=True) as alice:
            alice.execute("select trap.helpful()")
        with two_roles.database.instance.connection() as owner:
            owner.execute("reindex table trap.t")
            owner.execute("analyze trap.t")
        caught = mallory.execute("select what from trap.caught").fetchall()
        assert len(caught) >= 3
        assert {what for (what,) in caught if "229" not in what or not what.startswith(MALLORY)} == set()
        mallory.execute("drop schema trap cascade")
    with sb.open(two_roles.alice) as instance:
        assert SECRET in bodies(instance.database("Bank").receive("Alice"))


def test_members_of_a_role_are_it_only_after_set_role(two_roles: TwoRoles) -> None:
    with psycopg.connect(two_roles.database.instance.url, autocommit=True) as owner:
        owner.execute(f"create role member in role {MALLORY}")  # type: ignore[call-overload]
        owner.execute("set session authorization member")
        text = "select principal_id, refusal from servicebroker_fence.principal(%s)"
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not call the verbs"):
            owner.execute(text, (two_roles.database.database_id,))
        owner.execute(f"set role {MALLORY}")  # type: ignore[call-overload]
        (row,) = owner.execute(text, (two_roles.database.database_id,)).fetchall()
        assert row[1] is None
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute(f"set role {ALICE}")  # type: ignore[call-overload]
        owner.execute("reset session authorization")
        owner.execute("drop role member")


def test_isolation_levels_above_read_committed_are_refused(two_roles: TwoRoles) -> None:
    with psycopg.connect(two_roles.mallory) as mallory:
        mallory.execute("set transaction isolation level repeatable read")
        with pytest.raises(psycopg.errors.InvalidTransactionState, match="READ COMMITTED"):
            mallory.execute("select servicebroker_fence.begin_dialog('Bank', '//bank/Mallory', '//bank/Den')")


def test_a_role_with_rights_on_tables_works_on_them(
    make_instance_url: Callable[[], str], server: EmbeddedServer
) -> None:
    """doctor names the role, and the command that restricts it."""
    url, role = make_instance_url(), "deployed"
    with sb.open(url, upkeep=None) as instance:
        instance.database("Shop", create=True)
    with let_in(server.url, role), psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role {role} login")  # type: ignore[call-overload]
        connection.execute(f"grant usage on schema servicebroker to {role}")  # type: ignore[call-overload]
        connection.execute(f"grant all on all tables in schema servicebroker to {role}")  # type: ignore[call-overload]
        connection.execute(f"grant usage, select on all sequences in schema servicebroker to {role}")  # type: ignore[call-overload]
        connection.execute(f"grant execute on all functions in schema servicebroker to {role}")  # type: ignore[call-overload]
        mend(connection)  # grants it the functions that take our locks
        with sb.open(url, upkeep=None) as instance:
            shop = instance.database("Shop")
            shop.create_user(role, role)
            shop.grant("CONTROL", role)
            with sb.open(as_role(url, role), upkeep=None) as deployed:
                assert deployed.engine.runs_maintenance  # on the tables, not through the fence
                echo = "http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker"
                app = deployed.database("Shop")
                app.begin_dialog(echo, echo)
                assert app.receive(names.SYSTEM_SERVICES[0][1]) == []
            (rights,) = [row for row in instance.show_rights() if row.role == role]
            assert len(rights.direct) > 50
            findings = run_on(instance, gather(instance.clock()))
            (finding,) = [finding for finding in judge(findings) if finding.subject == f"role {role}"]
            assert f"servicebroker rights grant {role}" in finding.advice
            instance.grant_rights(role, database="Shop")
            with sb.open(as_role(url, role)) as fenced:
                assert not fenced.engine.runs_maintenance
                fenced.database("Shop").begin_dialog(echo, echo)
        connection.execute(f"drop owned by {role}; drop role {role}")  # type: ignore[call-overload]


def run_on(instance: sb.Instance, steps: Any) -> Any:
    with instance.connection() as connection:
        return run(connection, steps)
