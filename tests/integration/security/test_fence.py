"""A hostile PostgreSQL role with exactly the grants of the how-to: it reads, redirects and forges nothing of others."""

from __future__ import annotations

import random
import re
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterator
from datetime import datetime, timedelta
from functools import partial
from threading import Event, Thread
from typing import Any, NamedTuple
from uuid import UUID, uuid4

import psycopg
import pytest
from psycopg import sql

import hostile_role
import servicebroker as sb
from portal import deliver
from servicebroker.api.upkeep import release
from servicebroker.engine.diagnosis.consistency import tampered
from servicebroker.engine.diagnosis.facts import gather
from servicebroker.engine.diagnosis.judgement import judge
from servicebroker.model import names, waiting
from servicebroker.model.messages import error_body
from servicebroker.model.names import DEFAULT
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
    bringing,
    is_allowed,
    refusal,
)
from servicebroker.operations import DeadLetterGroups, DiscardMessage, ReplayMessage, SetAsideMessages
from servicebroker.operations.schedules import KeepSchedule
from servicebroker.store import locks
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.migrations import mend
from servicebroker.store.running import run
from servicebroker.store.sql_verbs import FENCED_VERBS
from servicebroker.store.statement_counts import counts_of
from support import (
    as_role,
    blocked,
    bodies,
    eventually,
    group_of,
    in_thread,
    let_in,
    query,
    queue_number,
    refused,
    state,
    wait_until_blocked,
)

MALLORY, ALICE = "mallory", "alice"
SECRET = b"a secret of Alice's"
_SLICE_S = 0.3  # seconds of quiet, or of harm
_LOOK_S = 0.01  # seconds between two looks for waits
_MOST_WAITS = 0.1  # of all looks


class Town(NamedTuple):
    """Alice's bank, and what Mallory has there."""

    database: sb.Database
    alice: str  # the URLs of each
    mallory: str


@pytest.fixture(scope="module")
def town(server: EmbeddedServer, make_instance_url: Callable[[], str]) -> Iterator[Town]:
    url = make_instance_url()
    with let_in(server.url, MALLORY, ALICE), sb.open(url, upkeep=None) as instance:
        bank = instance.database("Bank", create=True)
        bank.create_message_type("//bank/Order")
        bank.create_contract("//bank/Contract", {"//bank/Order": "ANY"})
        for who in ("Alice", "Vault", "Mallory", "Den"):
            bank.create_queue(who)
            bank.create_service(f"//bank/{who}", who, ["//bank/Contract"])
        with instance.connection() as connection:
            for role in (MALLORY, ALICE):
                connection.execute(f"create role {role} login")  # type: ignore[call-overload]
                connection.execute(f"grant create on database {connection.info.dbname} to {role}")  # type: ignore[call-overload]
        for role, own, far in ((MALLORY, "Mallory", "Den"), (ALICE, "Alice", "Vault")):
            instance.grant_rights(role, database="Bank", receive=[own], send=[f"//bank/{own}", f"//bank/{far}"])
        yield Town(bank, as_role(url, ALICE), as_role(url, MALLORY))
        with instance.connection() as connection:
            connection.execute(f"drop owned by {MALLORY}, {ALICE} cascade; drop role {MALLORY}, {ALICE}")  # type: ignore[call-overload]


def delivered(town: Town) -> None:
    with town.database.instance.connection() as connection:
        deliver(connection, town.database.instance.clock())


def conversation(town: Town, who: str, far: str, body: bytes) -> tuple[UUID, UUID]:
    """A conversation whose first message lies in the far queue, and an answer in the near one: both handles."""
    database = town.database
    handle = database.begin_dialog(f"//bank/{who}", f"//bank/{far}", contract="//bank/Contract")
    database.send(handle, "//bank/Order", body)
    (peer,) = query(
        database, "select far_handle from servicebroker.conversation_endpoints where conversation_handle = %s", handle
    )[0]
    database.send(peer, "//bank/Order", body)
    return handle, peer


