"""A PostgreSQL role with only CONNECT cannot take locks of the broker, and so cannot block it (decision 165)."""

from __future__ import annotations

import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import psycopg
import pytest
from typer.testing import CliRunner

import servicebroker as sb
from mirrored_servers import Server
from portal import deliver
from servicebroker.cli.main import app as command
from servicebroker.engine.diagnosis.facts import gather
from servicebroker.engine.diagnosis.findings import Finding
from servicebroker.engine.diagnosis.judgement import judge
from servicebroker.store import copies, locks, migrations
from servicebroker.store.embedded import EmbeddedServer
from servicebroker.store.running import run
from support import (
    CONTRACT,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    STOCK,
    STOCK_QUEUE,
    as_role,
    bodies,
    define_standard_set,
    group_of,
    let_in,
    query,
    queue_number,
)

STRANGER, RESTRICTED, OWNER = "somebody", "lock_app", "lock_owner"
FAMILIES = {name: number for name, number in vars(locks).items() if name.isupper()}
LOCK_FUNCTIONS = [
    f"pg_{attempt}advisory_{scope}lock{mode}"
    for attempt in ("", "try_")
    for scope in ("", "xact_")
    for mode in ("", "_shared")
]
SOURCES = Path(sb.__file__).parent
PATIENCE_S = 2  # seconds; the owner's acts must not wait for a lock


class TwoUrls(NamedTuple):
    """An instance of a superuser, and the URLs of a role with only CONNECT and of a restricted role."""

    database: sb.Database
    stranger: str
    restricted: str


@pytest.fixture(scope="module")
def roles(server: EmbeddedServer) -> Iterator[None]:
    """Create the roles of the tests. Their rights are dropped with the databases."""
    with let_in(server.url, STRANGER, RESTRICTED, OWNER), psycopg.connect(server.url, autocommit=True) as connection:
        for role in (STRANGER, RESTRICTED, OWNER):
            connection.execute(f"create role {role} login")  # type: ignore[call-overload]
        yield


@pytest.fixture(scope="module")
def two_urls(roles: None, make_instance_url: Callable[[int], str]) -> Iterator[TwoUrls]:
    url = make_instance_url(1)
    with sb.open(url, upkeep=None) as instance:
        instance.grant_rights(RESTRICTED, database="Test", receive=[ORDERS_QUEUE], send=[STOCK])
        yield TwoUrls(instance.database("Test"), as_role(url, STRANGER), as_role(url, RESTRICTED))
        with instance.connection() as connection:
            connection.execute(f"drop owned by {RESTRICTED}")  # type: ignore[call-overload]


@pytest.fixture(scope="module")
def plain(roles: None, make_url: Callable[[], str]) -> Iterator[TwoUrls]:
    """Return an instance whose owner is not a superuser, so that the lock functions are open."""
    url = make_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"grant create on database {connection.info.dbname} to {OWNER}")  # type: ignore[call-overload]
        with sb.open(as_role(url, OWNER), upkeep=None) as instance:
            database = define_standard_set(instance.database("Test", create=True))
            yield TwoUrls(database, as_role(url, STRANGER), as_role(url, RESTRICTED))
        connection.execute(f"drop owned by {OWNER} cascade")  # type: ignore[call-overload]


def superuser(two_urls: TwoUrls) -> psycopg.Connection[Any]:
    return psycopg.connect(as_role(two_urls.stranger, "servicebroker"), autocommit=True)


def keys_of(database: sb.Database) -> list[tuple[str, int, int]]:
    """Return every lock that a stranger can compute: its family and both keys."""
    rows = query(
        database,
        "select 0 union select queue_id from servicebroker.queues where queue_id > 65535 union select service_id "
        "from servicebroker.services union select hashtext(name) from servicebroker.services union select database_id "
        "from servicebroker.databases union select uuid_hash(conversation_group_id) "
        "from servicebroker.conversation_groups",
    )
    return [(name, number, key) for name, number in FAMILIES.items() for (key,) in rows]


