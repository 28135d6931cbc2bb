"""Catalog views: those of the schema sys, and T-SQL's own versions in the schema tsql."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.security.tsql_objects import ENTER, Use
from servicebroker.store.queue import quoted
from servicebroker.tsql.scope import Column
from servicebroker.tsql.translation.text_writer import Writer, not_supported, quote_string
from servicebroker.tsql.translation.values.unsupported_views import refuse_unsupported_view
from servicebroker.tsql.types import SYSNAME

# views of the schema tsql, which are missing in sys or differ there
TSQL_VIEWS = frozenset(
    {"databases", "tables", "objects", "all_objects", "procedures", "schemas", "columns", "views", "triggers", "types"}
    | {
        "sysdatabases",
        "sysobjects",
        "indexes",
        "dm_exec_sessions",
        "dm_exec_requests",
        "dm_db_partition_stats",
        "sequences",
        "identity_columns",
        "synonyms",
        "internal_tables",
        "partitions",
        "sql_modules",
        "service_queues",
        "transmission_queue",
        "dm_broker_activated_tasks",
        "dm_os_sys_info",
        "all_columns",
    }
    | {"key_constraints", "foreign_keys", "foreign_key_columns", "check_constraints", "default_constraints"}
    | {
        "computed_columns",
        "index_columns",
        "database_files",
        "dm_tran_locks",
        "dm_exec_connections",
        "allocation_units",
    }
    | {"dm_tran_session_transactions", "dm_tran_active_transactions", "dm_os_wait_stats", "dm_os_waiting_tasks"}
    | {"database_principals", "syslogins", "trigger_events", "servers", "stats"}
    | {"credentials", "sql_expression_dependencies", "dm_exec_cached_plans", "sysprocesses"}
    | {"filegroups", "data_spaces", "partition_functions", "partition_schemes", "partition_range_values"}
    | {
        "server_principals",
        "spt_values",
        "parameters",
        "routes",
        "dm_exec_query_stats",
        "dm_db_file_space_usage",
        "dm_db_index_usage_stats",
    }
    | {"conversation_endpoints", "event_notification_event_types", "trigger_event_types"}
    | {"assemblies", "assembly_files", "asymmetric_keys", "extended_properties"}
    | {"configurations", "database_mirroring_endpoints", "sql_logins", "master_files", "messages"}
    | {"sysusers", "dm_qn_subscriptions", "login_token", "user_token", "time_zone_info"}
    | {
        "syscolumns",
        "sysindexes",
        "sysindexkeys",
        "syscomments",
        "sysfiles",
        "sysaltfiles",
        "sysfilegroups",
        "systypes",
    }
    | {"sysconstraints", "sysreferences", "sysforeignkeys", "sysdepends", "sysmembers", "sysmessages", "syslanguages"}
    | {"sysservers", "sysconfigures", "syscurconfigs", "system_views"}
)
# text columns with names and GUIDs that compare without case; names of services, contracts and types compare with case
_NAME_COLUMNS = {
    **dict.fromkeys(TSQL_VIEWS | {"service_queues", "database_principals", "endpoints", "certificates"}, ("name",)),
    "routes": ("name", "broker_instance"),
    "conversation_endpoints": ("far_broker_instance",),
    "transmission_queue": ("to_broker_instance",),
    **dict.fromkeys(("remote_service_bindings", "conversation_priorities"), ("name",)),
    **dict.fromkeys(("event_notifications", "server_event_notifications"), ("name",)),
    **dict.fromkeys(("xml_schema_collections", "tcp_endpoints", "service_broker_endpoints"), ("name",)),
}
_INFORMATION_SCHEMA_NAMES = {
    **dict.fromkeys(("tables", "columns", "views"), ("table_name", "table_schema")),
    "routines": ("routine_name", "routine_schema"),
    "parameters": ("specific_name", "specific_schema", "parameter_name"),
    "schemata": ("schema_name",),
    "check_constraints": ("constraint_name", "constraint_schema"),
    **dict.fromkeys(
        ("key_column_usage", "constraint_column_usage"),
        ("constraint_name", "table_name", "table_schema", "column_name"),
    ),
    "referential_constraints": ("constraint_name", "unique_constraint_name"),
    "table_constraints": ("constraint_name", "constraint_schema", "table_name", "table_schema"),
}
_SERVER_LEVEL_VIEWS = frozenset({"databases", "sysdatabases", "server_principals", "sql_logins", "syslogins", "endpoints"}
                      | {"tcp_endpoints", "service_broker_endpoints", "dm_exec_sessions", "dm_exec_requests", "dm_tran_locks", "dm_broker_connections"}
                      | {"dm_broker_activated_tasks", "dm_broker_queue_monitors", "dm_os_performance_counters"}
                      | {"messages", "master_files", "dm_os_sys_info", "dm_exec_connections", "dm_os_wait_stats"}
                      | {"dm_tran_session_transactions", "dm_tran_active_transactions", "dm_os_waiting_tasks"}
                      | {"dm_exec_query_stats", "spt_values", "servers", "credentials", "dm_exec_cached_plans"}
                      | {"sysprocesses", "dm_qn_subscriptions", "event_notification_event_types", "trigger_event_types"}
                      | {"sysaltfiles", "sysmessages", "syslanguages", "sysservers", "sysconfigures", "syscurconfigs"}
                      | {"login_token", "time_zone_info", "system_views"}
                      | {"server_event_notifications", "server_events", "configurations", "database_mirroring_endpoints"})  # fmt: skip


# views of sys that exist here although their names match the patterns of unsupported views
SYS_VIEWS = frozenset(
    {"dm_broker_connections", "dm_broker_forwarded_messages", "dm_broker_queue_monitors", "dm_os_performance_counters"}
)
_COMPATIBILITY_VIEWS = frozenset(  # also visible without sys
    {"spt_values", *(name for name in TSQL_VIEWS if name.startswith("sys"))}
)


class CatalogView(NamedTuple):
    """A catalog view in PostgreSQL."""

    name: str
    columns: dict[str, Column]  # known columns by name in lower case


def find_catalog_view(writer: Writer, qualified_name: object) -> CatalogView | None:
    """Return the view that sys.name or INFORMATION_SCHEMA.name refers to, or None for another schema.

    Raises:
        TsqlError: 40515 an unsupported view of INFORMATION_SCHEMA, 208 one of sys or msdb.
    """
    name, schema, database = (str(getattr(qualified_name, part)).lower() for part in ("name", "schema", "database"))
    old = name in _COMPATIBILITY_VIEWS and schema in ("", "dbo")
    old = old and (name != "spt_values" or database == "master" or writer.scope.database.lower() == "master")
    if name not in TSQL_VIEWS | SYS_VIEWS:
        refuse_unsupported_view(database, schema, name, str(qualified_name))
    if schema not in ("sys", "information_schema") and not old:
        return None
    if schema == "information_schema":
        if name not in _INFORMATION_SCHEMA_NAMES:
            raise not_supported(f"INFORMATION_SCHEMA.{name.upper()}", "Use the views of sys.")
        view, named = f"tsql.{quoted('information_schema_' + name)}", _INFORMATION_SCHEMA_NAMES[name]
    else:
        view, named = f"{'tsql' if name in TSQL_VIEWS else 'sys'}.{quoted(name)}", _NAME_COLUMNS.get(name, ())
    columns = dict(writer.table_columns(view) or {})
    for column_name in named if not columns else [name for name in named if name in columns]:
        columns[column_name] = Column(column_name, SYSNAME)
    if database and database != writer.scope.database.lower() and name not in _SERVER_LEVEL_VIEWS:
        writer.uses[Use(ENTER, schema, name, database)] = None
        view = f"tsql.catalog_of({quote_string(database)}, {quote_string(str(qualified_name))}, null::{view})"
    return CatalogView(view, columns)
