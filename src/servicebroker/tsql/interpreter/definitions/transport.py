"""Certificates of the database master, which are those of the transport, and CONNECT ON ENDPOINT.

In master a certificate says who this instance is to others, or with FROM FILE and without a private key, whom it lets
in; the owner's login is then who that peer is. In every other database certificates belong to conversations.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from servicebroker.engine.security.principals import find_owner
from servicebroker.operations.certificates import CreateTransportCertificate
from servicebroker.operations.logins import DenyConnect, GrantConnect, RevokeConnect
from servicebroker.store.running import fetch
from servicebroker.tsql.context import MASTER, check_alone
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.definitions.binding import bound
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Definition, Permission
from servicebroker.tsql.types import DATETIME, NVARCHAR


def is_of_the_transport(machine: Machine) -> bool:
    """Whether the current database is the one whose certificates the endpoint uses."""
    name: str = machine.database.name
    return name.lower() == MASTER


def create_certificate(machine: Machine, statement: Definition, dates: Mapping[str, datetime]) -> None:
    """CREATE CERTIFICATE in master."""
    check_alone(machine, "CREATE CERTIFICATE in master")
    machine.context.demand("CREATE CERTIFICATE IN MASTER")
    owner, private_key = statement.clauses.get("authorization"), statement.clauses.get("private_key", {})
    if owner is not None:  # the instance owns its own certificates, whoever is named
        machine.context.ask(find_owner(machine.database.user, owner))
    is_of_a_peer = "file" in statement.clauses and not private_key
    login = _login_of(machine, owner) if is_of_a_peer else None
    clauses = {**statement.clauses, **private_key, **dates, "authorization": login}
    machine.instance.run(bound(machine, replace(statement, clauses=clauses), CreateTransportCertificate))


def check_alteration(statement: Definition) -> None:
    """Refuse what ALTER CERTIFICATE never does in master.

    Raises:
        TsqlError: 40515.
    """
    if set(statement.clauses) != {"private_key"} or "private_key_file" in statement.clauses["private_key"]:
        raise unsupported(
            "ALTER CERTIFICATE in master, but for the passwords of its private key,",
            "Create another one, and drop this one.",
            statement.line,
        )


def check_endpoint_permission(statement: Permission) -> None:
    """Refuse other permissions than CONNECT.

    Raises:
        TsqlError: 40515.
    """
    if statement.permissions != ("CONNECT",):
        raise unsupported(
            f"{statement.verb} {', '.join(statement.permissions)} ON ENDPOINT",
            "Endpoints have CONNECT; they are altered by the owner of the instance.",
            statement.line,
        )


def connect_on_endpoint(machine: Machine, statement: Permission) -> None:
    """GRANT, DENY and REVOKE CONNECT ON ENDPOINT, for logins.

    Raises:
        BrokerError: 15151 no such endpoint or login.
    """
    assert statement.name is not None
    check_alone(machine, f"{statement.verb} CONNECT ON ENDPOINT")
    machine.context.demand("CONNECT ON ENDPOINT", "endpoint", statement.name.own)
    operation = {"GRANT": GrantConnect, "DENY": DenyConnect, "REVOKE": RevokeConnect}[statement.verb]
    for login in statement.principals:
        machine.instance.run(operation(statement.name.own, login.strip("[]")))


def dates(machine: Machine, clauses: Mapping[str, Any]) -> dict[str, datetime]:
    """START_DATE and EXPIRY_DATE, where they are given.

    Raises:
        TsqlError: 402 the certificate expires before it begins; 241 this is no date.
    """
    given: dict[str, datetime] = {
        name: date(clauses[name]) for name in ("start_date", "expiry_date") if name in clauses
    }
    valid_from = given.get("start_date", machine.instance.clock())
    if given.get("expiry_date", datetime.max.replace(tzinfo=UTC)) <= valid_from:
        raise TsqlError(
            402,
            f"EXPIRY_DATE '{clauses['expiry_date']}' must be later than the certificate's first day, "
            f"{valid_from:%Y-%m-%d}. Write a later date, or leave it out: the certificate then is valid for a year.",
        )
    return given


def date(said: str) -> datetime:
    """A date of CREATE CERTIFICATE, in UTC.

    Raises:
        TsqlError: 241 it is none.
    """
    made = convert(said, NVARCHAR, DATETIME)
    assert isinstance(made, datetime)
    return made.replace(tzinfo=UTC)


def _login_of(machine: Machine, user: str | None) -> str | None:
    """The login of a user of master; None for dbo, whose certificates let a peer in by themselves.

    Raises:
        TsqlError: 15151 the user has no login, so that nothing could be granted to the peer.
    """
    if user is None or user.lower() == "dbo":
        return None
    rows = fetch(
        machine.connection,
        "transport.login_of",
        "select l.name from servicebroker.principals p join servicebroker.logins l using (login_id) "
        "where p.database_id = $1 and lower(p.name) = lower($2)",
        (machine.database.database_id, user),
    )
    if not rows:
        raise TsqlError(
            15151, f"Cannot find the login of the user '{user}'. Write CREATE USER {user} FOR LOGIN, so that the peer "
            "that has this certificate can be granted CONNECT ON ENDPOINT.",
        )  # fmt: skip
    return str(rows[0][0])
