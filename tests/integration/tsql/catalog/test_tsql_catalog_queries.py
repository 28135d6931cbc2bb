"""Queries of tools and monitoring scripts on the catalog."""

from __future__ import annotations

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.values.catalog_views import SYS_VIEWS, TSQL_VIEWS
from servicebroker.tsql.translation.values.unsupported_views import refuse_unsupported_view
from tsql_support import output_of, rows, scalar


def test_parameters_are_in_the_catalog(db: sb.Database) -> None:
    db.execute_tsql("CREATE PROCEDURE Asked @a int, @b nvarchar(20) = N'x', @c decimal(9,2) OUTPUT AS RETURN 1")
    db.execute_tsql("CREATE FUNCTION Answered (@x int) RETURNS varchar(10) AS BEGIN RETURN 'a' END")
    asked = "SELECT name, parameter_id, TYPE_NAME(user_type_id), max_length, precision, scale, is_output, "
    asked += "has_default_value FROM sys.parameters "
    assert rows(db, asked + "WHERE object_id = OBJECT_ID('Asked') ORDER BY parameter_id") == [
        ("@a", 1, "int", 4, 0, 0, 0, 0), ("@b", 2, "nvarchar", 40, 0, 0, 0, 1), ("@c", 3, "decimal", 5, 9, 2, 1, 0)
    ]  # fmt: skip
    assert [row[:3] for row in rows(db, asked + "WHERE object_id = OBJECT_ID('Answered') ORDER BY parameter_id")] == [
        ("", 0, "varchar"), ("@x", 1, "int")
    ]  # fmt: skip
    assert rows(db, "SELECT PARAMETER_NAME, DATA_TYPE, PARAMETER_MODE FROM INFORMATION_SCHEMA.PARAMETERS "
                "WHERE SPECIFIC_NAME = 'Asked' ORDER BY ORDINAL_POSITION")[2] == ("@c", "decimal", "INOUT")  # fmt: skip
    assert rows(db, "SELECT ROUTINE_NAME, ROUTINE_TYPE FROM INFORMATION_SCHEMA.ROUTINES ORDER BY 1") == [
        ("Answered", "FUNCTION"), ("Asked", "PROCEDURE")
    ]  # fmt: skip
    db.execute_tsql("ALTER PROCEDURE Asked AS RETURN 1")
    assert rows(db, asked + "WHERE object_id = OBJECT_ID('Asked')") == []


def test_monitoring_scripts_can_join_the_views(db: sb.Database) -> None:
    texts = "SELECT t.text FROM sys.dm_exec_requests r CROSS APPLY sys.dm_exec_sql_text(r.sql_handle) AS t WHERE r.session_id = @@SPID"
    assert "dm_exec_sql_text" in str(scalar(db, texts))
    assert rows(db, "SELECT c.protocol_type FROM sys.dm_exec_connections c JOIN sys.dm_exec_sessions s "
                "ON s.session_id = c.session_id WHERE c.session_id = @@SPID") == [("TSQL",)]  # fmt: skip
    assert scalar(db, "SELECT event_type FROM sys.dm_exec_input_buffer(@@SPID, NULL)") == "Language Event"
    assert output_of(
        db, "BEGIN TRAN; SELECT COUNT(*) FROM sys.dm_tran_session_transactions WHERE session_id = @@SPID; COMMIT"
    ) == [[(1,)]]
    for view in (
        "sys.dm_os_wait_stats WHERE wait_type LIKE 'BROKER%'",
        "sys.dm_exec_query_stats q CROSS APPLY sys.dm_exec_sql_text(q.sql_handle) t",
        "sys.partition_functions",
        "sys.partition_schemes",
        "fn_listextendedproperty(N'MS_Description', N'SCHEMA', N'dbo', NULL, NULL, NULL, NULL)",
    ):
        assert rows(db, f"SELECT * FROM {view}") == []
    assert scalar(db, "SELECT name FROM sys.filegroups WHERE is_default = 1") == "PRIMARY"
    assert scalar(db, "SELECT SUM(CASE WHEN total_page_count > 0 THEN 1 END) FROM sys.dm_db_file_space_usage") == 1
    db.execute_tsql(
        "CREATE ROUTE R WITH BROKER_INSTANCE = '6f9619ff-8b86-d011-b42d-00c04fc964ff', SERVICE_NAME = 's', ADDRESS = 'TCP://h:1'"
    )
    assert (
        scalar(db, "SELECT broker_instance FROM sys.routes WHERE name = 'r'") == "6F9619FF-8B86-D011-B42D-00C04FC964FF"
    )