def in_queue(town: Town, queue: str) -> list[bytes | None]:
    """Return the bodies in a queue, and leave them there."""
    text = f"select message_body from servicebroker.queue_{queue_number(town.database, queue)} order by queuing_order"
    return [row[0] for row in query(town.database, text)]


def names_of(town: Town, connection: psycopg.Connection[Any]) -> dict[str, str]:
    owner = query(town.database, "select current_user::text")[0][0]
    return {"role": MALLORY, "victim": ALICE, "owner": owner, "database": connection.info.dbname}


def test_every_statement_on_every_object(town: Town) -> None:
    conversation(town, "Alice", "Vault", SECRET)
    with town.database.instance.connection() as owner, psycopg.connect(town.mallory, autocommit=True) as mallory:
        before = hostile_role.digest(owner)
        found = hostile_role.objects(owner)
        assert len(found.tables) > 100
        assert len(found.functions) > 100
        names = names_of(town, mallory)
        texts = [*hostile_role.statements(found, names), *hostile_role.at_large(names)]
        tried = hostile_role.attempt(mallory, texts)
        done = {one.statement for one in tried if not one.sqlstate}
        # Allowed acts: to read and lock its own key, GRANT and REVOKE with a warning and no effect, to be itself.
        harmless = re.compile(
            r"(select|table|copy|declare|explain|create|do) .*servicebroker_fence\.caller|grant |revoke |"
            r"lock servicebroker_fence\.caller in access share mode|"
            r"set local session authorization default; set role mallory"
        )
        assert {text for text in done if not harmless.match(text)} == set()
        states = Counter(one.sqlstate for one in tried)
        assert states["42501"] > 0.75 * len(tried), states
        assert hostile_role.digest(owner) == before
    # the statements are real ones: where the owner runs them, most are done
    with town.database.instance.connection() as owner, pytest.raises(ZeroDivisionError), owner.transaction():
        some = hostile_role.Objects(
            [t for t in found.tables if ".permissions" in t[0]], [], found.functions[-1:], ["sys"]
        )
        tried = hostile_role.attempt(owner, list(hostile_role.statements(some, names)), undo=True)
        worked = [one.statement for one in tried if not one.sqlstate]
        assert len(worked) > 25
        raise ZeroDivisionError  # undo it all


def pool(town: Town, own: tuple[UUID, UUID], alices: tuple[UUID, UUID]) -> dict[str, list[object]]:
    """Return values that Mallory may have heard of: numbers, names, handles and groups of others, and nonsense."""
    database = town.database
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
    """The columns of our tables that hold a time which Python cannot represent."""
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