def round_trip(database: sb.Database, name: str) -> None:
    """Run an owner's acts from definitions to END, with a timeout for locks."""
    with database.transaction() as transaction:
        transaction.connection.execute(f"set local lock_timeout = '{PATIENCE_S}s'")
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        transaction.send(handle, ORDER, b"tea")
    with database.transaction() as transaction:
        transaction.connection.execute(f"set local lock_timeout = '{PATIENCE_S}s'")
        (message,) = transaction.receive(STOCK_QUEUE, conversation_handle=peer_of(database, handle))
        assert message.message_body == b"tea"
        transaction.end_conversation(message.conversation_handle)
    database.end_conversation(handle)
    assert database.define({"queues": {name: {}}}) == [f"create queue {name}"]
    database.drop_queue(name)
    with database.instance.connection() as connection:
        connection.execute(f"set lock_timeout = '{PATIENCE_S}s'")
        try:
            deliver(connection, database.instance.clock())
        finally:
            connection.execute("reset lock_timeout")


def peer_of(database: sb.Database, handle: object) -> Any:
    text = "select far_handle from servicebroker.conversation_endpoints where conversation_handle = %s"
    return query(database, text, handle)[0][0]


def run_doctor(two_urls: TwoUrls) -> list[Finding]:
    """Return the findings of doctor for the owner."""
    with two_urls.database.instance.connection() as connection:
        return judge(run(connection, gather(two_urls.database.instance.clock())))


def of_locks(findings: list[Finding]) -> list[Finding]:
    return [finding for finding in findings if "lock" in finding.problem]


def run_command(url: str, *arguments: str) -> str:
    result = CliRunner().invoke(command, list(arguments), env={"SERVICEBROKER_INSTANCE": url})
    assert result.exit_code == 0, result.output or result.exception
    return result.output


def give_functions(connection: psycopg.Connection[Any], *, to: str) -> None:
    for name in LOCK_FUNCTIONS:
        connection.execute(f"grant execute on function {name}(integer, integer) to {to}")  # type: ignore[call-overload]


# ---------------------------------------------------------------- the functions


def test_every_lock_of_the_broker_has_two_keys() -> None:
    """Locks with one key are separate locks, whose functions stay open to all."""
    found = 0
    for file in (*SOURCES.rglob("*.py"), *SOURCES.rglob("*.sql")):
        for call in re.finditer(
            r"pg_(?:try_)?advisory_(?:xact_)?(?:un)?lock(?:_shared)?\(((?:[^()]|\([^()]*\))*)\)", file.read_text()
        ):
            found += 1
            assert "," in call[1], (file, call[0])
    assert found > 40


def test_a_role_with_nothing_but_connect_takes_no_lock_of_ours(two_urls: TwoUrls) -> None:
    """The role tries every function, each way to call it, and every key that it can compute."""
    keys = keys_of(two_urls.database)
    assert {name for name, _, _ in keys} == set(FAMILIES)
    for url in (two_urls.stranger, two_urls.restricted):
        with psycopg.connect(url, autocommit=True) as connection:
            for name in LOCK_FUNCTIONS:
                for family, number, key in keys:
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(f"select {name}(%s, %s)", (number, key))  # type: ignore[call-overload]
                        pytest.fail(f"{family} by {name}")
                for text in (
                    f"do $$ begin perform {name}({locks.PARKED_DELIVERY}, 0); end $$",
                    f"create temp table bait as select {name}({locks.PARKED_DELIVERY}, 0)",
                    f"declare bait cursor with hold for select {name}({locks.PARKED_DELIVERY}, 0)",
                    f"create function pg_temp.bait() returns void language plpgsql as "
                    f"$$ begin perform {name}({locks.PARKED_DELIVERY}, 0); end $$; select pg_temp.bait()",
                ):
                    with pytest.raises(psycopg.errors.InsufficientPrivilege):
                        connection.execute(text)  # type: ignore[call-overload]
            round_trip(two_urls.database, f"While{url.count('lock_app')}")
    assert query(two_urls.database, "select from pg_locks where locktype = 'advisory'") == []


def test_locks_with_one_key_and_giving_back_stay_everybodys(two_urls: TwoUrls) -> None:
    with psycopg.connect(two_urls.stranger, autocommit=True) as connection:
        for name in LOCK_FUNCTIONS:
            connection.execute(f"select {name}(%s)", (locks.PARKED_DELIVERY << 32,))  # type: ignore[call-overload]
        connection.execute(f"select pg_advisory_unlock({locks.PARKED_DELIVERY}, 0), pg_advisory_unlock_all()")
        connection.execute("select pg_advisory_lock(%s)", (locks.PARKED_DELIVERY << 32,))
        round_trip(two_urls.database, "Beside")
        assert of_locks(run_doctor(two_urls)) == []


