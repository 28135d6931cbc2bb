"""Files of databases: what scripts ask of SQL Server's data and log files, and filegroups."""

from __future__ import annotations

import pytest

import servicebroker as sb
from tsql_support import output_of, rows, scalar

PATH = "/var/opt/mssql/data/"


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    return instance.database("Filed", create=True)


@pytest.mark.parametrize(
    ("database", "files"),
    [
        ("Filed", [("Filed", f"{PATH}Filed.mdf"), ("Filed_log", f"{PATH}Filed_log.ldf")]),
        ("master", [("master", f"{PATH}master.mdf"), ("mastlog", f"{PATH}mastlog.ldf")]),
        ("tempdb", [("tempdev", f"{PATH}tempdb.mdf"), ("templog", f"{PATH}templog.ldf")]),
        ("model", [("modeldev", f"{PATH}model.mdf"), ("modellog", f"{PATH}modellog.ldf")]),
        ("msdb", [("MSDBData", f"{PATH}MSDBData.mdf"), ("MSDBLog", f"{PATH}MSDBLog.ldf")]),
    ],
)
def test_master_files_names_data_and_log(db: sb.Database, database: str, files: list[tuple[str, str]]) -> None:
    query = f"SELECT name, physical_name FROM sys.master_files WHERE database_id = DB_ID('{database}') ORDER BY file_id"
    assert rows(db, query) == files
    if database in ("Filed", "msdb"):
        assert (
            output_of(db, f"USE {database}; SELECT name, physical_name FROM sys.database_files ORDER BY file_id")[-1]
            == files
        )


@pytest.mark.parametrize(
    ("expression", "value"),
    [
        ("SERVERPROPERTY('InstanceDefaultDataPath')", PATH),
        ("SERVERPROPERTY('instancedefaultlogpath')", PATH),
        ("FILE_NAME(1)", "Filed"),
        ("FILE_NAME(2)", "Filed_log"),
        ("FILE_NAME(3)", None),
        ("FILE_ID('Filed_log')", 2),
        ("FILE_ID('nothing')", None),
        ("FILE_IDEX('filed')", 1),
        ("FILEPROPERTY('Filed', 'IsPrimaryFile')", 1),
        ("FILEPROPERTY('Filed_log', 'IsLogFile')", 1),
        ("FILEPROPERTY('Filed', 'isreadonly')", 0),
        ("FILEPROPERTY('Filed', 'Nothing')", None),
        ("FILEPROPERTY(FILE_NAME(2), 'IsPrimaryFile')", 0),
        ("SIGN(FILEPROPERTY('Filed', 'SpaceUsed'))", 1),
        ("FILEGROUP_NAME(1)", "PRIMARY"),
        ("FILEGROUP_ID('primary')", 1),
        ("FILEGROUPPROPERTY('PRIMARY', 'IsDefault')", 1),
        ("FILEGROUPPROPERTY('nothing', 'IsDefault')", None),
        (
            "(SELECT SUBSTRING(physical_name, 1, CHARINDEX(N'master.mdf', LOWER(physical_name)) - 1) "
            "FROM master.sys.master_files WHERE database_id = 1 AND file_id = 1)",
            PATH,
        ),
        ("(SELECT SUM(size) / COUNT(*) FROM sys.database_files WHERE type_desc = 'LOG' AND state = 0)", 1024),
        ("(SELECT data_space_id FROM sys.database_files WHERE type = 1)", 0),
        ("(SELECT COUNT(*) FROM sys.dm_db_file_space_usage)", 1),
        (
            "(SELECT g.name FROM sys.filegroups g JOIN sys.database_files f ON f.data_space_id = g.data_space_id)",
            "PRIMARY",
        ),
    ],
)
def test_functions_of_files_return_their_documented_values(db: sb.Database, expression: str, value: object) -> None:
    assert scalar(db, f"SELECT {expression} AS v") == value


def test_a_database_has_the_options_that_scripts_read(db: sb.Database) -> None:
    query = """SELECT page_verify_option_desc, is_published, is_fulltext_enabled, containment_desc, is_query_store_on,
    is_auto_update_stats_on, is_ansi_nulls_on, delayed_durability_desc, is_in_standby, is_cleanly_shutdown,
    target_recovery_time_in_seconds, is_recursive_triggers_on FROM sys.databases WHERE name IN ('Filed', 'tempdb')"""
    assert rows(db, query) == [("CHECKSUM", 0, 0, "NONE", 0, 1, 1, "DISABLED", 0, 0, 60, 0)] * 2


def test_the_status_of_an_unknown_conversation_is_empty(db: sb.Database) -> None:
    assert rows(db, "SELECT GET_TRANSMISSION_STATUS(NEWID()), GET_TRANSMISSION_STATUS(NULL)") == [("", None)]