def test_every_function_with_hostile_arguments(town: Town, seeded_random: random.Random) -> None:
    database = town.database
    own, alices = conversation(town, "Mallory", "Den", b"own"), conversation(town, "Alice", "Vault", SECRET)
    before = in_queue(town, "Alice"), in_queue(town, "Vault")
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
    with database.instance.connection() as owner, psycopg.connect(town.mallory, autocommit=True) as mallory:
        sums = hostile_role.digest(owner)
        functions = hostile_role.executable(mallory)
        assert {name for name, _ in functions if name.startswith("servicebroker.")} == set()
        fenced = [one for one in functions if one[0].startswith("servicebroker_fence.")]
        assert len(fenced) > 20
        calls = list(hostile_role.calls(fenced, pool(town, own, alices), seeded_random, 60))
        for text in calls[:: len(calls) // 3]:  # with a savepoint, in a transaction, on a snapshot of before
            with mallory.transaction(force_rollback=True):
                hostile_role.say(mallory, [text])
        said, tried = hostile_role.say(mallory, calls)
        assert SECRET.hex() not in said
        assert SECRET.decode() not in said
        keys = owner.execute("select key::text from servicebroker.fenced_roles where postgres_role = %s", (ALICE,))
        assert not any(key in said for (key,) in keys.fetchall())
        assert Counter(one.sqlstate for one in tried)[""] > len(tried) / 4  # most refusals are rows
        assert not {one for one in tried if one.sqlstate.startswith(("XX", "58"))}
        after = hostile_role.digest(owner)
        changed = {name.split(".")[1] for name in sums if name in after and sums[name] != after[name] and "." in name}
        beside = {"waiting_readers", "savepoint_probes", "queues", "events_to_post", "audit"}
        assert {name for name in changed if not name.startswith(catalog)} <= beside
        assert sums["functions"] == after["functions"]
        owner.execute("update servicebroker.queues set is_receive_enabled = true, is_enqueue_enabled = true")
        assert impossible_times(owner) == []
    delivered(town)
    assert query(database, alice_rows) == rows
    assert (in_queue(town, "Alice"), in_queue(town, "Vault")) == before
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
    """Calls, notifies and tries what she likes on a connection of her own, whenever she is let."""

    def __init__(self, town: Town, heard_of: dict[str, list[object]], chance: random.Random) -> None:
        super().__init__(daemon=True)
        self.town, self.heard_of, self.chance = town, heard_of, chance
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
            functions = [one for one in hostile_role.executable(mallory) if one[0].startswith("servicebroker_fence.")]
            while not self.over.is_set():
                if not self.may.is_set():
                    self.rests.set()
                    self.may.wait(0.1)
                    continue
                said, tried = hostile_role.say(
                    mallory, list(hostile_role.calls(functions, self.heard_of, self.chance, 1))
                )
                self.heard.add(said)
                self.tried += len(tried)
                self.done += sum(not one.sqlstate for one in tried)
                self.tried += len(hostile_role.attempt(mallory, self.chance.sample(texts, 20), undo=True))
                for channel in ("servicebroker", "servicebroker_delivery", "servicebroker_activation"):
                    payload = self.chance.choice(["0", "-1", "x" * 100, "9" * 30])
                    mallory.execute("select pg_notify(%s, %s)", (channel, payload))

    def go(self) -> None:
        self.rests.clear()
        self.may.set()

    def pause(self) -> None:
        """Wait until her present act has ended."""
        self.may.clear()
        assert self.rests.wait(60)
        if self.failed is not None:
            raise self.failed


class Waits(Thread):
    """Looks again and again whether somebody waits for a lock of Mallory's, and counts both outcomes."""

    def __init__(self, town: Town) -> None:
        super().__init__(daemon=True)
        self.town, self.over, self.counts = town, Event(), Counter[bool]()

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
    town: Town,
    seeded_random: random.Random,
    request: pytest.FixtureRequest,
    record_property: Callable[[str, object], None],
) -> None:
    """Alice's messages, while Mallory calls, notifies and tries what there is; beside the same without her.

    Each slice of Alice's moves messages, and hardly ever does one of them wait for a lock of Mallory's. How long they
    take is told and not judged: the two share the processors, and with other tests.
    """
    database = town.database
    own, alices = conversation(town, "Mallory", "Den", b"own"), conversation(town, "Alice", "Vault", SECRET)
    delivered(town)  # left-over messages of others, too
    for queue in ("Vault", "Alice"):
        while database.receive(queue):
            pass
    sent: list[bytes] = []
    received: list[bytes | None] = []
    quiet: list[float] = []
    harmed: list[float] = []
    with sb.open(town.alice) as instance:
        alice = instance.database("Bank")
        handle = alice.begin_dialog("//bank/Alice", "//bank/Vault", contract="//bank/Contract")

        def messages(took: list[float]) -> None:
            end, before = time.monotonic() + _SLICE_S, len(took)
            while time.monotonic() < end or len(took) == before:
                sent.append(b"%s %d" % (SECRET, len(sent)))
                begun = time.monotonic()
                alice.send(handle, "//bank/Order", sent[-1])
                delivered(town)
                received.extend(bodies(database.receive("Vault")))
                took.append(time.monotonic() - begun)

        messages([])  # all are warm
        mallory = Mallory(town, pool(town, own, alices), seeded_random)
        request.addfinalizer(mallory.over.set)
        mallory.start()
        waits = Waits(town)
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


