"""The catalog views of schema sys: their columns, and the rows of every kind of object."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import psycopg
import pytest
from psycopg import sql
from psycopg.rows import namedtuple_row

import servicebroker as sb
from servicebroker.model.names import SERVICE_BROKER, SERVICE_DIAGNOSTIC_ID, SERVICE_ECHO_ID, SYSTEM_SERVICES
from servicebroker.store import migrations
from support import (
    CONTRACT,
    DOCUMENT,
    MARK,
    ORDER,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    STOCK_QUEUE,
    Clock,
    begin,
    define_standard_set,
    open_dialog,
    peer_handle,
    query,
    refused,
    state,
)

UNSET = datetime(1900, 1, 1, tzinfo=UTC)
NO_KEY = UUID(int=0)

# columns and types in order; each view ends with broker_database text
VIEWS = {
    "event_notifications": """
        name text, object_id integer, parent_class smallint, parent_class_desc text, parent_id integer,
        create_date timestamptz, modify_date timestamptz, is_ms_shipped smallint, principal_id integer,
        service_name text, broker_instance text, creator_login text, is_fan_in smallint""",
    "events": "object_id integer, type_desc text",
    "dm_broker_queue_monitors": """
        database_id integer, queue_id integer, state text, last_empty_rowset_time timestamptz,
        last_activated_time timestamptz, tasks_waiting integer""",
    "dm_broker_activated_tasks": """
        spid integer, database_id integer, queue_id integer, procedure_name text, execute_as integer""",
    "databases": """
        name text, database_id integer, service_broker_guid uuid, is_broker_enabled smallint,
        is_honor_broker_priority_on smallint""",
    "service_message_types": """
        name text, message_type_id integer, principal_id integer, validation text, validation_desc text,
        xml_collection_id integer""",
    "message_type_xml_schema_collection_usages": "message_type_id integer, xml_collection_id integer",
    "xml_schema_collections": """
        xml_collection_id integer, schema_id integer, principal_id integer, name text, create_date timestamptz,
        modify_date timestamptz""",
    "service_contracts": "name text, service_contract_id integer, principal_id integer",
    "service_contract_message_usages": """
        service_contract_id integer, message_type_id integer, is_sent_by_initiator smallint,
        is_sent_by_target smallint""",
    "service_contract_usages": "service_id integer, service_contract_id integer",
    "services": "name text, service_id integer, principal_id integer, service_queue_id integer",
    "service_queue_usages": "service_id integer, service_queue_id integer",
    "service_queues": """
        name text, object_id integer, principal_id integer, schema_id integer, parent_object_id integer, type text,
        type_desc text, create_date timestamptz, modify_date timestamptz, is_ms_shipped smallint,
        is_published smallint, is_schema_published smallint, max_readers smallint, activation_procedure text,
        execute_as_principal_id integer, is_activation_enabled smallint, is_receive_enabled smallint,
        is_enqueue_enabled smallint, is_retention_enabled smallint, is_poison_message_handling_enabled smallint""",
    "conversation_priorities": """
        priority_id integer, name text, service_contract_id integer, local_service_id integer,
        remote_service_name text, priority smallint""",
    "routes": """
        name text, route_id integer, principal_id integer, remote_service_name text, broker_instance text,
        lifetime timestamptz, address text, mirror_address text""",
    "conversation_groups": "conversation_group_id uuid, service_id integer, is_system smallint",
    "conversation_endpoints": """
        conversation_handle uuid, conversation_id uuid, is_initiator smallint, service_contract_id integer,
        conversation_group_id uuid, service_id integer, lifetime timestamptz, state text, state_desc text,
        far_service text, far_broker_instance text, principal_id integer, far_principal_id integer,
        outbound_session_key_identifier uuid, inbound_session_key_identifier uuid, security_timestamp timestamptz,
        dialog_timer timestamptz, send_sequence bigint, last_send_tran_id bytea, end_dialog_sequence bigint,
        receive_sequence bigint, receive_sequence_frag integer, system_sequence bigint,
        first_out_of_order_sequence bigint, last_out_of_order_sequence bigint, last_out_of_order_frag integer,
        is_system smallint, priority smallint""",
    "database_principals": """
        name text, principal_id integer, type text, type_desc text, default_schema_name text,
        create_date timestamptz, modify_date timestamptz, owning_principal_id integer, is_fixed_role smallint,
        postgres_role text""",
    "database_role_members": "role_principal_id integer, member_principal_id integer",
    "database_permissions": """
        class smallint, class_desc text, major_id integer, minor_id integer, grantee_principal_id integer,
        grantor_principal_id integer, type text, permission_name text, state text, state_desc text""",
    "transmission_queue": """
        conversation_handle uuid, to_service_name text, to_broker_instance text, from_service_name text,
        service_contract_name text, enqueue_time timestamptz, message_sequence_number bigint,
        message_type_name text, is_conversation_error smallint, is_end_of_dialog smallint, message_body bytea,
        transmission_status text, priority smallint""",
    "certificates": """
        name text, certificate_id integer, principal_id integer, pvt_key_encryption_type text,
        pvt_key_encryption_type_desc text, is_active_for_begin_dialog smallint, issuer_name text,
        cert_serial_number text, subject text, expiry_date timestamptz, start_date timestamptz, thumbprint bytea""",
    "remote_service_bindings": """
        name text, remote_service_binding_id integer, principal_id integer, remote_service_name text,
        service_contract_id integer, remote_principal_id integer, is_anonymous_on smallint""",
    "symmetric_keys": """
        name text, principal_id integer, symmetric_key_id integer, key_length integer, key_algorithm text,
        algorithm_desc text, create_date timestamptz, modify_date timestamptz, key_guid uuid""",
    "key_encryptions": "key_id integer, thumbprint bytea, crypt_type text, crypt_type_desc text",
}

# views of the instance: see test_network_endpoint.py, test_security_catalog.py, test_totals.py
OF_THE_INSTANCE = (
    "dm_broker_connections",
    "dm_broker_forwarded_messages",
    "crypt_properties",
    "dm_exec_sessions",
    "dm_os_performance_counters",
    "endpoints",
    "server_event_notifications",
    "server_events",
    "server_permissions",
    "server_principals",
    "service_broker_endpoints",
    "tcp_endpoints",
)
OF_DATABASES = [view for view in VIEWS if not view.startswith("dm_")]  # these show current activity


def rows(database: sb.Database, view: str, **where: object) -> list[Any]:
    """Return the rows of a view for this broker database, with columns by name."""
    condition = sql.SQL(" and ").join(
        sql.SQL("{} = {}").format(sql.Identifier(name), sql.Placeholder(name)) for name in where
    )
    text = sql.SQL("select * from sys.{} where {}").format(
        sql.Identifier(view), condition if where else sql.SQL("true")
    )
    with (
        database.instance.connection() as connection,
        connection.transaction(),
        connection.cursor(row_factory=namedtuple_row) as cursor,
    ):
        cursor.execute("select set_config('servicebroker.database', %s, true)", (database.name,))
        return cursor.execute(text, where).fetchall()


def define_validation(database: sb.Database) -> None:
    """Create a message type with an XML schema collection."""
    schema = '<schema xmlns="http://www.w3.org/2001/XMLSchema"><element name="a"/></schema>'
    database.create_xml_schema_collection("Collection", schema)
    database.create_message_type("//test/Valid", "VALID_XML", schema_collection="Collection")


def define_security(database: sb.Database) -> None:
    """Create a master key, a user with a certificate, and a remote service binding to this user."""
    database.create_master_key("a Password of 3 kinds")
    database.create_user("App")
    database.create_certificate("Certificate", subject="CN=App", authorization="App")
    database.create_remote_service_binding("Binding", to_service="//far", user="App")


def endpoint(database: sb.Database, handle: UUID) -> Any:
    (row,) = rows(database, "conversation_endpoints", conversation_handle=handle)
    return row


def identifier(database: sb.Database) -> str:
    """Return the broker identifier of a database."""
    (row,) = rows(database, "databases")
    return str(row.service_broker_guid)


def numbers(database: sb.Database, handle: UUID) -> tuple[int, int, int]:
    """Return the sequence numbers of an endpoint: next to send, next expected, EndDialog."""
    row = endpoint(database, handle)
    return row.send_sequence, row.receive_sequence, row.end_dialog_sequence


# ---------------------------------------------------------------- the views themselves


@pytest.mark.feature(199)
@pytest.mark.parametrize("view", VIEWS)
def test_the_columns_and_types_are_those_of_the_reference(instance: sb.Instance, view: str) -> None:
    text = (
        "select attname || ' ' || replace(format_type(atttypid, atttypmod), 'timestamp with time zone', 'timestamptz') "
        "from pg_attribute where attrelid = to_regclass(%s) and attnum > 0 order by attnum"
    )
    columns = [column for (column,) in query(instance.database("msdb"), text, f"sys.{view}")]
    assert columns == [*" ".join(VIEWS[view].split()).split(", "), "broker_database text"]


def test_the_list_of_sys_views_is_complete(instance: sb.Instance) -> None:
    text = "select relname::text from pg_class where relnamespace = 'sys'::regnamespace order by 1"
    assert query(instance.database("msdb"), text) == [(name,) for name in sorted([*VIEWS, *OF_THE_INSTANCE])]


def test_each_view_runs_with_the_rights_of_its_reader(database: sb.Database) -> None:
    text = (
        "select relname::text from pg_class join pg_namespace n on n.oid = relnamespace "
        "where relkind = 'v' and nspname not in ('pg_catalog', 'information_schema') "
        "and not coalesce('security_invoker=true' = any (reloptions), false)"
    )
    assert query(database, text) == [("caller",)]  # the view of the fence, which shows each role itself


def test_the_setting_names_the_database_that_is_shown(database: sb.Database, instance: sb.Instance) -> None:
    other = define_standard_set(instance.database("SysOther", create=True))
    for each_database in (database, other):
        open_dialog(each_database)
        each_database.send(begin(each_database, "//test/nowhere"), ORDER, b"waits")
        each_database.create_broker_priority("Any")
        define_validation(each_database)
        define_security(each_database)
        each_database.create_event_notification(
            "Told", on_queue=STOCK_QUEUE, events="QUEUE_ACTIVATION", to_service=ORDERS
        )
        each_database.add_role_member("db_owner", "App")
    both = {database.name, other.name}
    for view in OF_DATABASES:
        text = sql.SQL("select distinct broker_database from sys.{}").format(sql.Identifier(view))

        def rows_of_view(setting: str, text: sql.Composed = text) -> set[str]:
            with instance.connection() as connection, connection.transaction():
                connection.execute("select set_config('servicebroker.database', %s, true)", (setting,))
                return {name for (name,) in connection.execute(text).fetchall()}

        assert rows_of_view(other.name) == rows_of_view(other.name.upper()) == {other.name}
        assert rows_of_view(database.name) == {database.name}
        assert rows_of_view("nowhere") == set()
        assert rows_of_view("") >= both
        with psycopg.connect(instance.url) as connection:  # a session without the setting
            assert {name for (name,) in connection.execute(text).fetchall()} >= both


def test_a_role_without_rights_on_the_tables_sees_an_error_and_no_data(database: sb.Database) -> None:
    database.send(begin(database, "//test/nowhere"), ORDER, b"secret")
    database.create_broker_priority("Any")
    define_validation(database)
    with database.instance.connection() as connection:
        for view in OF_DATABASES:
            text = sql.SQL("select * from sys.{}").format(sql.Identifier(view))
            for grant, problem in ((False, "schema sys"), (True, "table")):
                with pytest.raises(psycopg.errors.InsufficientPrivilege, match=problem), connection.transaction():
                    connection.execute("create role sys_reader")
                    if grant:
                        connection.execute("grant usage on schema sys, servicebroker to sys_reader")
                        connection.execute("grant select on all tables in schema sys to sys_reader")
                        connection.execute("grant select on servicebroker.shown_databases to sys_reader")
                    connection.execute("set local role sys_reader")
                    connection.execute(text)
            with connection.transaction(force_rollback=True):
                connection.execute("create role sys_reader")
                connection.execute("grant usage on schema sys to sys_reader")
                connection.execute("grant select on all tables in schema sys, servicebroker to sys_reader")
                connection.execute("set local role sys_reader")
                assert connection.execute(text).fetchall()


def test_the_views_cannot_be_written(database: sb.Database) -> None:
    handle = begin(database)
    for text in ("delete from sys.conversation_endpoints", "update sys.databases set is_broker_enabled = 0"):
        with database.instance.connection() as connection, pytest.raises(psycopg.Error):
            connection.execute(text)
    assert endpoint(database, handle).state == "SO"


def test_a_database_where_sys_is_taken_is_refused(make_url: Callable[[], str]) -> None:
    url = make_url()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("create schema sys")
        with pytest.raises(sb.InstanceError, match="it has a schema sys that no instance has made"):
            sb.open(url)
        assert connection.execute("select to_regnamespace('servicebroker')").fetchall() == [(None,)]


def test_a_migration_that_comes_late_is_applied_late(
    make_url: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    url = make_url()
    early = [*migrations.migrations(), migrations.Migration(9002, "early.sql", "create table servicebroker.early ()")]
    late = migrations.Migration(9001, "late.sql", "create table servicebroker.late ()")
    monkeypatch.setattr(migrations, "migrations", lambda: early)
    sb.open(url).close()
    monkeypatch.setattr(migrations, "migrations", lambda: sorted([*early, late]))
    with sb.open(url) as instance, instance.connection() as connection:
        assert connection.execute("select count(*) from servicebroker.late").fetchall() == [(0,)]
        applied = connection.execute("select number from servicebroker.migrations order by number").fetchall()
    assert applied == sorted((step.number,) for step in [*early, late])
    sb.open(url).close()
    monkeypatch.setattr(migrations, "migrations", lambda: early)
    with pytest.raises(sb.InstanceError, match="upgrade servicebroker"):
        sb.open(url)


def test_a_migration_that_fails_leaves_the_instance_to_the_version_before(
    make_instance_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """No step of the migration is applied, and processes with the open instance continue."""
    url, known = make_instance_url(1), migrations.migrations()
    half = migrations.Migration(9001, "half.sql", "create table servicebroker.half ()")
    failing = migrations.Migration(9002, "failing.sql", "drop view sys.services; select 1 / 0")
    with sb.open(url, upkeep=None) as instance:
        database = instance.database("Test")
        handle = begin(database)
        database.send(handle, ORDER, b"before")
        with monkeypatch.context() as newer:
            newer.setattr(migrations, "migrations", lambda: [*known, half, failing])
            for _ in range(2):
                with pytest.raises(sb.InstanceError, match="division by zero"):
                    sb.open(url)
        database.send(handle, ORDER, b"after")
        assert [message.body for message in database.receive(STOCK_QUEUE)] == [b"before", b"after"]
    with sb.open(url, upkeep=None) as instance, instance.connection() as connection:
        assert connection.execute("select to_regclass('servicebroker.half')").fetchall() == [(None,)]
        assert connection.execute("select max(number) from servicebroker.migrations").fetchall() == [
            (known[-1].number,)
        ]
        assert instance.check().findings == []


# ---------------------------------------------------------------- the catalog


@pytest.mark.feature(1)
def test_sys_databases_lists_brokers_and_their_options(instance: sb.Instance) -> None:
    first_database, second_database = (instance.database(name, create=True) for name in ("SysOne", "SysTwo"))
    (first,), (second,) = rows(first_database, "databases"), rows(second_database, "databases")
    assert (first.name, first.database_id, first.is_broker_enabled) == ("SysOne", first_database.database_id + 3, 1)
    assert first.is_honor_broker_priority_on == 0
    assert first.service_broker_guid != second.service_broker_guid
    with sb.open(instance.url) as again:
        assert rows(again.database("sysone"), "databases") == [first]


def test_sys_service_message_types_lists_validations(database: sb.Database) -> None:
    rows_by_name = {row.name: row for row in rows(database, "service_message_types")}
    for name, letter, word in ((ORDER, "N", "NONE"), (DOCUMENT, "X", "XML"), (MARK, "E", "EMPTY")):
        row = rows_by_name[name]
        assert (row.validation, row.validation_desc, row.principal_id) == (letter, word, 1)
        assert row.message_type_id >= 65536
        assert row.xml_collection_id is None
    assert sorted(row.message_type_id for row in rows_by_name.values() if row.message_type_id < 65536) == list(
        range(1, 15)
    )
    assert (rows_by_name[sb.DEFAULT].message_type_id, rows_by_name[sb.DEFAULT].validation) == (14, "N")


def test_sys_service_contracts_lists_who_sends_each_type(database: sb.Database) -> None:
    types = {row.message_type_id: row.name for row in rows(database, "service_message_types")}
    (contract,) = rows(database, "service_contracts", name=CONTRACT)
    assert contract.principal_id == 1
    usages = rows(database, "service_contract_message_usages", service_contract_id=contract.service_contract_id)
    senders_by_type = {types[row.message_type_id]: (row.is_sent_by_initiator, row.is_sent_by_target) for row in usages}
    assert senders_by_type == {ORDER: (1, 0), REPLY: (0, 1), DOCUMENT: (1, 1), MARK: (1, 1)}
    (default,) = rows(database, "service_contracts", name=sb.DEFAULT)
    assert default.service_contract_id == 6


def test_queues_and_services(database: sb.Database) -> None:
    before = {row.object_id for row in rows(database, "service_queues")}
    database.create_queue("Sales.StockQueue")
    queues = {row.object_id: row for row in rows(database, "service_queues")}
    services = {row.name: row for row in rows(database, "services")}
    (contract,) = rows(database, "service_contracts", name=CONTRACT)
    assert set(services) == {ORDERS, STOCK, *(name for name, _ in SYSTEM_SERVICES)}
    stock = services[STOCK]
    assert queues[stock.service_queue_id].name == STOCK_QUEUE
    assert queues[services[ORDERS].service_queue_id].name == ORDERS_QUEUE
    usages = [(row.service_id, row.service_queue_id) for row in rows(database, "service_queue_usages")]
    assert sorted(usages) == sorted((row.service_id, row.service_queue_id) for row in services.values())
    assert {row[:2] for row in rows(database, "service_contract_usages")} == {
        (stock.service_id, contract.service_contract_id),
        (services[SERVICE_BROKER].service_id, SERVICE_ECHO_ID),
        (services[SERVICE_BROKER].service_id, SERVICE_DIAGNOSTIC_ID),
    }
    row = queues[stock.service_queue_id]
    assert (row.type, row.type_desc, row.principal_id, row.parent_object_id) == ("SQ", "SERVICE_QUEUE", None, 0)
    assert (row.is_receive_enabled, row.is_enqueue_enabled, row.is_ms_shipped) == (1, 1, 0)
    (made_here,) = (row for row in queues.values() if row.object_id not in before)
    assert abs(made_here.create_date - datetime.now(UTC)) < timedelta(minutes=1)
    schemas = {
        row.object_id: query(database, "select nspname::text from pg_namespace where oid::integer = %s", row.schema_id)
        for row in queues.values()
    }
    assert schemas.pop(row.object_id) == [(f"{database.name.lower()}_dbo",)]
    assert [(f"{database.name.lower()}_sales",)] in schemas.values()


def test_sys_conversation_priorities_lists_criteria_and_levels(database: sb.Database) -> None:
    assert rows(database, "conversation_priorities") == []
    database.create_broker_priority("Any", priority_level=3)
    database.create_broker_priority(
        "One", contract_name=CONTRACT, local_service_name=STOCK, remote_service_name="//far"
    )
    rows_by_name = {row.name: row for row in rows(database, "conversation_priorities")}
    assert rows_by_name["Any"][2:6] == (None, None, None, 3)
    (contract,), (service,) = rows(database, "service_contracts", name=CONTRACT), rows(database, "services", name=STOCK)
    assert rows_by_name["One"][2:6] == (contract.service_contract_id, service.service_id, "//far", 5)
    database.alter(honor_broker_priority=True)
    (row,) = rows(database, "databases")
    assert row.is_honor_broker_priority_on == 1


@pytest.mark.feature(205)
def test_the_depth_of_a_queue_is_told_without_reading_it(database: sb.Database) -> None:
    def count() -> int:
        text = "select servicebroker.approximate_count(object_id) from sys.service_queues where object_id = %s"
        depth: int = query(database, text, stock.object_id)[0][0]
        return depth

    (stock,) = rows(database, "service_queues", name=STOCK_QUEUE)
    with database.transaction() as transaction:
        handle = transaction.begin_dialog(ORDERS, STOCK, contract=CONTRACT)
        transaction.send_batch(handle, ORDER, [b"x"] * 5000)
        transaction.connection.execute("select pg_stat_force_next_flush()")
    assert count() == 5000
    with database.transaction() as transaction:
        assert len(transaction.receive(STOCK_QUEUE, top=2000)) == 2000
        transaction.connection.execute("select pg_stat_force_next_flush()")
    assert count() == 3000
    with database.transaction() as other, database.instance.connection() as connection:
        # The view answers while the table is locked against readers.
        other.connection.execute(f"lock table servicebroker.queue_{stock.object_id} in access exclusive mode")
        with connection.transaction():
            connection.execute("set local lock_timeout = '2s'")
            text = "select servicebroker.approximate_count(%s)"
            assert connection.execute(text, (stock.object_id,)).fetchall() == [(3000,)]
    assert query(database, "select servicebroker.approximate_count(0)") == [(None,)]


# ---------------------------------------------------------------- conversations


@pytest.mark.feature(36)
def test_a_dialog_that_has_begun(database: sb.Database, clock: Clock) -> None:
    now = clock()
    handle = begin(database, lifetime=3600)
    (service,) = rows(database, "services", name=ORDERS)
    (contract,) = rows(database, "service_contracts", name=CONTRACT)
    row = endpoint(database, handle)
    assert (row.state, row.state_desc, row.is_initiator) == ("SO", "STARTED_OUTBOUND", 1)
    assert (row.service_id, row.service_contract_id) == (service.service_id, contract.service_contract_id)
    assert (row.far_service, row.far_broker_instance) == (STOCK, None)
    assert abs(row.lifetime - now - timedelta(hours=1)) < timedelta(minutes=1)
    assert row.lifetime.utcoffset() == timedelta()
    assert (row.outbound_session_key_identifier, row.inbound_session_key_identifier) == (NO_KEY, NO_KEY)
    assert (row.principal_id, row.far_principal_id, row.is_system, row.priority) == (0, 0, 0, 5)
    assert row.security_timestamp == row.dialog_timer == UNSET
    assert numbers(database, handle) == (0, 0, -1)
    assert row.last_send_tran_id == bytes(6)
    assert (row.receive_sequence_frag, row.system_sequence, row.last_out_of_order_frag) == (0, 0, 0)
    assert (row.first_out_of_order_sequence, row.last_out_of_order_sequence) == (-1, -1)
    (group,) = rows(database, "conversation_groups", conversation_group_id=row.conversation_group_id)
    assert (group.service_id, group.is_system) == (service.service_id, 0)
    assert rows(database, "conversation_endpoints", conversation_id=row.conversation_id) == [row]


@pytest.mark.feature(25)
def test_a_column_holds_a_service_name_of_256_characters(database: sb.Database) -> None:
    handle = begin(database, "é" * 256)
    database.send(handle, ORDER, b"x")
    assert endpoint(database, handle).far_service == "é" * 256
    assert [row.to_service_name for row in rows(database, "transmission_queue")] == ["é" * 256]
    with refused(15151, "256"):
        begin(database, "x" * 257)


@pytest.mark.feature(43)
def test_sys_conversation_endpoints_describes_both_sides_of_a_dialog(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    with database.transaction() as transaction:
        transaction.send(target, REPLY, b"1")
        transaction.send(target, REPLY, b"2")
        ((xact,),) = transaction.connection.execute("select pg_current_xact_id()::text::bigint").fetchall()
    initiator_row, target_row = endpoint(database, initiator), endpoint(database, target)
    assert initiator_row.conversation_id == target_row.conversation_id
    assert initiator_row.conversation_handle != target_row.conversation_handle
    assert (initiator_row.is_initiator, target_row.is_initiator) == (1, 0)
    assert (initiator_row.state_desc, target_row.state_desc) == ("CONVERSING", "CONVERSING")
    assert (initiator_row.far_service, target_row.far_service) == (STOCK, ORDERS)
    assert initiator_row.far_broker_instance == target_row.far_broker_instance == identifier(database)
    assert initiator_row.conversation_group_id != target_row.conversation_group_id
    assert initiator_row.lifetime == target_row.lifetime
    assert numbers(database, initiator) == (1, 2, -1)
    assert numbers(database, target) == (2, 1, -1)
    assert target_row.last_send_tran_id == xact.to_bytes(6, "big")
    groups = {row.conversation_group_id for row in rows(database, "conversation_groups")}
    assert groups == {initiator_row.conversation_group_id, target_row.conversation_group_id}


def test_a_dialog_between_two_databases_has_one_endpoint_in_each(instance: sb.Instance, database: sb.Database) -> None:
    far = define_standard_set(instance.database("SysFar", create=True))
    handle = begin(database, broker_instance=identifier(far))
    assert endpoint(database, handle).far_broker_instance == identifier(far)
    database.send(handle, ORDER, b"x")
    target = peer_handle(database, handle)
    assert [row.conversation_handle for row in rows(database, "conversation_endpoints")] == [handle]
    assert [row.conversation_handle for row in rows(far, "conversation_endpoints")] == [target]
    assert endpoint(far, target).far_broker_instance == identifier(database)
    assert numbers(far, target) == (0, 1, -1)


@pytest.mark.feature(85)
def test_a_timer_is_shown_until_it_fires(database: sb.Database, clock: Clock) -> None:
    handle = begin(database)
    before = clock()
    database.begin_conversation_timer(handle, 60)
    assert abs(endpoint(database, handle).dialog_timer - before - timedelta(seconds=60)) < timedelta(seconds=30)
    clock.jump(seconds=61)
    (timer,) = database.receive(ORDERS_QUEUE)
    assert timer.message_type_name == sb.DIALOG_TIMER
    assert endpoint(database, handle).dialog_timer == UNSET


@pytest.mark.feature(99)
def test_the_target_ends_first(database: sb.Database, clock: Clock) -> None:
    initiator, target = open_dialog(database)
    database.send(target, REPLY, b"last")
    before = clock()
    database.end_conversation(target)
    assert endpoint(database, initiator).state_desc == "DISCONNECTED_INBOUND"
    assert numbers(database, initiator) == (1, 2, 1)
    closed = endpoint(database, target)
    assert (closed.state, closed.state_desc) == ("CD", "CLOSED")
    assert abs(closed.security_timestamp - before - timedelta(minutes=30)) < timedelta(minutes=1)
    assert numbers(database, target) == (2, 1, -1)
    clock.jump(minutes=31)
    database.end_conversation(begin(database))  # the closed target is removed
    assert state(database, target) is None
    assert numbers(database, initiator) == (1, 2, 1)
    database.end_conversation(initiator)
    assert rows(database, "conversation_endpoints") == rows(database, "conversation_groups") == []


def test_the_initiator_ends_first(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(target, REPLY, b"unread")
    database.send(initiator, ORDER, b"last")
    database.end_conversation(initiator)
    assert rows(database, "conversation_endpoints", conversation_handle=initiator) == []
    assert endpoint(database, target).state_desc == "DISCONNECTED_INBOUND"
    assert numbers(database, target) == (1, 3, 2)
    database.receive(STOCK_QUEUE)
    database.end_conversation(target)
    assert endpoint(database, target).state == "CD"
    assert numbers(database, target) == (1, 3, -1)


def test_an_end_that_waited(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.alter_queue(STOCK_QUEUE, status=False)
    database.send(initiator, ORDER, b"last")
    database.end_conversation(initiator)
    assert endpoint(database, initiator).state_desc == "DISCONNECTED_OUTBOUND"
    assert numbers(database, initiator) == (3, 0, 2)
    assert numbers(database, target) == (0, 1, -1)
    database.alter_queue(STOCK_QUEUE, status=True)
    assert rows(database, "conversation_endpoints", conversation_handle=initiator) == []
    assert numbers(database, target) == (0, 3, 2)


def test_both_end_while_the_first_end_waits(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(initiator, ORDER, b"unread")
    database.alter_queue(ORDERS_QUEUE, status=False)
    database.send(target, REPLY, b"waits")
    database.end_conversation(target)
    assert numbers(database, target) == (2, 2, 1)
    database.end_conversation(initiator)
    assert rows(database, "conversation_endpoints", conversation_handle=initiator) == []
    assert endpoint(database, target).state_desc == "CLOSED"
    assert numbers(database, target) == (2, 2, -1)


def test_an_error_ends_a_dialog(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.end_conversation(target, error=(5, "failed"))
    row = endpoint(database, initiator)
    assert (row.state, row.state_desc) == ("ER", "ERROR")
    assert numbers(database, initiator) == (1, 1, -1)


def test_a_broken_rule_puts_both_sides_into_error(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(initiator, DOCUMENT, "<broken")
    assert (endpoint(database, initiator).state, endpoint(database, target).state) == ("ER", "ER")
    assert numbers(database, target) == (0, 1, -1)
    database.end_conversation(initiator)
    assert numbers(database, target) == (0, 1, -1)


def test_a_cleanup_leaves_the_other_side_as_it_was(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    database.send(target, REPLY, b"x")
    database.end_conversation(target, cleanup=True)
    assert endpoint(database, initiator).state == "CO"
    assert numbers(database, initiator) == (1, 1, -1)


def test_messages_for_a_missing_service_are_in_the_transmission_queue(database: sb.Database) -> None:
    handle = begin(database, "//test/Later")
    database.send_batch(handle, ORDER, [b"1", b""])
    before = datetime.now(UTC)
    database.end_conversation(handle)
    first, second, end = sorted(rows(database, "transmission_queue"), key=lambda row: row.message_sequence_number)
    for number, row in enumerate((first, second, end)):
        assert (row.conversation_handle, row.to_service_name, row.from_service_name) == (handle, "//test/Later", ORDERS)
        assert (row.to_broker_instance, row.service_contract_name, row.priority) == (None, CONTRACT, 5)
        assert (row.message_sequence_number, row.is_conversation_error) == (number, 0)
        assert abs(row.enqueue_time - before) < timedelta(minutes=1)
        assert row.enqueue_time.utcoffset() == timedelta()
    assert (first.message_type_name, first.message_body, first.is_end_of_dialog) == (ORDER, b"1", 0)
    assert (second.message_type_name, second.message_body, second.is_end_of_dialog) == (ORDER, None, 0)
    assert (end.message_type_name, end.message_body, end.is_end_of_dialog) == (sb.END_DIALOG, None, 1)
    assert "no service" in first.transmission_status
    assert endpoint(database, handle).state_desc == "DISCONNECTED_OUTBOUND"
    assert numbers(database, handle) == (3, 0, 2)
    database.create_service("//test/Later", STOCK_QUEUE, [CONTRACT])
    assert rows(database, "transmission_queue") == []
    (target,) = rows(database, "conversation_endpoints")
    assert (target.state, target.is_initiator) == ("DI", 0)
    assert numbers(database, target.conversation_handle) == (0, 3, 2)
    assert len(database.receive(STOCK_QUEUE)) == 3


def test_the_receive_number_ignores_undelivered_messages(database: sb.Database) -> None:
    initiator, target = open_dialog(database)
    queue = "update servicebroker.queues set is_enqueue_enabled = %s where database_id = %s and name = %s returning 1"
    query(database, queue, False, database.database_id, STOCK_QUEUE)
    assert {row.is_enqueue_enabled for row in rows(database, "service_queues", name=STOCK_QUEUE)} == {0}
    database.send(initiator, ORDER, b"waits")
    assert [row.message_sequence_number for row in rows(database, "transmission_queue")] == [1]
    assert numbers(database, initiator) == (2, 0, -1)
    assert numbers(database, target) == (0, 1, -1)


def test_a_handle_that_is_gone(database: sb.Database) -> None:
    handle = begin(database)
    database.end_conversation(handle)
    assert rows(database, "conversation_endpoints", conversation_handle=handle) == []
    with refused(8426):
        database.send(handle, ORDER, b"x")