def test_a_session_finds_its_own_options(db: sb.Database) -> None:
    own = "FROM sys.{} WHERE session_id = @@SPID"
    options = "SELECT DB_NAME(database_id), transaction_isolation_level, lock_timeout, date_format, quoted_identifier "
    options += own.format("dm_exec_sessions")
    assert output_of(db, options) == [[(db.name, 2, -1, "mdy", True)]]
    changed = "SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; SET LOCK_TIMEOUT 5000; SET DATEFORMAT dmy; "
    requests = "SELECT DB_NAME(database_id), transaction_isolation_level " + own.format("dm_exec_requests")
    assert output_of(db, changed + options + "; " + requests) == [[(db.name, 4, 5000, "dmy", True)], [(db.name, 4)]]


def test_sizes_of_tables_join_indexes_partitions_and_units(db: sb.Database) -> None:
    db.execute_tsql("""
    CREATE TABLE Heaped (a int, b int); CREATE INDEX ix_b ON Heaped (b); INSERT Heaped VALUES (1, 2), (3, 4)
    CREATE TABLE Keyed (a int CONSTRAINT pk_keyed PRIMARY KEY, b int CONSTRAINT uq_keyed UNIQUE)
    CREATE TABLE Pointing (a int REFERENCES Keyed (b))
    """)
    tables = "IN (OBJECT_ID('Heaped'), OBJECT_ID('Keyed'))"
    indexes = f"SELECT OBJECT_NAME(object_id), index_id, name, type_desc FROM sys.indexes WHERE object_id {tables}"
    assert sorted(rows(db, indexes)) == [
        ("Heaped", 0, None, "HEAP"),
        ("Heaped", 2, "ix_b", "NONCLUSTERED"),
        ("Keyed", 1, "pk_keyed", "CLUSTERED"),
        ("Keyed", 2, "uq_keyed", "NONCLUSTERED"),
    ]
    sizes = f"""SELECT t.name, i.index_id, p.rows, SUM(u.total_pages) / SUM(u.used_pages) FROM sys.tables t
    JOIN sys.indexes i ON i.object_id = t.object_id
    JOIN sys.partitions p ON p.object_id = i.object_id AND p.index_id = i.index_id
    JOIN sys.allocation_units u ON u.container_id = p.partition_id WHERE t.object_id {tables} AND i.index_id < 2
    GROUP BY t.name, i.index_id, p.rows ORDER BY t.name"""
    assert [row[:3] for row in rows(db, sizes)] == [("Heaped", 0, 2), ("Keyed", 1, 0)]
    assert rows(db, "SELECT k.name FROM sys.foreign_keys f JOIN sys.key_constraints k ON k.unique_index_id = "
                "f.key_index_id AND k.parent_object_id = f.referenced_object_id "
                "WHERE f.parent_object_id = OBJECT_ID('Pointing')") == [("uq_keyed",)]  # fmt: skip
    locks = "SELECT DISTINCT resource_type, request_mode, DB_NAME(resource_database_id) FROM sys.dm_tran_locks "
    locks += "WHERE request_session_id = @@SPID AND resource_associated_entity_id = OBJECT_ID('Heaped')"
    assert output_of(db, f"SET NOCOUNT ON; BEGIN TRAN; DELETE Heaped; {locks}; ROLLBACK") == [
        [("OBJECT", "IX", db.name)]
    ]


def test_drivers_ask_for_a_view_and_then_for_the_isolation_level(db: sb.Database) -> None:
    wanted = "name IN ('dm_exec_sessions', 'dm_pdw_nodes_exec_sessions', 'shown_objects')"
    assert rows(db, f"SELECT name FROM sys.system_views WHERE {wanted}") == [("dm_exec_sessions",)]
    level = "SELECT transaction_isolation_level FROM sys.dm_exec_sessions WHERE session_id = @@SPID"
    assert output_of(db, f"SET TRANSACTION ISOLATION LEVEL SERIALIZABLE; {level}") == [[(4,)]]