def test_shadows_of_what_we_call(town: Town) -> None:
    """Tables, types, functions and operators of the caller's own, wherever its search path says."""
    with psycopg.connect(town.mallory, autocommit=True) as mallory:
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
        queue = queue_number(town.database, "Mallory")
        number = town.database.database_id
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
        owner = query(town.database, "select current_user::text")[0][0]
        assert mallory.execute("select count(*) from shadows.log where who <> current_user").fetchone() == (0,)
        assert owner != MALLORY
        mallory.execute("drop schema shadows cascade")


def test_the_key_of_another_is_not_to_be_had(town: Town) -> None:
    with psycopg.connect(town.mallory, autocommit=True) as mallory:
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


def test_code_of_the_role_in_other_sessions_is_still_the_role(town: Town) -> None:
    """In Alice's session, and where a superuser's session evaluates an index of the role's own."""
    queue = queue_number(town.database, "Alice")
    conversation(town, "Alice", "Vault", SECRET)
    with psycopg.connect(town.mallory, autocommit=True) as mallory:
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
        with psycopg.connect(town.alice, autocommit=True) as alice:
            alice.execute("select trap.helpful()")
        with town.database.instance.connection() as owner:
            owner.execute("reindex table trap.t")
            owner.execute("analyze trap.t")
        caught = mallory.execute("select what from trap.caught").fetchall()
        assert len(caught) >= 3
        assert {what for (what,) in caught if "229" not in what or not what.startswith(MALLORY)} == set()
        mallory.execute("drop schema trap cascade")
    with sb.open(town.alice) as instance:
        assert SECRET in bodies(instance.database("Bank").receive("Alice"))


def test_members_of_a_role_are_it_only_after_set_role(town: Town) -> None:
    with psycopg.connect(town.database.instance.url, autocommit=True) as owner:
        owner.execute(f"create role member in role {MALLORY}")  # type: ignore[call-overload]
        owner.execute("set session authorization member")
        text = "select principal_id, refusal from servicebroker_fence.principal(%s)"
        with pytest.raises(psycopg.errors.InsufficientPrivilege, match="may not call the verbs"):
            owner.execute(text, (town.database.database_id,))
        owner.execute(f"set role {MALLORY}")  # type: ignore[call-overload]
        (row,) = owner.execute(text, (town.database.database_id,)).fetchall()
        assert row[1] is None
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            owner.execute(f"set role {ALICE}")  # type: ignore[call-overload]
        owner.execute("reset session authorization")
        owner.execute("drop role member")


def test_nothing_is_done_on_old_snapshots(town: Town) -> None:
    with psycopg.connect(town.mallory) as mallory:
        mallory.execute("set transaction isolation level repeatable read")
        with pytest.raises(psycopg.errors.InvalidTransactionState, match="READ COMMITTED"):
            mallory.execute("select servicebroker_fence.begin_dialog('Bank', '//bank/Mallory', '//bank/Den')")


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


def test_nobody_joins_or_locks_the_group_of_another_by_a_new_conversation(town: Town) -> None:
    begin = (
        "select handle, refusal from servicebroker_fence.begin_conversation(%s, '//bank/Mallory', '//bank/Den', "
        "'//bank/Contract', 60, null, %s, %s, false, null, null, null)"
    )
    alices, _ = conversation(town, "Alice", "Vault", b"")
    number, url = town.database.database_id, town.database.instance.url
    with psycopg.connect(url) as owner, psycopg.connect(town.mallory, autocommit=True) as mallory:
        held = (
            "select conversation_group_id, pg_advisory_xact_lock(%s, uuid_hash(conversation_group_id)) "
            "from servicebroker.conversation_endpoints where conversation_handle = %s"
        )
        ((group, _),) = owner.execute(held, (locks.CONVERSATION_GROUP, alices)).fetchall()
        mallory.execute("set statement_timeout = '5s'")
        for related in ((alices, None), (None, group)):
            ((handle, refusal),) = mallory.execute(begin, (number, *related)).fetchall()
            assert handle is None
            assert refusal[0] == "9610"
        ((first, refusal),) = mallory.execute(begin, (number, None, None)).fetchall()
        assert refusal is None
        ((second, refusal),) = mallory.execute(begin, (number, first, None)).fetchall()
        assert (second is not None, refusal) == (True, None)


