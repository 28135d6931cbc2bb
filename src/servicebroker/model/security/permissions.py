"""Principals and permissions, decided by plain values.

The rules: docs/reference/permissions.md.

`IMPLIED_BY` lists the permissions that imply each permission. `UNASKED` are permissions of SQL Server that no statement
here needs. `NEEDS` lists the needs of each statement.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from servicebroker.model.errors import BrokerError
from servicebroker.model.names import FIRST_USER_ID

PUBLIC_ID, DBO_ID, GUEST_ID, DB_OWNER_ID, DB_DDLADMIN_ID = 0, 1, 2, 16384, 16387
DBO_SCHEMA_ID = 1  # the id of the schema dbo
NOBODY_ID = -1  # the owner id of objects without an owner in the database


class Kind(IntEnum):
    """The classes of securables, with the numbers of sys.database_permissions and sys.server_permissions.

    OBJECT (a table, view, sequence, procedure or function of T-SQL) is an exception: its class is 1, like a queue's.
    """

    DATABASE = 0
    QUEUE = 1
    SCHEMA = 3
    USER = 4
    MESSAGE_TYPE = 15
    CONTRACT = 16
    SERVICE = 17
    REMOTE_SERVICE_BINDING = 18
    ROUTE = 19
    CERTIFICATE = 25
    SERVER = 100
    LOGIN = 101
    OBJECT = 1001


KIND_WORDS = {
    Kind.DATABASE: "database",
    Kind.QUEUE: "queue",
    Kind.SCHEMA: "schema",
    Kind.USER: "user",
    Kind.MESSAGE_TYPE: "message type",
    Kind.CONTRACT: "service contract",
    Kind.SERVICE: "service",
    Kind.REMOTE_SERVICE_BINDING: "remote service binding",
    Kind.ROUTE: "route",
    Kind.CERTIFICATE: "certificate",
    Kind.SERVER: "server",
    Kind.LOGIN: "login",
    Kind.OBJECT: "object",
}
_EVERYWHERE = (Kind.DATABASE, Kind.SERVER)  # a grant on them applies to all objects in them


class FixedPrincipal(NamedTuple):
    """A principal that every database has; grants and denials of a fixed role are on the database."""

    principal_id: int
    name: str
    is_role: bool
    permissions: frozenset[str] = frozenset()
    denied: frozenset[str] = frozenset()


_WRITING = frozenset({"INSERT", "UPDATE", "DELETE"})
FIXED_PRINCIPALS = (
    FixedPrincipal(PUBLIC_ID, "public", True),
    FixedPrincipal(DBO_ID, "dbo", False),
    FixedPrincipal(GUEST_ID, "guest", False),
    FixedPrincipal(DB_OWNER_ID, "db_owner", True, frozenset({"CONTROL"})),
    FixedPrincipal(16385, "db_accessadmin", True, frozenset({"ALTER ANY USER", "CONNECT", "CREATE SCHEMA"})),
    FixedPrincipal(16386, "db_securityadmin", True, frozenset({"ALTER ANY ROLE", "CREATE SCHEMA", "VIEW DEFINITION"})),
    FixedPrincipal(
        DB_DDLADMIN_ID,
        "db_ddladmin",
        True,
        frozenset(
            {
                *("ALTER ANY CONTRACT", "ALTER ANY MESSAGE TYPE", "ALTER ANY REMOTE SERVICE BINDING"),
                *("ALTER ANY ROUTE", "ALTER ANY SCHEMA", "ALTER ANY SERVICE", "ALTER ANY CERTIFICATE"),
                *("CREATE QUEUE", "CREATE XML SCHEMA COLLECTION", "REFERENCES"),
                *("CREATE TABLE", "CREATE VIEW", "CREATE PROCEDURE", "CREATE FUNCTION", "CREATE TYPE"),
                "CREATE SYNONYM",
            }
        ),
    ),
    FixedPrincipal(16389, "db_backupoperator", True),
    FixedPrincipal(16390, "db_datareader", True, frozenset({"SELECT"})),
    FixedPrincipal(16391, "db_datawriter", True, _WRITING),
    FixedPrincipal(16392, "db_denydatareader", True, denied=frozenset({"SELECT"})),
    FixedPrincipal(16393, "db_denydatawriter", True, denied=_WRITING),
)
_OF_FIXED_ROLE = {principal.principal_id: principal for principal in FIXED_PRINCIPALS}


class User(NamedTuple):
    """A user of a broker database.

    `also` are the users of certificates that have signed the running module: their permissions count, too.
    """

    database_id: int
    database: str
    principal_id: int
    name: str
    also: tuple[int, ...] = ()

    @property
    def is_dbo(self) -> bool:
        """True for dbo, who has all permissions."""
        return self.principal_id == DBO_ID


class Login(NamedTuple):
    """A login of an instance, which decides its users in the databases.

    Without `login_id` and `postgres_role` it is unknown, and guest everywhere; an administrator is dbo everywhere.
    """

    name: str
    login_id: int | None = None
    postgres_role: str | None = None
    is_administrator: bool = False


class Securable(NamedTuple):
    """An object with permissions. `name` is its name in a refusal.

    `schema_id` is that of its schema, or its own for a schema; 0 without one.
    """

    kind: Kind
    major_id: int
    owner_id: int
    name: str
    schema_id: int = 0
    schema: str = "dbo"

    @property
    def is_built_in(self) -> bool:
        """True if every database has the object, and all users may refer to it."""
        return self.kind in _BROKERS and self.major_id < FIRST_USER_ID


class Entry(NamedTuple):
    """One grant or denial. `state` is one of the letters below."""

    kind: Kind
    major_id: int
    grantee_id: int
    permission: str
    state: str


GRANT, GRANT_WITH_GRANT_OPTION, DENY = "G", "W", "D"

Right = tuple[Kind, str]


_TABLES = ("SELECT", "INSERT", "UPDATE", "DELETE", "EXECUTE")


def _lattice() -> dict[Right, tuple[Right, ...]]:
    return _on_databases() | _on_schemas() | _on_objects() | _on_servers()


def _on_databases() -> dict[Right, tuple[Right, ...]]:
    database = Kind.DATABASE
    control, alter = (database, "CONTROL"), (database, "ALTER")
    lattice: dict[Right, tuple[Right, ...]] = {control: ()}
    for name in ("ALTER", "AUTHENTICATE", "CONNECT", "REFERENCES", "VIEW DEFINITION", *_TABLES):
        lattice[database, name] = (control,)
    for what in ("CERTIFICATE", "CONTRACT", "MESSAGE TYPE", "REMOTE SERVICE BINDING", "ROLE", "ROUTE", "SCHEMA"):
        lattice[database, f"ALTER ANY {what}"] = (alter,)
        lattice[database, f"CREATE {what}"] = ((database, f"ALTER ANY {what}"),)
    notification = "DATABASE EVENT NOTIFICATION"
    lattice[database, f"ALTER ANY {notification}"] = (alter,)
    lattice[database, "CREATE DATABASE DDL EVENT NOTIFICATION"] = ((database, f"ALTER ANY {notification}"),)
    lattice[database, "ALTER ANY SERVICE"] = (alter,)
    lattice[database, "CREATE SERVICE"] = ((database, "ALTER ANY SERVICE"),)
    lattice[database, "ALTER ANY USER"] = (alter,)
    for what in ("QUEUE", "XML SCHEMA COLLECTION", "TABLE", "VIEW", "PROCEDURE", "FUNCTION", "TYPE", "SYNONYM"):
        lattice[database, f"CREATE {what}"] = (alter,)
    return lattice


def _on_schemas() -> dict[Right, tuple[Right, ...]]:
    """Return the permissions on a schema, and on objects in one: tables and the like, and queues."""
    database, schema = Kind.DATABASE, Kind.SCHEMA
    lattice: dict[Right, tuple[Right, ...]] = {
        (schema, "CONTROL"): ((database, "CONTROL"),),
        (schema, "ALTER"): ((schema, "CONTROL"), (database, "ALTER ANY SCHEMA")),
    }
    for name in ("REFERENCES", "VIEW DEFINITION", *_TABLES):
        lattice[schema, name] = ((schema, "CONTROL"), (database, name))
    for kind, names in ((Kind.OBJECT, _TABLES), (Kind.QUEUE, ("SELECT",))):
        control_right = (kind, "CONTROL")
        lattice[control_right] = ((schema, "CONTROL"),)
        for name in ("ALTER", "REFERENCES", "VIEW DEFINITION", *names):
            lattice[kind, name] = (control_right, (schema, name))
        lattice[kind, "TAKE OWNERSHIP"] = (control_right,)
    lattice[Kind.QUEUE, "RECEIVE"] = ((Kind.QUEUE, "CONTROL"),)
    return lattice


def _on_objects() -> dict[Right, tuple[Right, ...]]:
    database = Kind.DATABASE
    lattice: dict[Right, tuple[Right, ...]] = {}
    for kind, any_of_kind in (ALTER_ANY | {Kind.USER: "ALTER ANY USER"}).items():
        if kind is Kind.QUEUE:
            continue
        control_right = (kind, "CONTROL")
        lattice[control_right] = ((database, "CONTROL"),)
        lattice[kind, "ALTER"] = (control_right, (database, any_of_kind))
        lattice[kind, "VIEW DEFINITION"] = (control_right, (database, "VIEW DEFINITION"))
        if kind in (Kind.CONTRACT, Kind.MESSAGE_TYPE, Kind.CERTIFICATE):
            lattice[kind, "REFERENCES"] = (control_right, (database, "REFERENCES"))
        own = {Kind.SERVICE: "SEND", Kind.USER: "IMPERSONATE"}.get(kind)
        if own is not None:
            lattice[kind, own] = (control_right,)
        if kind is not Kind.USER:
            lattice[kind, "TAKE OWNERSHIP"] = (control_right,)
    return lattice


def _on_servers() -> dict[Right, tuple[Right, ...]]:
    server, login = Kind.SERVER, Kind.LOGIN
    control, control_right = (server, "CONTROL SERVER"), (login, "CONTROL")
    return {
        control: (),
        **{
            (server, name): (control,)
            for name in (
                *("ALTER ANY DATABASE", "ALTER ANY ENDPOINT", "ALTER ANY LOGIN", "IMPERSONATE ANY LOGIN"),
                *("ALTER ANY EVENT NOTIFICATION", "AUTHENTICATE SERVER"),
            )
        },
        (server, "CREATE DDL EVENT NOTIFICATION"): ((server, "ALTER ANY EVENT NOTIFICATION"),),
        (server, "CREATE TRACE EVENT NOTIFICATION"): ((server, "ALTER ANY EVENT NOTIFICATION"),),
        (server, "CREATE ANY DATABASE"): ((server, "ALTER ANY DATABASE"),),
        (server, "CREATE ENDPOINT"): ((server, "ALTER ANY ENDPOINT"),),
        control_right: (control,),
        (login, "ALTER"): (control_right, (server, "ALTER ANY LOGIN")),
        (login, "IMPERSONATE"): (control_right, (server, "IMPERSONATE ANY LOGIN")),
        (login, "VIEW DEFINITION"): (control_right,),
    }


# the permission on the database that allows ALTER and DROP of all objects of the kind
ALTER_ANY = {
    Kind.QUEUE: "ALTER ANY SCHEMA",
    Kind.MESSAGE_TYPE: "ALTER ANY MESSAGE TYPE",
    Kind.CONTRACT: "ALTER ANY CONTRACT",
    Kind.SERVICE: "ALTER ANY SERVICE",
    Kind.REMOTE_SERVICE_BINDING: "ALTER ANY REMOTE SERVICE BINDING",
    Kind.ROUTE: "ALTER ANY ROUTE",
    Kind.CERTIFICATE: "ALTER ANY CERTIFICATE",
}
_BROKERS = frozenset(ALTER_ANY)
IMPLIED_BY = _lattice()  # every permission, with those that imply it in one step


def _unasked() -> frozenset[Right]:
    states = ("PERFORMANCE STATE", "SECURITY STATE", "SECURITY AUDIT")
    external = ("LANGUAGE", "LIBRARY", "MODEL")
    keys = ("ASYMMETRIC KEY", "SYMMETRIC KEY", "ASSEMBLY", "FULLTEXT CATALOG")
    on_server = {
        *("ALTER TRACE", "ALTER SETTINGS", "ALTER RESOURCES", "ALTER SERVER STATE", "SHUTDOWN", "CONNECT SQL"),
        *("UNSAFE ASSEMBLY", "EXTERNAL ACCESS ASSEMBLY", "ADMINISTER BULK OPERATIONS", "SELECT ALL USER SECURABLES"),
        *("CONNECT ANY DATABASE", "CREATE AVAILABILITY GROUP", "CREATE SERVER ROLE", "VIEW SERVER STATE"),
        *(f"VIEW ANY {what}" for what in ("DEFINITION", "DATABASE", "ERROR LOG")),
        *(f"VIEW ANY {what} DEFINITION" for what in ("PERFORMANCE", "SECURITY")),
        *(f"VIEW SERVER {what}" for what in states),
        *(f"ALTER ANY {what}" for what in ("CONNECTION", "CREDENTIAL", "LINKED SERVER", "SERVER AUDIT", "SERVER ROLE")),
        *(f"ALTER ANY {what}" for what in ("EVENT SESSION", "AVAILABILITY GROUP")),
        *("CREATE LOGIN", "CREATE ANY EVENT SESSION", "DROP ANY EVENT SESSION"),
        "VIEW ANY CRYPTOGRAPHICALLY SECURED DEFINITION",
    }
    on_database = {
        *("SHOWPLAN", "UNMASK", "TAKE OWNERSHIP", "CHECKPOINT", "BACKUP DATABASE", "BACKUP LOG", "CONNECT REPLICATION"),
        *("SUBSCRIBE QUERY NOTIFICATIONS", "EXECUTE ANY EXTERNAL SCRIPT", "KILL DATABASE CONNECTION"),
        *("ADMINISTER DATABASE BULK OPERATIONS", "ENABLE LEDGER", "ALTER LEDGER", "VIEW LEDGER CONTENT"),
        *("VIEW DATABASE STATE", "VIEW SECURITY DEFINITION", "VIEW PERFORMANCE DEFINITION"),
        *(f"VIEW DATABASE {what}" for what in states),
        *(f"VIEW ANY COLUMN {what} KEY DEFINITION" for what in ("ENCRYPTION", "MASTER")),
        *(f"CREATE {what}" for what in (*keys, "DEFAULT", "RULE", "DATABASE", "AGGREGATE")),
        *(f"ALTER ANY {what}" for what in (*keys, "MASK", "DATASPACE", "APPLICATION ROLE", "SECURITY POLICY")),
        *(f"ALTER ANY DATABASE {what}" for what in ("DDL TRIGGER", "AUDIT", "EVENT SESSION", "SCOPED CONFIGURATION")),
        *(f"ALTER ANY COLUMN {what} KEY" for what in ("ENCRYPTION", "MASTER")),
        *(f"ALTER ANY EXTERNAL {what}" for what in ("DATA SOURCE", "FILE FORMAT", "JOB", "STREAM", *external)),
        *(f"CREATE EXTERNAL {what}" for what in external),
        *(f"{verb} ANY SENSITIVITY CLASSIFICATION" for verb in ("ALTER", "VIEW")),
        *("CREATE USER", "VIEW CRYPTOGRAPHICALLY SECURED DEFINITION", "ALTER LEDGER CONFIGURATION"),
        *(f"{verb} ANY DATABASE EVENT SESSION" for verb in ("CREATE", "DROP")),
    }
    names = {
        Kind.SERVER: on_server,
        Kind.DATABASE: on_database,
        Kind.SCHEMA: {"VIEW CHANGE TRACKING", "UNMASK", "TAKE OWNERSHIP"},
        Kind.OBJECT: {"VIEW CHANGE TRACKING", "UNMASK"},
    }
    return frozenset((kind, name) for kind, listed in names.items() for name in listed)


UNASKED = _unasked()  # permissions of SQL Server that no statement here needs


def implied_by(kind: Kind, permission: str) -> frozenset[Right]:
    """Return the permission itself and all that imply it.

    Raises:
        BrokerError: 4606 objects of this kind have no such permission.
    """
    if (kind, permission) not in IMPLIED_BY:
        raise BrokerError(4606, permission)
    rights: set[Right] = set()
    left: list[Right] = [(kind, permission)]
    while left:
        right = left.pop()
        if right not in rights:
            rights.add(right)
            left += IMPLIED_BY[right]
    return frozenset(rights)


def fixed_roles_with(rights: frozenset[Right]) -> tuple[list[int], list[int]]:
    """Return the ids of fixed roles with one of these rights on the database, and of those with a denial of one."""
    on_database = {name for kind, name in rights if kind is Kind.DATABASE}
    roles = FIXED_PRINCIPALS
    return (
        [role.principal_id for role in roles if role.permissions & on_database],
        [role.principal_id for role in roles if role.denied & on_database],
    )


def is_allowed(identities: frozenset[int], permission: str, on: Securable, entries: Iterable[Entry]) -> bool:
    """Check whether a principal has a permission on an object.

    `identities` are the principal, its direct and indirect roles, and public. dbo and the owner have every permission.
    For others a DENY to any of the identities outweighs every grant.
    """
    if _owns(identities, on):
        return True
    rights = implied_by(on.kind, permission)
    states = {entry.state for entry in entries if _concerns(entry, identities, rights, on)}
    on_database = {name for kind, name in rights if kind is Kind.DATABASE}
    roles = [_OF_FIXED_ROLE[identity] for identity in identities & _OF_FIXED_ROLE.keys()]
    if DENY in states or any(role.denied & on_database for role in roles):
        return False
    if on.is_built_in and permission == "REFERENCES":
        return True
    return bool(states) or any(role.permissions & on_database for role in roles)


def is_denied(identities: frozenset[int], permission: str, on: Securable, entries: Iterable[Entry]) -> bool:
    """Check whether a permission on an object, or one that implies it, was denied; dbo and the owner never are.

    A principal without a denial need not have the permission: see `is_allowed`.
    """
    rights = implied_by(on.kind, permission)
    return not _owns(identities, on) and any(
        entry.state == DENY and _concerns(entry, identities, rights, on) for entry in entries
    )


def may_grant(identities: frozenset[int], permission: str, on: Securable, entries: Iterable[Entry]) -> bool:
    """Check whether a principal may grant, deny and revoke: with CONTROL, or the permission with its GRANT OPTION."""
    entries = list(entries)
    rights = implied_by(on.kind, permission)
    return is_allowed(identities, "CONTROL", on, entries) or (
        is_allowed(identities, permission, on, entries)
        and any(e.state == GRANT_WITH_GRANT_OPTION and _concerns(e, identities, rights, on) for e in entries)
    )


def _owns(identities: frozenset[int], on: Securable) -> bool:
    return DBO_ID in identities or (on.kind is not Kind.DATABASE and on.owner_id in identities)


def _concerns(entry: Entry, identities: frozenset[int], rights: frozenset[Right], on: Securable) -> bool:
    if entry.grantee_id not in identities or (entry.kind, entry.permission) not in rights:
        return False
    return entry.kind in _EVERYWHERE or entry.major_id == (on.schema_id if entry.kind is Kind.SCHEMA else on.major_id)


class Need(NamedTuple):
    """A permission that a statement needs on each of its objects of a kind. `number` is the error without it.

    `or_else`: a permission on the schema or the database of the object that suffices, too.
    """

    kind: Kind
    permission: str
    number: int
    or_else: Right | None = None


def _create(kind: str, *references: Kind) -> tuple[Need, ...]:
    return (
        Need(Kind.DATABASE, f"CREATE {kind}", 262),
        *(Need(referred, "REFERENCES", 15151) for referred in references),
    )


def _drop(kind: Kind) -> tuple[Need, ...]:
    return (Need(kind, "CONTROL", 15151, (Kind.DATABASE, ALTER_ANY[kind])),)


def _create_in_schema(kind: str) -> tuple[Need, ...]:
    return (Need(Kind.DATABASE, f"CREATE {kind}", 262), Need(Kind.SCHEMA, "ALTER", 2760))


def _with_tables(permission: str) -> tuple[Need, ...]:
    return (Need(Kind.OBJECT, permission, 229),)


_IN_CONVERSATION = (Need(Kind.QUEUE, "RECEIVE", 8494),)  # the queue of the conversation's own service
_ALTER_DATABASE = (Need(Kind.DATABASE, "ALTER", 15247),)
_ALTER_TABLE = (Need(Kind.OBJECT, "ALTER", 1088),)
_ALTER_MODULE = (Need(Kind.OBJECT, "ALTER", 3701),)
_DROP_OBJECT = (Need(Kind.OBJECT, "CONTROL", 3701, (Kind.SCHEMA, "ALTER")),)

NEEDS: dict[str, tuple[Need, ...]] = {
    "BEGIN DIALOG": (*_IN_CONVERSATION, Need(Kind.CONTRACT, "REFERENCES", 229)),
    "SEND": _IN_CONVERSATION,
    "END CONVERSATION": _IN_CONVERSATION,
    "END ENDED CONVERSATION WITH CLEANUP": (Need(Kind.DATABASE, "CONTROL", 28006),),
    "MOVE CONVERSATION": _IN_CONVERSATION,
    "BEGIN CONVERSATION TIMER": (Need(Kind.SERVICE, "SEND", 8494),),
    "RECEIVE": (Need(Kind.QUEUE, "RECEIVE", 229),),
    "GET CONVERSATION GROUP": (Need(Kind.QUEUE, "RECEIVE", 229),),
    # checked for the owner of the initiating service, at the target
    "ARRIVE": (Need(Kind.SERVICE, "SEND", 8494),),
    "CREATE MESSAGE TYPE": _create("MESSAGE TYPE"),
    "CREATE CONTRACT": _create("CONTRACT", Kind.MESSAGE_TYPE),
    "CREATE QUEUE": _create("QUEUE"),
    "CREATE SERVICE": _create("SERVICE", Kind.QUEUE, Kind.CONTRACT),
    "CREATE REMOTE SERVICE BINDING": _create("REMOTE SERVICE BINDING"),
    "CREATE ROUTE": _create("ROUTE"),
    "CREATE CERTIFICATE": _create("CERTIFICATE"),
    "ALTER MESSAGE TYPE": (Need(Kind.MESSAGE_TYPE, "ALTER", 15151),),
    "ALTER QUEUE": (Need(Kind.QUEUE, "ALTER", 15151),),
    "ALTER SERVICE": (
        Need(Kind.SERVICE, "ALTER", 15151),
        Need(Kind.QUEUE, "REFERENCES", 15151),
        Need(Kind.CONTRACT, "REFERENCES", 15151),
    ),
    "ALTER REMOTE SERVICE BINDING": (Need(Kind.REMOTE_SERVICE_BINDING, "ALTER", 15151),),
    "ALTER ROUTE": (Need(Kind.ROUTE, "ALTER", 15151),),
    "ALTER CERTIFICATE": (Need(Kind.CERTIFICATE, "ALTER", 15151),),
    "BACKUP CERTIFICATE": (Need(Kind.CERTIFICATE, "CONTROL", 15151),),
    "DROP MESSAGE TYPE": _drop(Kind.MESSAGE_TYPE),
    "DROP CONTRACT": _drop(Kind.CONTRACT),
    "DROP QUEUE": (Need(Kind.QUEUE, "CONTROL", 15151, (Kind.SCHEMA, "ALTER")),),
    "DROP SERVICE": _drop(Kind.SERVICE),
    "DROP REMOTE SERVICE BINDING": _drop(Kind.REMOTE_SERVICE_BINDING),
    "DROP ROUTE": _drop(Kind.ROUTE),
    "DROP CERTIFICATE": _drop(Kind.CERTIFICATE),
    "ALTER AUTHORIZATION": tuple(Need(kind, "TAKE OWNERSHIP", 15151) for kind in ALTER_ANY),
    # on the schema collection of a message type; checked on the database instead of the schema
    "FIND XML SCHEMA COLLECTION": (Need(Kind.DATABASE, "REFERENCES", 15151),),
    "CREATE XML SCHEMA COLLECTION": (Need(Kind.DATABASE, "CREATE XML SCHEMA COLLECTION", 262),),
    "ALTER XML SCHEMA COLLECTION": (Need(Kind.DATABASE, "ALTER ANY SCHEMA", 15151),),
    "DROP XML SCHEMA COLLECTION": (Need(Kind.DATABASE, "ALTER ANY SCHEMA", 15151),),
    "ALTER DATABASE": (Need(Kind.DATABASE, "ALTER", 5011),),
    "DROP DATABASE": (Need(Kind.DATABASE, "CONTROL", 3701),),
    "CREATE BROKER PRIORITY": _ALTER_DATABASE,
    "ALTER BROKER PRIORITY": _ALTER_DATABASE,
    "DROP BROKER PRIORITY": _ALTER_DATABASE,
    "CREATE EVENT NOTIFICATION ON DATABASE": (Need(Kind.DATABASE, "CREATE DATABASE DDL EVENT NOTIFICATION", 262),),
    "DROP EVENT NOTIFICATION ON DATABASE": (Need(Kind.DATABASE, "ALTER ANY DATABASE EVENT NOTIFICATION", 15151),),
    "MASTER KEY": (Need(Kind.DATABASE, "CONTROL", 15247),),
    "CREATE USER": (Need(Kind.DATABASE, "ALTER ANY USER", 15247),),
    "ALTER USER": (Need(Kind.USER, "ALTER", 15151),),
    "DROP USER": (Need(Kind.DATABASE, "ALTER ANY USER", 15151),),
    "CREATE ROLE": (Need(Kind.DATABASE, "CREATE ROLE", 15247),),
    "ALTER ROLE": (Need(Kind.DATABASE, "ALTER ANY ROLE", 15151),),
    "ALTER FIXED ROLE": (Need(Kind.DATABASE, "CONTROL", 15151),),
    "DROP ROLE": (Need(Kind.DATABASE, "ALTER ANY ROLE", 15151),),
    # for other users than the current one, and for roles that the current user is not in
    "AUTHORIZATION": (Need(Kind.USER, "IMPERSONATE", 15151),),
    "AUTHORIZATION OF A ROLE": (Need(Kind.DATABASE, "CONTROL", 15151),),
    "ALTER AUTHORIZATION ON DATABASE": (Need(Kind.DATABASE, "CONTROL", 15151),),
    # for other users than the current one
    "EXECUTE AS USER": (Need(Kind.USER, "IMPERSONATE", 15517),),
    "WITH EXECUTE AS": (Need(Kind.USER, "IMPERSONATE", 15151),),
    # of a signer, if a module of another database runs as its user
    "AUTHENTICATE": (Need(Kind.DATABASE, "AUTHENTICATE", 916),),
    "ADD SIGNATURE": (Need(Kind.OBJECT, "ALTER", 15151), Need(Kind.CERTIFICATE, "CONTROL", 15151)),
    "DROP SIGNATURE": (Need(Kind.OBJECT, "ALTER", 15151),),
    "CONNECT": (Need(Kind.DATABASE, "CONNECT", 916),),
    # T-SQL: tables and the like; a queue can be selected from like a table
    "SELECT": (*_with_tables("SELECT"), Need(Kind.QUEUE, "SELECT", 229)),
    "INSERT": _with_tables("INSERT"),
    "UPDATE": _with_tables("UPDATE"),
    "DELETE": _with_tables("DELETE"),
    "EXECUTE": _with_tables("EXECUTE"),
    "REFERENCES": _with_tables("REFERENCES"),
    "CREATE TABLE": _create_in_schema("TABLE"),
    "CREATE VIEW": _create_in_schema("VIEW"),
    "CREATE PROCEDURE": _create_in_schema("PROCEDURE"),
    "CREATE FUNCTION": _create_in_schema("FUNCTION"),
    "CREATE TYPE": _create_in_schema("TYPE"),
    "CREATE SYNONYM": _create_in_schema("SYNONYM"),
    "CREATE SEQUENCE": (Need(Kind.SCHEMA, "ALTER", 15247),),
    "CREATE SCHEMA": (Need(Kind.DATABASE, "CREATE SCHEMA", 15247),),
    # and CONTROL on the moved object
    "ALTER SCHEMA": (Need(Kind.SCHEMA, "ALTER", 15151),),
    "CREATE INDEX": _ALTER_TABLE,
    "CREATE TRIGGER": (Need(Kind.OBJECT, "ALTER", 2104),),
    "ALTER TABLE": _ALTER_TABLE,
    "TRUNCATE TABLE": _ALTER_TABLE,
    "SET IDENTITY_INSERT": _ALTER_TABLE,
    "ENABLE TRIGGER": _ALTER_TABLE,
    "ALTER VIEW": _ALTER_MODULE,
    "ALTER PROCEDURE": _ALTER_MODULE,
    "ALTER FUNCTION": _ALTER_MODULE,
    "ALTER TRIGGER": _ALTER_MODULE,
    "DROP TABLE": _DROP_OBJECT,
    "DROP VIEW": _DROP_OBJECT,
    "ALTER SEQUENCE": _ALTER_MODULE,
    "DROP SEQUENCE": _DROP_OBJECT,
    "DROP PROCEDURE": _DROP_OBJECT,
    "DROP FUNCTION": _DROP_OBJECT,
    "DROP SYNONYM": _DROP_OBJECT,
    "DROP INDEX": _ALTER_MODULE,
    "DROP TRIGGER": _ALTER_MODULE,
    "DROP TYPE": (Need(Kind.SCHEMA, "ALTER", 218),),
    "DROP SCHEMA": (Need(Kind.SCHEMA, "CONTROL", 15151, (Kind.DATABASE, "ALTER ANY SCHEMA")),),
    # the instance, in T-SQL: permissions of logins; administrators need none
    "EXECUTE AS LOGIN": (Need(Kind.LOGIN, "IMPERSONATE", 15406),),
    "CREATE DATABASE": (Need(Kind.SERVER, "CREATE ANY DATABASE", 262),),
    "SET TRUSTWORTHY": (Need(Kind.SERVER, "CONTROL SERVER", 15247),),
    "CHANGE MESSAGES": (Need(Kind.SERVER, "CONTROL SERVER", 15247),),  # sp_addmessage and similar procedures
    "AUTHENTICATE SERVER": (Need(Kind.SERVER, "AUTHENTICATE SERVER", 916),),
    "CREATE EVENT NOTIFICATION ON SERVER": (Need(Kind.SERVER, "CREATE DDL EVENT NOTIFICATION", 262),),
    "DROP EVENT NOTIFICATION ON SERVER": (Need(Kind.SERVER, "ALTER ANY EVENT NOTIFICATION", 15151),),
    "CREATE LOGIN": (Need(Kind.SERVER, "ALTER ANY LOGIN", 15247),),
    "ALTER LOGIN": (Need(Kind.LOGIN, "ALTER", 15151),),
    "DROP LOGIN": (Need(Kind.SERVER, "ALTER ANY LOGIN", 15151),),
    "CREATE ENDPOINT": (Need(Kind.SERVER, "CREATE ENDPOINT", 15247),),
    "ALTER ENDPOINT": (Need(Kind.SERVER, "ALTER ANY ENDPOINT", 15151),),
    "DROP ENDPOINT": (Need(Kind.SERVER, "ALTER ANY ENDPOINT", 15151),),
    "CONNECT ON ENDPOINT": (Need(Kind.SERVER, "CONTROL SERVER", 15151),),
    "PERMISSIONS OF THE INSTANCE": (Need(Kind.SERVER, "CONTROL SERVER", 4613),),
    "PERMISSIONS ON A LOGIN": (Need(Kind.LOGIN, "CONTROL", 15151),),
    "CREATE CERTIFICATE IN MASTER": (Need(Kind.SERVER, "CONTROL SERVER", 15247),),
    "ALTER CERTIFICATE IN MASTER": (Need(Kind.SERVER, "CONTROL SERVER", 15151),),
    "DROP CERTIFICATE IN MASTER": (Need(Kind.SERVER, "CONTROL SERVER", 15151),),
    "BACKUP CERTIFICATE IN MASTER": (Need(Kind.SERVER, "CONTROL SERVER", 15151),),
}


def refusal(statement: str, need: Need, on: Securable, user: User, subject: tuple[object, ...] = ()) -> BrokerError:
    """Return the error of a statement whose need is not met. `subject` is the object it names, if that is not `on`."""
    word, _, kind = statement.partition(" ")
    action = word.lower() if word in ("ALTER", "DROP") and need.permission != "REFERENCES" else "find"
    if statement == "WITH EXECUTE AS":
        action = "execute as"
    in_database = (need.permission, user.database)
    values: dict[int, tuple[object, ...]] = {
        218: subject or (on.name,),
        229: (need.permission, on.name, user.database, on.schema),
        262: (statement if statement == "CREATE DATABASE" else need.permission, "master")
        if need.kind is Kind.SERVER
        else in_database,
        916: (user.name, user.database),
        1088: (on.name,),
        2104: subject or (on.name,),
        2760: (on.name,),
        3701: (word.lower(), kind.lower(), *(subject or (on.name,))),
        5011: (user.database,),
        8494: (on.name,),
        15151: (action, *(subject or (KIND_WORDS[on.kind], on.name))),
        15247: (),
        15406: (on.name,),
        15517: (on.name,),
    }
    return BrokerError(need.number, *values.get(need.number, subject))