def test_users_are_found_by_the_sid_of_their_login(db: sb.Database) -> None:
    db.execute_tsql("""CREATE LOGIN Known WITH PASSWORD = 'Secret 1'; CREATE USER Known FOR LOGIN Known
    CREATE USER Alone WITHOUT LOGIN; CREATE ROLE Readers""")
    query = """SELECT u.name, l.name, SUSER_SNAME(u.sid) FROM sys.database_principals u LEFT JOIN sys.server_principals l ON l.sid = u.sid
    WHERE u.name IN ('Known', 'Alone', 'Readers', 'dbo') ORDER BY u.name"""
    assert rows(db, query) == [
        ("Alone", None, None),
        ("Known", "Known", "Known"),
        ("Readers", None, None),
        ("dbo", "sa", "sa"),
    ]
    assert rows(db, "SELECT COUNT(DISTINCT sid) FROM sysusers WHERE name IN ('Known', 'Alone', 'Readers', 'dbo')") == [
        (4,)
    ]
    assert rows(
        db, "SELECT islogin, issqlrole FROM dbo.sysusers WHERE name IN (N'Known', N'Readers') ORDER BY name"
    ) == [(1, 0), (0, 1)]
    assert rows(db, "SELECT name FROM master..syslogins WHERE sid = SUSER_SID('known')") == [("Known",)]
    assert rows(db, "SELECT SUSER_SID('sa'), SUSER_SID('nobody'), SUSER_SNAME(0x99)") == [(b"\x01", None, None)]
    assert rows(db, "SELECT COUNT(*) FROM sys.dm_qn_subscriptions") == [(0,)]


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("SELECT * FROM sys.dm_os_schedulers", "'sys.dm_os_schedulers'. Use PostgreSQL's own views"),
        (
            "SELECT * FROM sys.dm_db_index_physical_stats(1, NULL, NULL, NULL, NULL)",
            "'sys.dm_db_index_physical_stats'. Use PostgreSQL's",
        ),
        ("SELECT * FROM msdb.dbo.sysjobs", "'msdb.dbo.sysjobs'. SQL Server Agent is not supported"),
        ("SELECT * FROM msdb..backupset", "See the page on backups."),
        ("SELECT * FROM master..sysperfinfo", "Use PostgreSQL's own views"),
        ("SELECT * FROM sys.all_parameters", "This view of SQL Server is not supported"),
    ],
)
def test_unsupported_views_of_sql_server_are_named(db: sb.Database, query: str, shown: str) -> None:
    with pytest.raises(TsqlError, match="208") as error:
        rows(db, query)
    assert shown in error.value.text
    (finding,) = check(query)
    assert finding.verdict is Verdict.REFUSED
    assert shown in finding.note


def test_a_procedure_may_name_an_unsupported_view(db: sb.Database) -> None:
    db.execute_tsql(
        "CREATE PROCEDURE AsksServer @all BIT AS IF @all = 1 SELECT * FROM sys.dm_os_tasks ELSE PRINT 'little'"
    )
    assert output_of(db, "EXEC AsksServer 0 EXEC AsksServer 1") == ["little", 208]
    assert (
        rows(
            db, "SELECT p.query_plan FROM sys.dm_exec_query_stats s CROSS APPLY sys.dm_exec_query_plan(s.plan_handle) p"
        )
        == []
    )


def test_a_function_reads_statement_statistics(db: sb.Database) -> None:
    """The view has no rows, but its columns exist."""
    db.execute_tsql("""CREATE FUNCTION PlanOf (@handle VARBINARY(64)) RETURNS TABLE AS RETURN
    (SELECT TOP 1 s.query_hash, s.query_plan_hash AS plan_hash, s.max_elapsed_time, p.query_plan
    FROM sys.dm_exec_query_stats s OUTER APPLY sys.dm_exec_query_plan(s.plan_handle) p WHERE s.sql_handle = @handle)""")
    assert rows(db, "SELECT * FROM PlanOf(0x01)") == []


def test_no_view_that_is_there_is_called_foreign(instance: sb.Instance) -> None:
    with instance.connection() as connection:
        found = connection.execute(
            "select relname from pg_class where relkind = 'v' and relnamespace = 'sys'::regnamespace"
        )
    for (name,) in found:
        if name in TSQL_VIEWS | SYS_VIEWS:
            continue
        refuse_unsupported_view("", "sys", name, name)