def test_a_new_conversation_leaves_with_its_messages(town: Town) -> None:
    """In one statement each; nobody joins a group or takes a handle of another by it."""
    with sb.open(town.mallory, upkeep=None) as instance:
        bank = instance.database("Bank")
        with instance.connection() as connection:
            counts = counts_of(connection)

        def ask(*bodies: bytes, contract: str = "//bank/Contract") -> int:
            """Return how many statements that took."""
            counts.take()
            with bank.transaction() as tx:
                handle = tx.begin_dialog("//bank/Mallory", "//bank/Den", contract=contract)
                assert [tx.send(handle, "//bank/Order", body) for body in bodies] == list(range(len(bodies)))
            calls = sum(calls for calls, _ in counts.take().values())
            delivered(town)
            return calls

        delivered(town)
        before = len(in_queue(town, "Den"))
        assert ask(b"1") == 2
        assert ask(b"2") == 1
        assert ask(b"3", b"4", b"5") == 1
        assert in_queue(town, "Den")[before:] == [b"1", b"2", b"3", b"4", b"5"]
        with refused(8425):
            ask(b"6", contract="//bank/None")
        town.database.drop_service("//bank/Mallory")
        try:
            with refused(8423, "//bank/Mallory"):
                ask(b"7")
        finally:
            town.database.create_service("//bank/Mallory", "Mallory", ["//bank/Contract"])
            town.database.grant("SEND", MALLORY, service="//bank/Mallory")
        with refused(8423, "//bank/Mallorys"), bank.transaction() as tx:
            tx.begin_dialog("//bank/Mallorys", "//bank/Den", contract="//bank/Contract")
        assert ask(b"8") == 2
        assert in_queue(town, "Den")[-1] == b"8"
    alices, _ = conversation(town, "Alice", "Vault", b"")
    group = group_of(town.database, alices)
    begin = (
        "select is_done, refusal[1] from servicebroker_fence.begin_and_send(%s, %s, %s, '//bank/Mallory', "
        "'//bank/Den', '//bank/Contract', 60, null, false, array['//bank/Order'], array['x'::bytea])"
    )
    with psycopg.connect(town.mallory, autocommit=True) as mallory:
        for drawn, number in (((uuid4(), group), "9610"), ((alices, uuid4()), "402"), ((None, None), "402")):
            assert mallory.execute(begin, (town.database.database_id, *drawn)).fetchall() == [(False, number)]


# --- the same rules as in Python ------------------------------------------------------------------------------------


@pytest.mark.parametrize("statement", FENCED_VERBS)
def test_permissions_are_decided_as_the_model_decides(town: Town, statement: str, seeded_random: random.Random) -> None:
    database, chance = town.database, seeded_random
    user = User(database.database_id, "Bank", 70_001, "somebody")
    kinds = [need.kind for need in NEEDS[statement]]
    rights = [right for right in IMPLIED_BY if right[0] in (Kind.DATABASE, Kind.SCHEMA, *kinds)]
    rights += [right for need in NEEDS[statement] for right in bringing(need.kind, need.permission)] * 5
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
                entries = [*(one for one in entries if one[:4] != entry[:4]), entry]  # one of each, as the table has
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
        for statement in sorted(FENCED_VERBS)
        for need in NEEDS[statement]
    ]
    assert all(need.or_else is None for statement in FENCED_VERBS for need in NEEDS[statement])


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


