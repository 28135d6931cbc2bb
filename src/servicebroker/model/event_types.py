"""The events that an event notification may name, and the groups that they form.

The rules: docs/reference/rules.md#event-notifications.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from servicebroker.model.errors import BrokerError

QUEUE_ACTIVATION = "QUEUE_ACTIVATION"
BROKER_QUEUE_DISABLED = "BROKER_QUEUE_DISABLED"
ON_QUEUE = (QUEUE_ACTIVATION, BROKER_QUEUE_DISABLED)  # the events that a notification on a queue may name

QUEUE, DATABASE, SERVER = "QUEUE", "DATABASE", "SERVER"  # the scopes of a notification


class Group(NamedTuple):
    """A group of events, and of other groups, with one name."""

    name: str
    members: tuple[Group | str, ...]

    def events(self) -> Iterator[str]:
        """Iterate over the events of the group and of the groups in it."""
        for member in self.members:
            if isinstance(member, Group):
                yield from member.events()
            else:
                yield member

    def groups(self) -> Iterator[Group]:
        """Iterate over the group and those in it."""
        yield self
        for member in self.members:
            if isinstance(member, Group):
                yield from member.groups()


def _verbs(kind: str, verbs: str = "CREATE ALTER DROP") -> tuple[str, ...]:
    return tuple(f"{verb}_{kind}" for verb in verbs.split())


def _of(kind: str, verbs: str = "CREATE ALTER DROP") -> Group:
    return Group(f"DDL_{kind}_EVENTS", _verbs(kind, verbs))


_SIGNATURES = ("ADD_SIGNATURE", "ADD_SIGNATURE_SCHEMA_OBJECT", "DROP_SIGNATURE", "DROP_SIGNATURE_SCHEMA_OBJECT")
_TABLES_AND_VIEWS = Group(
    "DDL_TABLE_VIEW_EVENTS",
    (
        _of("TABLE"),
        _of("VIEW"),
        Group(
            "DDL_INDEX_EVENTS",
            (
                *("CREATE_INDEX", "ALTER_INDEX", "DROP_INDEX", "CREATE_XML_INDEX", "CREATE_SPATIAL_INDEX"),
                Group("DDL_FULLTEXT_INDEX_EVENTS", _verbs("FULLTEXT_INDEX")),
            ),
        ),
        _of("STATISTICS", "CREATE UPDATE DROP"),
    ),
)
_SECURITY_OF_DATABASES = Group(
    "DDL_DATABASE_SECURITY_EVENTS",
    (
        _of("CERTIFICATE"),
        _of("USER"),
        Group("DDL_ROLE_EVENTS", ("CREATE_ROLE", "ALTER_ROLE", "DROP_ROLE", "ADD_ROLE_MEMBER", "DROP_ROLE_MEMBER")),
        _of("APPLICATION_ROLE"),
        _of("SCHEMA"),
        Group("DDL_GDR_DATABASE_EVENTS", ("GRANT_DATABASE", "DENY_DATABASE", "REVOKE_DATABASE")),
        Group("DDL_AUTHORIZATION_DATABASE_EVENTS", ("ALTER_AUTHORIZATION_DATABASE",)),
        _of("SYMMETRIC_KEY"),
        _of("ASYMMETRIC_KEY"),
        Group("DDL_CRYPTO_SIGNATURE_EVENTS", _SIGNATURES),
        _of("MASTER_KEY"),
        _of("DATABASE_ENCRYPTION_KEY"),
        _of("SECURITY_POLICY"),
        _of("COLUMN_MASTER_KEY", "CREATE DROP"),
    ),
)
_BROKER = Group(
    "DDL_SSB_EVENTS",
    (
        _of("MESSAGE_TYPE"),
        _of("CONTRACT", "CREATE DROP"),
        _of("QUEUE"),
        _of("SERVICE"),
        _of("ROUTE"),
        _of("REMOTE_SERVICE_BINDING"),
        _of("BROKER_PRIORITY"),
    ),
)
_IN_DATABASES = Group(
    "DDL_DATABASE_LEVEL_EVENTS",
    (
        _TABLES_AND_VIEWS,
        _of("SYNONYM", "CREATE DROP"),
        _of("FUNCTION"),
        _of("PROCEDURE"),
        _of("TRIGGER"),
        _of("EVENT_NOTIFICATION", "CREATE DROP"),
        _of("ASSEMBLY"),
        _of("TYPE", "CREATE DROP"),
        _SECURITY_OF_DATABASES,
        _BROKER,
        _of("XML_SCHEMA_COLLECTION"),
        Group("DDL_PARTITION_EVENTS", (_of("PARTITION_FUNCTION"), _of("PARTITION_SCHEME"))),
        _of("PLAN_GUIDE"),
        Group("DDL_DEFAULT_EVENTS", ("CREATE_DEFAULT", "DROP_DEFAULT", "BIND_DEFAULT", "UNBIND_DEFAULT")),
        Group("DDL_RULE_EVENTS", ("CREATE_RULE", "DROP_RULE", "BIND_RULE", "UNBIND_RULE")),
        Group(
            "DDL_EXTENDED_PROPERTY_EVENTS",
            tuple(f"{verb}_EXTENDED_PROPERTY" for verb in ("CREATE", "ALTER", "DROP")),
        ),
        _of("FULLTEXT_CATALOG"),
        _of("FULLTEXT_STOPLIST"),
        _of("SEARCH_PROPERTY_LIST"),
        _of("SEQUENCE"),
        _of("DATABASE_AUDIT_SPECIFICATION"),
        "RENAME",
    ),
)
_OF_THE_SERVER = Group(
    "DDL_SERVER_LEVEL_EVENTS",
    (
        Group("DDL_DATABASE_EVENTS", ("CREATE_DATABASE", "ALTER_DATABASE", "DROP_DATABASE")),
        _of("ENDPOINT"),
        _of("EXTENDED_PROCEDURE", "CREATE DROP"),
        _of("LINKED_SERVER"),
        _of("MESSAGE"),
        _of("REMOTE_SERVER"),
        _of("RESOURCE_POOL"),
        _of("WORKLOAD_GROUP"),
        _of("EVENT_SESSION"),
        Group(
            "DDL_SERVER_SECURITY_EVENTS",
            (
                _of("LOGIN"),
                Group("DDL_GDR_SERVER_EVENTS", ("GRANT_SERVER", "DENY_SERVER", "REVOKE_SERVER")),
                Group("DDL_AUTHORIZATION_SERVER_EVENTS", ("ALTER_AUTHORIZATION_SERVER",)),
                _of("CREDENTIAL"),
                _of("SERVER_ROLE"),
                *("ADD_SERVER_ROLE_MEMBER", "DROP_SERVER_ROLE_MEMBER", "ALTER_SERVICE_MASTER_KEY"),
                _of("SERVER_AUDIT"),
                _of("SERVER_AUDIT_SPECIFICATION"),
            ),
        ),
        "ALTER_INSTANCE",
        "ALTER_SERVER_CONFIGURATION",
    ),
)
_DDL = Group("DDL_EVENTS", (_OF_THE_SERVER, _IN_DATABASES))


def _trace(name: str, events: str) -> Group:
    return Group(f"TRC_{name}", tuple(events.split()))


# events of SQL Server's internal work: a notification for them is stored, but this product never raises them
_TRACE = Group(
    "TRC_ALL_EVENTS",
    (
        _trace("CLR", "ASSEMBLY_LOAD"),
        _trace(
            "DATABASE",
            "DATA_FILE_AUTO_GROW DATA_FILE_AUTO_SHRINK LOG_FILE_AUTO_GROW LOG_FILE_AUTO_SHRINK "
            "DATABASE_MIRRORING_STATE_CHANGE",
        ),
        _trace("DEPRECATION", "DEPRECATION_ANNOUNCEMENT DEPRECATION_FINAL_SUPPORT"),
        _trace(
            "ERRORS_AND_WARNINGS",
            "BITMAP_WARNING BLOCKED_PROCESS_REPORT CPU_THRESHOLD_EXCEEDED DATABASE_SUSPECT_DATA_PAGE ERRORLOG EVENTLOG "
            "EXCEPTION EXCHANGE_SPILL_EVENT EXECUTION_WARNINGS HASH_WARNING MISSING_COLUMN_STATISTICS "
            "MISSING_JOIN_PREDICATE SORT_WARNINGS USER_ERROR_MESSAGE",
        ),
        _trace("FULL_TEXT", "FT_CRAWL_ABORTED FT_CRAWL_STARTED FT_CRAWL_STOPPED"),
        _trace("LOCKS", "DEADLOCK_GRAPH LOCK_DEADLOCK LOCK_DEADLOCK_CHAIN LOCK_ESCALATION"),
        _trace("OBJECTS", "OBJECT_ALTERED OBJECT_CREATED OBJECT_DELETED"),
        _trace(
            "OLEDB",
            "OLEDB_CALL_EVENT OLEDB_DATAREAD_EVENT OLEDB_ERRORS OLEDB_PROVIDER_INFORMATION OLEDB_QUERYINTERFACE_EVENT",
        ),
        _trace(
            "PERFORMANCE",
            "SHOWPLAN_ALL_FOR_QUERY_COMPILE SHOWPLAN_XML SHOWPLAN_XML_FOR_QUERY_COMPILE "
            "SHOWPLAN_XML_STATISTICS_PROFILE PLAN_GUIDE_SUCCESSFUL PLAN_GUIDE_UNSUCCESSFUL",
        ),
        _trace("QUERY_NOTIFICATIONS", "QN__DYNAMICS QN__PARAMETER_TABLE QN__SUBSCRIPTION QN__TEMPLATE"),
        _trace(
            "SECURITY_AUDIT",
            "AUDIT_ADD_DB_USER_EVENT AUDIT_ADD_LINKED_SERVER AUDIT_ADD_LOGIN_TO_SERVER_ROLE_EVENT "
            "AUDIT_ADD_MEMBER_TO_DB_ROLE_EVENT AUDIT_ADD_ROLE_EVENT AUDIT_ADDLOGIN_EVENT "
            "AUDIT_APP_ROLE_CHANGE_PASSWORD_EVENT AUDIT_BACKUP_RESTORE_EVENT AUDIT_CHANGE_AUDIT_EVENT "
            "AUDIT_CHANGE_DATABASE_OWNER AUDIT_DATABASE_MANAGEMENT_EVENT AUDIT_DATABASE_OBJECT_ACCESS_EVENT "
            "AUDIT_DATABASE_OBJECT_GDR_EVENT AUDIT_DATABASE_OBJECT_MANAGEMENT_EVENT "
            "AUDIT_DATABASE_OBJECT_TAKE_OWNERSHIP_EVENT AUDIT_DATABASE_OPERATION_EVENT "
            "AUDIT_DATABASE_PRINCIPAL_IMPERSONATION_EVENT AUDIT_DATABASE_PRINCIPAL_MANAGEMENT_EVENT "
            "AUDIT_DATABASE_SCOPE_GDR_EVENT AUDIT_DBCC_EVENT AUDIT_FULLTEXT AUDIT_LOGIN "
            "AUDIT_LOGIN_CHANGE_PASSWORD_EVENT AUDIT_LOGIN_CHANGE_PROPERTY_EVENT AUDIT_LOGIN_FAILED "
            "AUDIT_LOGIN_GDR_EVENT AUDIT_LOGOUT AUDIT_PARTITION_FUNCTION_PERMISSION_EVENT "
            "AUDIT_PARTITION_SCHEME_PERMISSION_EVENT AUDIT_SCHEMA_OBJECT_ACCESS_EVENT "
            "AUDIT_SCHEMA_OBJECT_GDR_EVENT AUDIT_SCHEMA_OBJECT_MANAGEMENT_EVENT "
            "AUDIT_SCHEMA_OBJECT_TAKE_OWNERSHIP_EVENT AUDIT_SERVER_ALTER_TRACE_EVENT "
            "AUDIT_SERVER_OBJECT_GDR_EVENT AUDIT_SERVER_OBJECT_MANAGEMENT_EVENT "
            "AUDIT_SERVER_OBJECT_TAKE_OWNERSHIP_EVENT AUDIT_SERVER_OPERATION_EVENT "
            "AUDIT_SERVER_PRINCIPAL_IMPERSONATION_EVENT AUDIT_SERVER_PRINCIPAL_MANAGEMENT_EVENT "
            "AUDIT_SERVER_SCOPE_GDR_EVENT AUDIT_STATEMENT_PERMISSION_EVENT",
        ),
        _trace("SERVER", "MOUNT_TAPE SERVER_MEMORY_CHANGE TRACE_FILE_CLOSE"),
        _trace("STORED_PROCEDURES", "SP_CACHEINSERT SP_CACHEMISS SP_CACHEREMOVE SP_RECOMPILE"),
        _trace("TSQL", "SQL_STMTRECOMPILE XQUERY_STATIC_TYPE"),
        _trace("USER_CONFIGURABLE", " ".join(f"USERCONFIGURABLE_{number}" for number in range(10))),
    ),
)
_GROUPS = {group.name: tuple(group.events()) for root in (_DDL, _TRACE) for group in root.groups()}
_SERVER_LEVEL = frozenset(_OF_THE_SERVER.events())
RAISED_BY_NOTHING = frozenset(_TRACE.events())  # raised neither by a statement nor by a broker
EVENTS = frozenset({*ON_QUEUE, *_DDL.events(), *RAISED_BY_NOTHING})
# names in SQL Server's documentation, which writes one underscore where its catalog has two
_DOCUMENTED_NAMES = {name.replace("__", "_"): name for name in EVENTS if "__" in name}


def parents() -> Iterator[tuple[str, str]]:
    """Iterate over every event and group, each with the group that contains it, "" for none."""
    yield from ((event, "") for event in ON_QUEUE)
    for root in (_DDL, _TRACE):
        yield root.name, ""
        for group in root.groups():
            yield from ((member if isinstance(member, str) else member.name, group.name) for member in group.members)


def is_of_the_server(event: str) -> bool:
    """Return whether the event belongs to no database, such as CREATE_LOGIN."""
    return event in _SERVER_LEVEL


def events_of(named: Iterable[str], scope: str) -> Sequence[str]:
    """Return the single events that FOR names, for a notification on a queue, a database or the server.

    Args:
        named: events and groups of them, in any case.
        scope: QUEUE, DATABASE or SERVER.

    Raises:
        BrokerError: 1084 no such event, 1098 none of this scope.
    """
    types: dict[str, None] = {}
    for given_name in named:
        name = _DOCUMENTED_NAMES.get(given_name.upper(), given_name.upper())
        if name not in EVENTS and name not in _GROUPS:
            raise BrokerError(1084, given_name)
        events = _GROUPS.get(name, (name,))
        fitting = [event for event in events if _fits(event, scope)]
        if not fitting:
            scopes = [
                other.lower() for other in (QUEUE, DATABASE, SERVER) if any(_fits(event, other) for event in events)
            ]
            raise BrokerError(1098, given_name, scope.lower(), hint=f"It is valid on: {', '.join(scopes)}.")
        types |= dict.fromkeys(fitting)
    return list(types)


def _fits(event: str, scope: str) -> bool:
    if scope == QUEUE:
        return event in ON_QUEUE
    return event != QUEUE_ACTIVATION and (scope == SERVER or event not in _SERVER_LEVEL)