def test_tools_ask_the_views_of_the_standard(db: sb.Database) -> None:
    db.execute_tsql("""
    CREATE TABLE Asking (a int NOT NULL CONSTRAINT PK_Asking PRIMARY KEY, q decimal(9,2) CONSTRAINT CK_Asking CHECK (q > 0),
        s nvarchar(20), t datetime2(3))
    CREATE TABLE Asked_of (a int CONSTRAINT FK_Asking REFERENCES Asking (a) ON DELETE CASCADE)""")
    db.execute_tsql("CREATE TRIGGER Asks ON Asking AFTER INSERT, DELETE AS RETURN")
    view = "INFORMATION_SCHEMA."
    assert rows(db, "SELECT NUMERIC_PRECISION, NUMERIC_SCALE, DATETIME_PRECISION, CHARACTER_OCTET_LENGTH FROM "
                f"{view}COLUMNS WHERE TABLE_NAME = 'asking' ORDER BY ORDINAL_POSITION") == [
        (10, 0, None, None), (9, 2, None, None), (None, None, None, 40), (None, None, 3, None)
    ]  # fmt: skip
    assert rows(db, f"SELECT t.TABLE_NAME FROM {view}CHECK_CONSTRAINTS c JOIN {view}TABLE_CONSTRAINTS t "
                "ON t.CONSTRAINT_NAME = c.CONSTRAINT_NAME WHERE c.CONSTRAINT_NAME = 'ck_asking'") == [("Asking",)]  # fmt: skip
    assert rows(
        db, f"SELECT COLUMN_NAME, ORDINAL_POSITION FROM {view}KEY_COLUMN_USAGE WHERE TABLE_NAME = 'Asked_of'"
    ) == [("a", 1)]
    assert rows(db, f"SELECT UNIQUE_CONSTRAINT_NAME, DELETE_RULE, UPDATE_RULE FROM {view}REFERENTIAL_CONSTRAINTS "
                "WHERE CONSTRAINT_NAME = 'FK_Asking'") == [("PK_Asking", "CASCADE", "NO ACTION")]  # fmt: skip
    assert rows(db, f"SELECT CONSTRAINT_NAME FROM {view}CONSTRAINT_COLUMN_USAGE WHERE COLUMN_NAME = 'q'") == [
        ("CK_Asking",)
    ]
    assert rows(db, "SELECT type_desc FROM sys.trigger_events WHERE object_id = OBJECT_ID('Asks') ORDER BY type") == [
        ("INSERT",), ("DELETE",)
    ]  # fmt: skip
    assert rows(db, "SELECT is_read_committed_snapshot_on, log_reuse_wait_desc, SUSER_SNAME(owner_sid) FROM sys.databases "
                "WHERE name = DB_NAME() OR name = 'master'") == [(1, "NOTHING", "sa")] * 2  # fmt: skip
    assert scalar(db, "SELECT authentication_type_desc FROM sys.database_principals WHERE name = 'DBO'") == "INSTANCE"
    assert scalar(db, "SELECT COUNT(*) FROM master..sysprocesses WHERE spid = @@SPID") == 1
    for name in ("master.dbo.syslogins", "sys.credentials", "sys.stats", "sys.sql_expression_dependencies"):
        assert (
            rows(db, f"SELECT * FROM {name} WHERE name IS NULL" if "depend" not in name else f"SELECT * FROM {name}")
            == []
        )


def test_the_current_login_has_a_sid(db: sb.Database) -> None:
    assert rows(db, "SELECT COUNT(*) FROM sys.server_principals WHERE sid = SUSER_SID() AND name = SUSER_SNAME()") == [
        (1,)
    ]
    script = (
        "SELECT CASE WHEN SUSER_SNAME(SUSER_SID()) = SUSER_SNAME() THEN 1 END, SUSER_NAME(SUSER_ID()), SUSER_SNAME()"
    )
    ((same, by_id, name),) = rows(db, script)
    assert (same, by_id) == (1, name)
    assert rows(
        db,
        "SELECT p.name FROM sys.databases d JOIN sys.server_principals p ON p.sid = d.owner_sid WHERE d.name = DB_NAME()",
    ) == [("sa",)]
    db.execute_tsql("CREATE LOGIN Sided WITH PASSWORD = 'Secret 1' CREATE USER Sided CREATE USER NoLogin WITHOUT LOGIN")
    assert output_of(db, "EXECUTE AS LOGIN = 'Sided' SELECT SUSER_SNAME(SUSER_SID()) REVERT") == [[("Sided",)]]
    assert output_of(db, "EXECUTE AS USER = 'NoLogin' SELECT COUNT(SUSER_SID()) REVERT") == [[(1,)]]
    db.execute_tsql("CREATE TABLE Sids (a int, sid varbinary(85) DEFAULT SUSER_SID()) INSERT Sids (a) VALUES (1)")
    assert rows(db, "SELECT COUNT(*) FROM Sids WHERE sid = SUSER_SID()") == [(1,)]