# --- what only an owner or a superuser can do, and what an upgrade finds ----------------------------------------------


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("grant execute on function servicebroker.send to public", "everybody may execute"),
        ("alter table servicebroker.totals owner to mallory", "belongs to mallory"),
        ("alter function servicebroker.send_on owner to mallory", "belongs to mallory"),
        ("alter table servicebroker.queues enable row level security", "queues has row level security"),
    ],
)
def test_check_notices_what_a_superuser_has_changed(town: Town, change: str, said: str) -> None:
    with town.database.instance.connection() as connection, connection.transaction(force_rollback=True):
        assert run(connection, tampered()) == []
        connection.execute(change)  # type: ignore[call-overload]
        found = run(connection, tampered())
        assert len(found) == 1
        assert said in found[0]


def test_check_says_it(town: Town) -> None:
    instance = town.database.instance
    with instance.connection() as connection:
        connection.execute("alter table servicebroker.queues enable row level security")
        (finding,) = [finding for finding in instance.check().findings if finding.number == 8992]
        connection.execute("alter table servicebroker.queues disable row level security")
    assert "queues has row level security" in finding.text


def test_a_role_with_rights_on_tables_works_on_them(
    make_instance_url: Callable[[], str], server: EmbeddedServer
) -> None:
    """Doctor names the role, and the command that restricts it."""
    url, role = make_instance_url(), "deployed"
    with sb.open(url, upkeep=None) as instance:
        instance.database("Shop", create=True)
    with let_in(server.url, role), psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"create role {role} login")  # type: ignore[call-overload]
        connection.execute(f"grant usage on schema servicebroker to {role}")  # type: ignore[call-overload]
        connection.execute(f"grant all on all tables in schema servicebroker to {role}")  # type: ignore[call-overload]
        connection.execute(f"grant usage, select on all sequences in schema servicebroker to {role}")  # type: ignore[call-overload]
        connection.execute(f"grant execute on all functions in schema servicebroker to {role}")  # type: ignore[call-overload]
        mend(connection)  # gives it the functions that take our locks
        with sb.open(url, upkeep=None) as instance:
            shop = instance.database("Shop")
            shop.create_user(role, role)
            shop.grant("CONTROL", role)
            with sb.open(as_role(url, role), upkeep=None) as deployed:
                assert deployed.engine.has_upkeep  # on the tables, not through the fence
                echo = "http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker"
                app = deployed.database("Shop")
                app.begin_dialog(echo, echo)
                assert app.receive(names.SYSTEM_SERVICES[0][1]) == []
            (rights,) = [one for one in instance.show_rights() if one.role == role]
            assert len(rights.direct) > 50
            findings = run_on(instance, gather(instance.clock()))
            (finding,) = [one for one in judge(findings) if one.subject == f"role {role}"]
            assert f"servicebroker rights grant {role}" in finding.advice
            instance.grant_rights(role, database="Shop")
            with sb.open(as_role(url, role)) as fenced:
                assert not fenced.engine.has_upkeep
                fenced.database("Shop").begin_dialog(echo, echo)
        connection.execute(f"drop owned by {role}; drop role {role}")  # type: ignore[call-overload]


def run_on(instance: sb.Instance, steps: Any) -> Any:
    with instance.connection() as connection:
        return run(connection, steps)


def test_doctor_names_who_holds_a_lock_of_ours(town: Town) -> None:
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
        found = judge(run(owner, gather(later)))
        holder.execute("select pg_advisory_unlock(%s, 0)", (locks.PARKED_DELIVERY,))
        sending.result(30)
    (finding,) = [one for one in found if "our lock of delivery" in one.problem]
    assert "forgotten" in finding.problem
    assert "pg_terminate_backend" in finding.advice


def test_when_both_sides_have_ended_neither_is_told(town: Town) -> None:
    """The other side's EndDialog waits, since the queue is off, when the restricted role ends its own."""
    database = town.database
    mallory, den = conversation(town, "Mallory", "Den", b"x")
    database.alter_queue("Mallory", status=False)
    database.end_conversation(den)
    assert [state(database, handle) for handle in (mallory, den)] == ["CO", "DO"]
    with sb.open(town.mallory) as instance:
        instance.database("Bank").end_conversation(mallory)
    assert [state(database, handle) for handle in (mallory, den)] == [None, "CD"]
    waits = "select from servicebroker.transmission_queue where conversation_handle in (%s, %s)"
    assert query(database, waits, mallory, den) == []
    database.alter_queue("Mallory", status=True)
    assert database.instance.check().findings == []