def test_a_restricted_role_keeps_its_verbs(two_urls: TwoUrls) -> None:
    """After a savepoint the session keeps the lock of a group, and releases it later."""
    handle = two_urls.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    two_urls.database.send(handle, ORDER, b"ask")
    (asked,) = two_urls.database.receive(STOCK_QUEUE)
    two_urls.database.send(asked.conversation_handle, "//test/Reply", b"answer")
    with sb.open(two_urls.restricted) as instance:
        app = instance.database("Test")
        with app.transaction() as transaction:
            with transaction.savepoint():
                assert bodies(transaction.receive(ORDERS_QUEUE)) == [b"answer"]
            transaction.send(handle, ORDER, b"again")
        app.end_conversation(handle)
    assert query(two_urls.database, "select from pg_locks where locktype = 'advisory'") == []
    with two_urls.database.instance.connection() as connection:
        deliver(connection, two_urls.database.instance.clock())
    assert bodies(two_urls.database.receive(STOCK_QUEUE)) == [b"again", None]
    two_urls.database.end_conversation(asked.conversation_handle)


def test_a_restricted_roles_policy_puts_a_message_back(two_urls: TwoUrls) -> None:
    """The session keeps the lock of the group from the rollback until the failure is stored."""
    handle = two_urls.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    two_urls.database.send(handle, ORDER, b"ask")
    (asked,) = two_urls.database.receive(STOCK_QUEUE)
    two_urls.database.send(asked.conversation_handle, "//test/Reply", b"bad")

    def fail(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
        raise ValueError("no")

    def judged_failure(failure: sb.Failure) -> sb.Verdict:
        return sb.Retry() if failure.count < 3 else sb.SetAside()

    with sb.open(two_urls.restricted) as instance:
        assert instance.database("Test").process(ORDERS_QUEUE, fail, poison=judged_failure) == 3
    (dead_letter,) = two_urls.database.set_aside_messages()
    assert dead_letter.message_body == b"bad"
    assert query(two_urls.database, "select from pg_locks where locktype = 'advisory'") == []
    for each_handle in (handle, asked.conversation_handle):
        two_urls.database.end_conversation(each_handle)


def test_a_restricted_role_keeps_the_lock_of_no_group_that_it_has_not(two_urls: TwoUrls) -> None:
    handle = two_urls.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
    group = group_of(two_urls.database, handle)
    with psycopg.connect(two_urls.restricted, autocommit=True) as connection:
        assert connection.execute("select servicebroker_fence.keep_lock(%s)", (group,)).fetchone() == (None,)
        assert query(two_urls.database, "select from pg_locks where locktype = 'advisory'") == []
        assert two_urls.database.send(handle, ORDER, b"x") == 0
    with (
        psycopg.connect(two_urls.stranger, autocommit=True) as connection,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        connection.execute("select servicebroker_fence.keep_lock(%s)", (group,))
    two_urls.database.end_conversation(handle, cleanup=True)
    two_urls.database.receive(STOCK_QUEUE)


# ---------------------------------------------------------------- owner without superuser rights


def test_doctor_names_roles_that_can_take_locks_and_a_superuser_revokes_them(plain: TwoUrls) -> None:
    (able,) = of_locks(run_doctor(plain))
    assert STRANGER in able.problem
    assert "servicebroker rights locks --sql" in able.advice
    with psycopg.connect(plain.stranger, autocommit=True) as stranger:
        stranger.execute("select pg_advisory_lock(%s, 0)", (locks.PARKED_DELIVERY,))
        with pytest.raises(sb.ServiceBrokerError, match="gave up waiting for a lock"):
            round_trip(plain.database, "Held")
        for number, key, how, word in (
            (locks.PARKED_DELIVERY, 0, "lock", "delivery"),
            (locks.PARKED_DELIVERY, 0, "lock_shared", "delivery"),
            (locks.CONVERSATION_GROUP, 5, "lock", "a conversation group"),
            (locks.PIPELINE_QUEUE, queue_number(plain.database, STOCK_QUEUE), "lock", "a pipeline"),
            (locks.BROKER_DAEMON, 0, "lock", "the daemon"),
        ):
            stranger.execute("select pg_advisory_unlock_all()")
            stranger.execute(f"select pg_advisory_{how}(%s, %s)", (number, key))  # type: ignore[call-overload]
            (holder,) = [finding for finding in of_locks(run_doctor(plain)) if finding.subject.startswith("session")]
            assert holder.subject == f"session {stranger.info.backend_pid}"
            assert STRANGER in holder.problem
            assert f"1 lock of the broker ({word})" in holder.problem
            assert "pg_terminate_backend" in holder.advice
        stranger.execute("select pg_advisory_unlock_all()")
    result = CliRunner().invoke(
        command, ["rights", "locks"], env={"SERVICEBROKER_INSTANCE": plain.database.instance.url}
    )
    assert isinstance(result.exception, sb.InstanceError)
    assert "superuser" in str(result.exception)
    printed = run_command(plain.database.instance.url, "rights", "locks", "--sql")
    with superuser(plain) as connection:
        connection.execute(printed)  # type: ignore[call-overload]
        connection.execute(printed)  # type: ignore[call-overload] # as often as one likes
    assert of_locks(run_doctor(plain)) == []
    with (
        psycopg.connect(plain.stranger, autocommit=True) as stranger,
        pytest.raises(psycopg.errors.InsufficientPrivilege),
    ):
        stranger.execute("select pg_advisory_lock(%s, 0)", (locks.PARKED_DELIVERY,))
    round_trip(plain.database, "Closed")


def test_roles_that_cannot_connect_are_not_named(plain: TwoUrls) -> None:
    with superuser(plain) as connection:
        give_functions(connection, to="public")
        assert of_locks(run_doctor(plain))
        name = connection.info.dbname
        connection.execute(f"revoke connect on database {name} from public")  # type: ignore[call-overload]
        connection.execute(f"grant connect on database {name} to {OWNER}")  # type: ignore[call-overload]
        assert of_locks(run_doctor(plain)) == []
        connection.execute(f"grant connect on database {name} to public")  # type: ignore[call-overload]
        connection.execute(run_command(plain.database.instance.url, "rights", "locks", "--sql"))  # type: ignore[call-overload]


def test_an_owner_without_the_lock_functions_gets_a_remedy(plain: TwoUrls) -> None:
    """This happens after ALTER SCHEMA ... OWNER TO, or if the database held another instance before."""
    with superuser(plain) as connection:
        printed = run_command(plain.database.instance.url, "rights", "locks", "--sql")
        for name in LOCK_FUNCTIONS:
            connection.execute(f"revoke execute on function {name}(integer, integer) from {OWNER}")  # type: ignore[call-overload]
        try:
            with pytest.raises(sb.InstanceError, match="servicebroker rights locks"):
                plain.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
            assert any("may not take" in finding.problem for finding in of_locks(run_doctor(plain)))
            assert run_command(plain.database.instance.url, "rights", "locks", "--sql") == printed
        finally:
            connection.execute(printed)  # type: ignore[call-overload]
    round_trip(plain.database, "Again")


def test_a_new_instance_without_the_lock_functions_is_refused_with_a_remedy(
    roles: None, make_url: Callable[[], str]
) -> None:
    url = make_url()
    with psycopg.connect(url, autocommit=True) as connection:
        for name in LOCK_FUNCTIONS:
            connection.execute(f"revoke execute on function {name}(integer, integer) from public")  # type: ignore[call-overload]
        connection.execute(f"grant create on database {connection.info.dbname} to {OWNER}")  # type: ignore[call-overload]
        with pytest.raises(sb.InstanceError, match=r"GRANT EXECUTE ON FUNCTION .* TO .lock_owner"):
            sb.open(as_role(url, OWNER))


# ---------------------------------------------------------------- closing the functions


def is_open(connection: psycopg.Connection[Any]) -> bool:
    text = "select bool_or(has_function_privilege('public', f, 'execute')) from unnest(%s::regprocedure[]) f"
    row = connection.execute(text, ([f"{name}(integer,integer)" for name in LOCK_FUNCTIONS],)).fetchone()
    assert row is not None
    return bool(row[0])


def test_an_upgrade_and_check_mend_close_them(make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> None:
    url = make_url()
    with psycopg.connect(url, autocommit=True) as connection:
        known = migrations.migrations()
        with monkeypatch.context() as before:
            before.setattr(migrations, "migrations", lambda: [step for step in known if step.number != 425])
            migrations.migrate(connection)
        give_functions(connection, to="public")
        sb.open(url, upkeep=None).close()
        assert not is_open(connection)
        give_functions(connection, to="public")
        run_command(url, "check", "--mend")
        assert not is_open(connection)


def test_lock_functions_are_revoked_while_a_stranger_holds_every_lock(two_urls: TwoUrls) -> None:
    with superuser(two_urls) as connection, psycopg.connect(two_urls.stranger, autocommit=True) as stranger:
        give_functions(connection, to="public")
        for number in FAMILIES.values():
            stranger.execute("select pg_advisory_lock(%s, 0)", (number,))
        run_command(two_urls.database.instance.url, "rights", "locks")
        assert not is_open(connection)
        (holder,) = of_locks(run_doctor(two_urls))
        assert holder.subject == f"session {stranger.info.backend_pid}"
        connection.execute("select pg_terminate_backend(%s, 5000)", (stranger.info.backend_pid,))
    round_trip(two_urls.database, "AfterAll")
    assert of_locks(run_doctor(two_urls)) == []


def test_a_role_with_our_tables_and_a_grant_by_name_keep_their_rights(two_urls: TwoUrls) -> None:
    with superuser(two_urls) as connection:
        direct = (
            "usage on schema servicebroker",
            "all on all tables in schema servicebroker",
            "usage, select on all sequences in schema servicebroker",
            "execute on all functions in schema servicebroker",
        )
        for what in direct:
            connection.execute(f"grant {what} to {OWNER}")  # type: ignore[call-overload]
        two_urls.database.create_user(OWNER, OWNER)
        two_urls.database.grant("CONTROL", OWNER)
        give_functions(connection, to="public")
        give_functions(connection, to=STRANGER)
        run_command(two_urls.database.instance.url, "check", "--mend")
        assert not is_open(connection)
        with sb.open(as_role(two_urls.stranger, OWNER), upkeep=None) as instance:
            instance.database("Test").begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        (able,) = of_locks(run_doctor(two_urls))
        assert (STRANGER in able.problem, OWNER in able.problem) == (True, False)
        run_command(two_urls.database.instance.url, "rights", "locks")
        assert of_locks(run_doctor(two_urls)) == []
        connection.execute(f"drop owned by {OWNER}; drop owned by {STRANGER}")  # type: ignore[call-overload]


def test_a_lock_of_a_restricted_roles_verb_is_its_own_matter(two_urls: TwoUrls) -> None:
    """SEND holds its lock until COMMIT, as for any application. Other locks are reported."""
    with sb.open(two_urls.restricted) as instance, instance.database("Test").transaction() as transaction:
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        transaction.send(handle, ORDER, b"x")
        assert of_locks(run_doctor(two_urls)) == []
    with superuser(two_urls) as connection, psycopg.connect(two_urls.restricted, autocommit=True) as restricted:
        give_functions(connection, to=RESTRICTED)
        restricted.execute("select pg_advisory_lock_shared(%s, 0)", (locks.CATALOG_CHANGE,))
        findings = [finding for finding in of_locks(run_doctor(two_urls)) if finding.subject.startswith("session")]
        assert [RESTRICTED in finding.problem and "(definitions)" in finding.problem for finding in findings] == [True]
        restricted.execute("select pg_advisory_unlock_all()")
        two_urls.database.instance.grant_rights(RESTRICTED)
        with pytest.raises(psycopg.errors.InsufficientPrivilege):
            restricted.execute("select pg_advisory_lock_shared(%s, 0)", (locks.CATALOG_CHANGE,))


def test_locks_of_a_security_definer_function_are_not_a_strangers(two_urls: TwoUrls) -> None:
    """A trigger with SECURITY DEFINER takes such a lock for any user who changes its table."""
    with superuser(two_urls) as connection, psycopg.connect(two_urls.stranger) as stranger:
        connection.execute(
            "create function public.announce() returns uuid language plpgsql security definer as $$ "
            f"declare handle uuid := servicebroker.begin_dialog('Test', '{ORDERS}', '{STOCK}', '{CONTRACT}'); "
            f"begin perform servicebroker.send(handle, '{ORDER}', 'x'); return handle; end $$"
        )
        stranger.execute("select public.announce()")
        held = "select from pg_locks where locktype = 'advisory' and pid = %s"
        assert query(two_urls.database, held, stranger.info.backend_pid)
        assert of_locks(run_doctor(two_urls)) == []
        stranger.rollback()


def test_a_copy_holds_no_rights_on_the_functions(
    two_urls: TwoUrls, make_url: Callable[[], str], tmp_path: Path
) -> None:
    """A dump omits the rights on the lock functions, so that the copy does not need the roles of the original."""
    with superuser(two_urls) as connection:
        connection.execute("create role lock_reader")
        try:
            give_functions(connection, to="lock_reader")
            run_command(two_urls.database.instance.url, "instance", "dump", str(tmp_path / "dump"))
            assert "lock_reader" not in copies.read(tmp_path / "dump").roles
            connection.execute("drop owned by lock_reader")
        finally:
            connection.execute("drop role lock_reader")
    place = make_url()
    run_command(place, "instance", "restore", str(tmp_path / "dump"), "--instance", place, "--identifier", "new")
    with psycopg.connect(place) as connection:
        assert not is_open(connection)


def test_an_owner_without_superuser_rights_restores_a_copy(
    two_urls: TwoUrls, plain: TwoUrls, make_url: Callable[[], str], tmp_path: Path
) -> None:
    """The original's functions are closed. In the copy they are open to all, and doctor reports it."""
    run_command(two_urls.database.instance.url, "instance", "dump", str(tmp_path / "dump"))
    url = make_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"grant create on database {connection.info.dbname} to {OWNER}")  # type: ignore[call-overload]
        connection.execute(f"grant all on schema public to {OWNER}")  # type: ignore[call-overload]
        place = as_role(url, OWNER)
        run_command(place, "instance", "restore", str(tmp_path / "dump"), "--instance", place, "--identifier", "new")
        assert is_open(connection)
        with sb.open(place, upkeep=None) as instance:
            round_trip(instance.database("Test"), "Restored")


@pytest.fixture(scope="module")
def small() -> Iterator[str]:
    """Return the URL of a server with prepared transactions and little room for locks and notifications."""
    with tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        server = Server(Path(folder, "server"))
        server.make(synchronous="")
        with (server.data / "postgresql.conf").open("a") as file:
            file.write("max_prepared_transactions = 5\nmax_locks_per_transaction = 64\nmax_notify_queue_pages = 64\n")
        server.start()
        with psycopg.connect(server.url) as connection:
            connection.execute(f"create role {STRANGER} login")  # type: ignore[call-overload]
        yield server.url
        server.close()


def test_a_prepared_transaction_that_holds_a_lock_is_named(small: str) -> None:
    """No session owns such a transaction, so the end of a session does not release the lock."""
    with sb.open(small, upkeep=None) as instance, psycopg.connect(small, autocommit=True) as owner:
        give_functions(owner, to=STRANGER)
        with psycopg.connect(as_role(small, STRANGER)) as stranger:
            stranger.execute("select pg_advisory_xact_lock(%s, 0)", (locks.CATALOG_CHANGE,))
            stranger.execute("prepare transaction 'kept for ever'")
        findings = judge(run(owner, gather(instance.clock())))
        (holder,) = [finding for finding in findings if finding.subject == "transaction kept for ever"]
        assert f"The role {STRANGER} has prepared it since" in holder.problem
        assert "(definitions)" in holder.problem
        owner.execute("rollback prepared 'kept for ever'")


def test_doctor_names_a_session_that_exhausts_the_lock_table(small: str) -> None:
    """Any session can exhaust the lock table, in any database, with locks that are not the broker's."""
    elsewhere = as_role(small.replace("/postgres?", "/template1?"), STRANGER)
    with (
        sb.open(small, upkeep=None) as instance,
        instance.connection() as owner,
        psycopg.connect(elsewhere) as stranger,
    ):
        stranger.execute("select pg_advisory_lock(i) from generate_series(1, 2500) i")
        findings = judge(run(owner, gather(instance.clock())))
        (hoarder,) = [finding for finding in findings if "locks that the server has room for" in finding.problem]
        assert hoarder.subject == f"session {stranger.info.backend_pid}"
        assert STRANGER in hoarder.problem


def test_a_room_for_notifications_that_gets_full_is_told(small: str) -> None:
    with sb.open(small, upkeep=None) as instance, instance.connection() as owner:
        database = define_standard_set(instance.database("Test", create=True))
        handle = database.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        with (
            psycopg.connect(as_role(small, STRANGER)) as listener,
            psycopg.connect(as_role(small, STRANGER), autocommit=True) as stranger,
        ):
            listener.execute("listen everything")
            listener.commit()
            listener.execute("select")
            with pytest.raises(psycopg.errors.ProgramLimitExceeded):
                while True:
                    stranger.execute("select pg_notify('everything', repeat('x', 7000) || random())")
            findings = judge(run(owner, gather(instance.clock())))
            assert [finding.subject for finding in findings if "queue of notifications is" in finding.problem] == [
                "PostgreSQL"
            ]
            with pytest.raises(psycopg.errors.ProgramLimitExceeded), database.transaction() as transaction:
                transaction.connection.execute("select servicebroker.send(%s, %s, 'x')", (handle, ORDER))
