"""Principals and permissions: who may do what with which object, decided over plain values (reference 01 section 13).

`IMPLIED_BY` says which permission brings which other; `NEEDS` says what each statement asks for.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import IntEnum
from typing import NamedTuple

from servicebroker.model.errors import BrokerError
from servicebroker.model.names import FIRST_USER_ID

PUBLIC, DBO, GUEST, DB_OWNER, DB_DDLADMIN = 0, 1, 2, 16384, 16387


class Kind(IntEnum):
    """What a permission can be on; the numbers are the classes of sys.database_permissions."""

    DATABASE = 0
    QUEUE = 1
    MESSAGE_TYPE = 15
    CONTRACT = 16
    SERVICE = 17
    REMOTE_SERVICE_BINDING = 18
    ROUTE = 19
    CERTIFICATE = 25


KIND_WORDS = {
    Kind.DATABASE: "database",
    Kind.QUEUE: "queue",
    Kind.MESSAGE_TYPE: "message type",
    Kind.CONTRACT: "service contract",
    Kind.SERVICE: "service",
    Kind.REMOTE_SERVICE_BINDING: "remote service binding",
    Kind.ROUTE: "route",
    Kind.CERTIFICATE: "certificate",
}


class FixedPrincipal(NamedTuple):
    """One that every database has; the permissions of a fixed role are on the database."""

    principal_id: int
    name: str
    is_role: bool
    permissions: frozenset[str] = frozenset()


FIXED_PRINCIPALS = (
    FixedPrincipal(PUBLIC, "public", True),
    FixedPrincipal(DBO, "dbo", False),
    FixedPrincipal(GUEST, "guest", False),
    FixedPrincipal(DB_OWNER, "db_owner", True, frozenset({"CONTROL"})),
    FixedPrincipal(
        DB_DDLADMIN,
        "db_ddladmin",
        True,
        frozenset(
            {
                *("ALTER ANY CONTRACT", "ALTER ANY MESSAGE TYPE", "ALTER ANY REMOTE SERVICE BINDING"),
                *("ALTER ANY ROUTE", "ALTER ANY SCHEMA", "ALTER ANY SERVICE", "ALTER ANY CERTIFICATE"),
                *("CREATE QUEUE", "CREATE XML SCHEMA COLLECTION", "REFERENCES"),
            }
        ),
    ),
)
_OF_FIXED_ROLE = {principal.principal_id: principal.permissions for principal in FIXED_PRINCIPALS}


class User(NamedTuple):
    """Who works in a broker database."""

    database_id: int
    database: str
    principal_id: int
    name: str

    @property
    def is_dbo(self) -> bool:
        """Nothing is ever refused to dbo."""
        return self.principal_id == DBO


class Securable(NamedTuple):
    """An object that permissions can be on; `name` is what a refusal calls it."""

    kind: Kind
    major_id: int
    owner_id: int
    name: str

    @property
    def is_built_in(self) -> bool:
        """Every database has it, and everybody may refer to it."""
        return self.kind is not Kind.DATABASE and self.major_id < FIRST_USER_ID


class Entry(NamedTuple):
    """One row of what was granted or denied; `state` is one of the letters below."""

    kind: Kind
    major_id: int
    grantee_id: int
    permission: str
    state: str


GRANT, GRANT_WITH_GRANT_OPTION, DENY = "G", "W", "D"

Right = tuple[Kind, str]


def _lattice() -> dict[Right, tuple[Right, ...]]:
    database = Kind.DATABASE
    control = (database, "CONTROL")
    lattice: dict[Right, tuple[Right, ...]] = {
        control: (),
        **{(database, name): (control,) for name in ("ALTER", "CONNECT", "REFERENCES", "VIEW DEFINITION")},
        **{
            (database, f"ALTER ANY {what}"): ((database, "ALTER"),)
            for what in (
                *("CERTIFICATE", "CONTRACT", "MESSAGE TYPE", "REMOTE SERVICE BINDING", "ROLE", "ROUTE", "SCHEMA"),
                *("SERVICE", "USER"),
            )
        },
        **{
            (database, f"CREATE {what}"): ((database, f"ALTER ANY {what}"),)
            for what in (
                *("CERTIFICATE", "CONTRACT", "MESSAGE TYPE", "REMOTE SERVICE BINDING", "ROLE", "ROUTE", "SERVICE"),
            )
        },
        (database, "CREATE QUEUE"): ((database, "ALTER"),),
        (database, "CREATE XML SCHEMA COLLECTION"): ((database, "ALTER"),),
    }
    own = {Kind.QUEUE: ("RECEIVE",), Kind.SERVICE: ("SEND",)}
    for kind, any_of_kind in ALTER_ANY.items():
        whole = (kind, "CONTROL")
        lattice[whole] = (control,)
        lattice[kind, "ALTER"] = (whole, (database, any_of_kind))
        lattice[kind, "VIEW DEFINITION"] = (whole, (database, "VIEW DEFINITION"))
        lattice |= {(kind, name): (whole,) for name in ("TAKE OWNERSHIP", *own.get(kind, ()))}
        if kind not in (Kind.SERVICE, Kind.ROUTE, Kind.REMOTE_SERVICE_BINDING):
            lattice[kind, "REFERENCES"] = (whole, (database, "REFERENCES"))
    return lattice


# the permission on the database to alter, and to drop, any object of a kind
ALTER_ANY = {
    Kind.QUEUE: "ALTER ANY SCHEMA",
    Kind.MESSAGE_TYPE: "ALTER ANY MESSAGE TYPE",
    Kind.CONTRACT: "ALTER ANY CONTRACT",
    Kind.SERVICE: "ALTER ANY SERVICE",
    Kind.REMOTE_SERVICE_BINDING: "ALTER ANY REMOTE SERVICE BINDING",
    Kind.ROUTE: "ALTER ANY ROUTE",
    Kind.CERTIFICATE: "ALTER ANY CERTIFICATE",
}
IMPLIED_BY = _lattice()  # every permission that exists, with those that imply it in one step


def bringing(kind: Kind, permission: str) -> frozenset[Right]:
    """The permission itself and all that imply it.

    Raises:
        BrokerError: 4606 when objects of this kind have no such permission.
    """
    if (kind, permission) not in IMPLIED_BY:
        raise BrokerError(4606, permission)
    found: set[Right] = set()
    left: list[Right] = [(kind, permission)]
    while left:
        right = left.pop()
        if right not in found:
            found.add(right)
            left += IMPLIED_BY[right]
    return frozenset(found)


def fixed_roles_with(rights: frozenset[Right]) -> list[int]:
    """The fixed roles that have one of these rights, on the database."""
    return [role for role, held in _OF_FIXED_ROLE.items() if {(Kind.DATABASE, name) for name in held} & rights]


def is_allowed(identities: frozenset[int], permission: str, on: Securable, entries: Iterable[Entry]) -> bool:
    """Whether somebody has a permission on an object.

    `identities` are the principal, the roles that it is in, directly or not, and public. dbo and the owner have
    every permission; else a DENY to any of the identities counts more than what was granted to any of them.
    """
    if DBO in identities or (on.kind is not Kind.DATABASE and on.owner_id in identities):
        return True
    rights = bringing(on.kind, permission)
    states = {entry.state for entry in entries if _concerns(entry, identities, rights, on)}
    if DENY in states:
        return False
    if on.is_built_in and permission == "REFERENCES":
        return True
    of_roles = {(Kind.DATABASE, name) for one in identities for name in _OF_FIXED_ROLE.get(one, ())}
    return bool(states) or bool(of_roles & rights)


def may_grant(identities: frozenset[int], permission: str, on: Securable, entries: Iterable[Entry]) -> bool:
    """Whether somebody may grant, deny and revoke: with CONTROL, or with the permission and its GRANT OPTION."""
    entries = list(entries)
    rights = bringing(on.kind, permission)
    return is_allowed(identities, "CONTROL", on, entries) or (
        is_allowed(identities, permission, on, entries)
        and any(e.state == GRANT_WITH_GRANT_OPTION and _concerns(e, identities, rights, on) for e in entries)
    )


def _concerns(entry: Entry, identities: frozenset[int], rights: frozenset[Right], on: Securable) -> bool:
    return (
        entry.grantee_id in identities
        and (entry.kind, entry.permission) in rights
        and (entry.kind is Kind.DATABASE or entry.major_id == on.major_id)
    )


class Need(NamedTuple):
    """A permission that a statement asks for, on each of its objects of that kind; `number` refuses it.

    `or_on_database`: a permission on the database that does as well.
    """

    kind: Kind
    permission: str
    number: int
    or_on_database: str = ""


def _create(kind: str, *references: Kind) -> tuple[Need, ...]:
    return (
        Need(Kind.DATABASE, f"CREATE {kind}", 262),
        *(Need(referred, "REFERENCES", 15151) for referred in references),
    )


def _drop(kind: Kind) -> tuple[Need, ...]:
    return (Need(kind, "CONTROL", 15151, ALTER_ANY[kind]),)


_IN_CONVERSATION = (Need(Kind.QUEUE, "RECEIVE", 8494),)  # the queue of the conversation's own service
_ALTER_DATABASE = (Need(Kind.DATABASE, "ALTER", 15247),)

NEEDS: dict[str, tuple[Need, ...]] = {
    "BEGIN DIALOG": (*_IN_CONVERSATION, Need(Kind.CONTRACT, "REFERENCES", 229)),
    "SEND": _IN_CONVERSATION,
    "END CONVERSATION": _IN_CONVERSATION,
    "END ENDED CONVERSATION WITH CLEANUP": (Need(Kind.DATABASE, "CONTROL", 28006),),
    "MOVE CONVERSATION": _IN_CONVERSATION,
    "BEGIN CONVERSATION TIMER": (Need(Kind.SERVICE, "SEND", 8494),),
    "RECEIVE": (Need(Kind.QUEUE, "RECEIVE", 229),),
    "GET CONVERSATION GROUP": (Need(Kind.QUEUE, "RECEIVE", 229),),
    # of the owner of the initiating service, at the target
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
    "DROP QUEUE": _drop(Kind.QUEUE),
    "DROP SERVICE": _drop(Kind.SERVICE),
    "DROP REMOTE SERVICE BINDING": _drop(Kind.REMOTE_SERVICE_BINDING),
    "DROP ROUTE": _drop(Kind.ROUTE),
    "DROP CERTIFICATE": _drop(Kind.CERTIFICATE),
    "ALTER AUTHORIZATION": tuple(Need(kind, "TAKE OWNERSHIP", 15151) for kind in ALTER_ANY),
    # of a collection that a message type names; on the database, where the permissions of a schema stand
    "FIND XML SCHEMA COLLECTION": (Need(Kind.DATABASE, "REFERENCES", 15151),),
    "CREATE XML SCHEMA COLLECTION": (Need(Kind.DATABASE, "CREATE XML SCHEMA COLLECTION", 262),),
    "ALTER XML SCHEMA COLLECTION": (Need(Kind.DATABASE, "ALTER ANY SCHEMA", 15151),),
    "DROP XML SCHEMA COLLECTION": (Need(Kind.DATABASE, "ALTER ANY SCHEMA", 15151),),
    "ALTER DATABASE": (Need(Kind.DATABASE, "ALTER", 5011),),
    "DROP DATABASE": (Need(Kind.DATABASE, "CONTROL", 15151),),
    "CREATE BROKER PRIORITY": _ALTER_DATABASE,
    "ALTER BROKER PRIORITY": _ALTER_DATABASE,
    "DROP BROKER PRIORITY": _ALTER_DATABASE,
    "MASTER KEY": (Need(Kind.DATABASE, "CONTROL", 15247),),
    "CREATE USER": (Need(Kind.DATABASE, "ALTER ANY USER", 15247),),
    "DROP USER": (Need(Kind.DATABASE, "ALTER ANY USER", 15151),),
    "CREATE ROLE": (Need(Kind.DATABASE, "CREATE ROLE", 15247),),
    "ALTER ROLE": (Need(Kind.DATABASE, "ALTER ANY ROLE", 15151),),
    "ALTER FIXED ROLE": (Need(Kind.DATABASE, "CONTROL", 15151),),
    "DROP ROLE": (Need(Kind.DATABASE, "ALTER ANY ROLE", 15151),),
    # for others than oneself and the roles that one is in
    "AUTHORIZATION": (Need(Kind.DATABASE, "CONTROL", 15151),),
    "EXECUTE AS": (Need(Kind.DATABASE, "CONTROL", 15517),),
    "CONNECT": (Need(Kind.DATABASE, "CONNECT", 916),),
}


def refusal(statement: str, need: Need, on: Securable, user: User, subject: tuple[object, ...] = ()) -> BrokerError:
    """The error of a statement whose need is not met. `subject` is what it names, where that is not `on`."""
    word = statement.split()[0]
    action = word.lower() if word in ("ALTER", "DROP") and need.permission != "REFERENCES" else "find"
    values: dict[int, tuple[object, ...]] = {
        229: (need.permission, on.name, user.database, "dbo"),
        262: (need.permission, user.database),
        916: (user.name, user.database),
        5011: (user.database,),
        8494: (on.name,),
        15151: (action, *(subject or (KIND_WORDS[on.kind], on.name))),
        15247: (),
    }
    return BrokerError(need.number, *values.get(need.number, subject))