def test_an_end_waits_for_a_dialog_that_joins_the_group_of_the_other_side(town: Town) -> None:
    """The last conversation of the group goes with the END of its peer, and the group stays for the new one."""
    database = town.database
    den, mallory = conversation(town, "Den", "Mallory", b"x")
    group = group_of(database, den)
    database.alter_queue("Mallory", status=False)
    database.end_conversation(den)
    assert state(database, den) == "DO"
    with sb.open(town.mallory) as instance:
        with database.transaction() as beginning:
            joined = beginning.begin_dialog(
                "//bank/Den", "//bank/Mallory", contract="//bank/Contract", related_conversation_group=group
            )
            ending = in_thread(instance.database("Bank").end_conversation, mallory)
            wait_until_blocked(database)
        ending.result(30)
    database.alter_queue("Mallory", status=True)
    assert state(database, den) is None
    assert group_of(database, joined) == group
    assert database.instance.check().findings == []


@pytest.mark.parametrize("how", ["END", "MOVE"])
def test_a_group_that_a_role_and_another_leave_at_once_is_removed(town: Town, how: str) -> None:
    """The role's conversation leaves it, another goes with the END of its peer, which has the lock of another group."""
    database = town.database
    ending, target = conversation(town, "Mallory", "Den", b"x")
    group = group_of(database, ending)
    begin = partial(database.begin_dialog, "//bank/Mallory", "//bank/Den", contract="//bank/Contract")
    leaving, elsewhere = begin(related_conversation_group=group), group_of(database, begin())
    database.alter_queue("Den", status=False)
    database.end_conversation(ending)
    with sb.open(town.mallory) as instance:
        with instance.database("Bank").transaction() as transaction:
            if how == "MOVE":
                transaction.move_conversation(leaving, elsewhere)
            else:
                transaction.end_conversation(leaving)
            other = in_thread(database.end_conversation, target)
            eventually(lambda: other.done() or blocked(database))
        other.result(30)
    database.alter_queue("Den", status=True)
    text = "select from servicebroker.conversation_groups where conversation_group_id = %s"
    assert query(database, text, group) == []


def test_what_was_sent_before_an_expired_side_ended_does_not_reach_it(town: Town) -> None:
    """The sender goes by the time at which it was called; it waited for a connection meanwhile."""
    database = town.database
    mallory, den = conversation(town, "Mallory", "Den", b"x")
    before = database.instance.clock()
    text = "update servicebroker.conversation_endpoints set lifetime = now() where conversation_handle in (%s, %s)"
    with sb.open(database.instance.url, clock=lambda: before, upkeep=None) as waiting:
        assert waiting.database("Bank").send(den, "//bank/Order", b"the way is remembered") == 1
        with database.instance.connection() as connection:
            connection.execute(text, (mallory, den))
        with sb.open(town.mallory) as instance:
            instance.database("Bank").end_conversation(mallory)
        assert [state(database, handle) for handle in (mallory, den)] == [None, "CO"]
        assert waiting.database("Bank").send(den, "//bank/Order", b"late") == 2
    text = f"select from servicebroker.queue_{queue_number(database, 'Mallory')} where conversation_handle = %s"
    assert query(database, text, mallory) == []
    assert database.instance.check().findings == []


