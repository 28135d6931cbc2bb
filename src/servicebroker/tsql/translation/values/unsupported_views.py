"""Views and functions of SQL Server's catalog without a counterpart here.

The error names the replacement.
"""

from __future__ import annotations

import re

from servicebroker.tsql.statement_errors import TsqlError

_USE_POSTGRES_VIEWS = "Use PostgreSQL's own views, such as pg_stat_activity."
_USE_TIMER = "SQL Server Agent is not supported. Use a conversation timer, or the scheduler of the operating system."
_SEE_BACKUPS = "See the page on backups."
_NO_COUNTERPART = "This view of SQL Server is not supported."

_OF_THE_SERVER = re.compile(r"dm_\w+|fn_\w+|sysperfinfo|syslockinfo|syscacheobjects|trace\w*|system_internals_\w+")
_OF_THE_CATALOG = re.compile(
    r"(?:availability|change_tracking|column_encryption|column_master|column_store|cryptographic|fulltext|masked|memory_optimized|"
    r"module_assembly|numbered|external|query_store|remote_data|resource_governor|security|selective_xml|server_audit|server_event_session|"
    r"server_role|server_trigger|spatial|system|trusted|xml_index|database_(?:audit|automatic|credential|event_session|"
    r"filestream|mirroring|query_store|recovery|scoped))\w*|all_(?:parameters|sql_modules|views)|assembly_\w+|backup_devices|"
    r"column_\w+_usages|destination_data_spaces|edge_constraints|extended_procedures|filetables|hash_indexes|http_endpoints|"
    r"linked_logins|remote_logins|openkeys|parameter_\w+_usages|partition_parameters|periods|plan_guides|securable_classes|"
    r"server_(?:assembly_modules|file_audits|principal_credentials|sql_modules)|soap_endpoints|sql_dependencies|stats_columns|"
    r"sys(?:charsets|devices|fulltextcatalogs|oledbusers|opentapes|permissions|protects|remotelogins)|"
    r"table_types|type_assembly_usages|via_endpoints|xml_schema_(?!collections)\w+"
)
# compatibility views of SQL Server 2000, which need no schema
_LEGACY = re.compile(
    r"sys(?:cacheobjects|charsets|devices|fulltextcatalogs|lockinfo|oledbusers|opentapes|perfinfo|permissions|protects|remotelogins)"
)
_OF_JOBS = re.compile(
    r"sys(?:jobs?\w*|schedules|operators|alerts|categories|notifications|cachedcredentials|proxies|mail_\w+)"
)
_OF_BACKUPS = re.compile(r"backup\w+|restore\w+|suspect_pages|logmark\w+")


def refuse_unsupported_view(database: str, schema: str, name: str, written_name: str) -> None:
    """Refuse a name of SQL Server's catalog. All names are in lower case.

    Raises:
        TsqlError: 208 SQL Server has a view or function of this name. The text has the advice.
    """
    is_old = schema in ("", "dbo") and (
        _LEGACY.fullmatch(name) is not None or (database == "master" and name.startswith("sys"))
    )
    of_system = schema == "sys" or is_old
    if of_system and _OF_THE_SERVER.fullmatch(name):
        instead = _USE_POSTGRES_VIEWS
    elif of_system and _OF_THE_CATALOG.fullmatch(name):
        instead = _NO_COUNTERPART
    elif database == "msdb" and _OF_JOBS.fullmatch(name):
        instead = _USE_TIMER
    elif database == "msdb" and _OF_BACKUPS.fullmatch(name):
        instead = _SEE_BACKUPS
    else:
        return
    raise TsqlError(208, f"Invalid object name '{written_name}'. {instead}")