def test_failures_of_timers_are_counted_for_each_timer(town: Town) -> None:
    mallory, _ = conversation(town, "Mallory", "Den", b"x")
    counts: list[int] = []

    def fail(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError("no")

    def watching(failure: sb.Failure) -> sb.Verdict:
        counts.append(failure.count)
        assert len(counts) < 10
        return sb.Retry() if failure.count == 1 else sb.Ignore()

    text = "select failures from servicebroker.failed_messages where conversation_handle = %s"
    with sb.open(town.mallory) as instance:
        app = instance.database("Bank")
        while app.receive("Mallory"):
            pass
        app.begin_conversation_timer(mallory, 0)
        assert app.process("Mallory", fail, poison=watching) == 2
        app.begin_conversation_timer(mallory, 0)
        app.process("Mallory", fail, poison=lambda failure: sb.Retry(after=60))
        assert query(town.database, text, mallory) == [(1,)]
        app.begin_conversation_timer(mallory, 60)
        assert query(town.database, text, mallory) == []
        app.end_conversation(mallory)
    assert counts == [1, 2]


def test_messages_that_were_set_aside_are_for_db_owner(town: Town) -> None:
    with sb.open(town.mallory, upkeep=None) as instance:
        bank = instance.database("Bank")
        for operation in (SetAsideMessages(), DeadLetterGroups(), ReplayMessage(1), DiscardMessage(1)):
            with refused(5011):
                bank.run(operation)


def test_a_role_delays_and_cancels_messages_of_its_own_only(town: Town) -> None:
    alices, _ = conversation(town, "Alice", "Vault", SECRET)
    town.database.send(alices, "//bank/Order", SECRET, delay=60)
    with sb.open(town.mallory, upkeep=None) as instance:
        bank = instance.database("Bank")
        handles = [
            bank.begin_dialog("//bank/Mallory", "//bank/Den", contract="//bank/Contract", encryption=False)
            for _ in range(2)
        ]
        delivered(town)  # messages of other tests
        before = Counter(in_queue(town, "Den"))
        assert bank.send(handles[0], "//bank/Order", b"1", delay=0.2) == 0
        assert bank.send_batch(handles[0], "//bank/Order", [b"2", b"3"], at=instance.clock() + timedelta(hours=1)) == 1
        assert bank.send(handles, "//bank/Order", b"4", delay=timedelta(hours=2)) == [3, 0]
        bank.end_conversation(handles[0])
        assert bank.get_transmission_status(handles[0]) == waiting.DELAYED
        assert [one.message_sequence_number for one in bank.delayed_messages(handles[0])] == [0, 1, 2, 3, 4]
        assert bank.cancel_delayed(handles[0], 2) == 1
        for run, number in (
            (lambda: bank.delayed_messages(), 5011),
            (lambda: bank.delayed_messages(alices), 8494),
            (lambda: bank.cancel_delayed(alices), 8494),
            (lambda: bank.send(handles[1], "//bank/Order", b"x", delay=-1), 402),
            (lambda: bank.send(handles[1], "//bank/Order", b"x", delay=2**31 - 1), 402),
        ):
            with refused(number):
                run()

        def came() -> bool:
            with town.database.instance.connection() as connection:
                release(connection, town.database.instance.clock())
            delivered(town)
            return Counter(in_queue(town, "Den")) - before == Counter([b"1"])

        eventually(came)
        assert bank.cancel_delayed(handles[0]) == 2
        delivered(town)
        assert Counter(in_queue(town, "Den")) - before == Counter([b"1", None])
    assert [one.bytes for one in town.database.delayed_messages(alices)] == [len(SECRET)]


def test_a_role_has_schedules_of_its_own_queues_only(town: Town) -> None:
    times: list[datetime] = []
    worker, alices = sb.Worker("Mallory"), sb.Worker("Alice")
    worker.every(timedelta(seconds=1), name="job")(lambda tx, message: times.append(message.message_enqueue_time))
    alices.every("@hourly", name="job")(lambda tx, message: None)
    with sb.open(town.mallory, upkeep=None) as instance:
        bank = instance.database("Bank")
        with bank.working(worker):
            eventually(lambda: len(times) >= 2)
        for run, number in (
            (bank.schedules, 5011),
            (lambda: bank.drop_schedule("Mallory", "job"), 5011),
            (lambda: bank.run(KeepSchedule("Alice", "job", alices.schedules["job"])), 229),
        ):
            with refused(number):
                run()
    assert [one.name for one in town.database.schedules()] == ["job"]
    town.database.drop_schedule("Mallory", "job")
