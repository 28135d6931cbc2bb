"""Certificates of the database master, which the transport uses, and CONNECT ON ENDPOINT.

A certificate in master identifies this instance to others. FROM FILE without a private key, it identifies a peer that
may connect, and the owner's login is the login of that peer. Certificates of other databases belong to conversations.
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
from servicebroker.tsql.context import MASTER, refuse_in_transaction
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.definitions.binding import bind_operation
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Definition, Permission
from servicebroker.tsql.types import DATETIME, NVARCHAR


def is_in_master(machine: Machine) -> bool:
    """Return True if the current database is master, whose certificates the endpoint uses."""
    name: str = machine.database.name
    return name.lower() == MASTER


def create_certificate(machine: Machine, statement: Definition, dates: Mapping[str, datetime]) -> None:
    """Run CREATE CERTIFICATE in master."""
    refuse_in_transaction(machine, "CREATE CERTIFICATE in master")
    machine.context.require("CREATE CERTIFICATE IN MASTER")
    owner, private_key = statement.clauses.get("authorization"), statement.clauses.get("private_key", {})
    if owner is not None:  # only checked: the instance owns its certificates
        machine.context.ask(find_owner(machine.database.user, owner))
    is_of_peer = "file" in statement.clauses and not private_key
    login = _login_of(machine, owner) if is_of_peer else None
    clauses = {**statement.clauses, **private_key, **dates, "authorization": login}
    machine.instance.run(bind_operation(machine, replace(statement, clauses=clauses), CreateTransportCertificate))


def check_alteration(statement: Definition) -> None:
    """Refuse an ALTER CERTIFICATE in master of anything but the passwords of the private key.

    Raises:
        TsqlError: 40515 another change.
    """
    if set(statement.clauses) != {"private_key"} or "private_key_file" in statement.clauses["private_key"]:
        raise unsupported(
            "ALTER CERTIFICATE in master, except for the passwords of the private key,",
            "Create a new certificate and drop this one.",
            statement.line,
        )


def check_endpoint_permission(statement: Permission) -> None:
    """Refuse permissions on an endpoint other than CONNECT.

    Raises:
        TsqlError: 40515 another permission.
    """
    if statement.permissions != ("CONNECT",):
        raise unsupported(
            f"{statement.keyword} {', '.join(statement.permissions)} ON ENDPOINT",
            "Use CONNECT. Only the owner of the instance alters endpoints.",
            statement.line,
        )


def connect_on_endpoint(machine: Machine, statement: Permission) -> None:
    """Run GRANT, DENY or REVOKE CONNECT ON ENDPOINT, for logins.

    Raises:
        BrokerError: 15151 no such endpoint or login.
    """
    assert statement.name is not None
    refuse_in_transaction(machine, f"{statement.keyword} CONNECT ON ENDPOINT")
    machine.context.require("CONNECT ON ENDPOINT", "endpoint", statement.name.object)
    operation = {"GRANT": GrantConnect, "DENY": DenyConnect, "REVOKE": RevokeConnect}[statement.keyword]
    for login in statement.principals:
        machine.instance.run(operation(statement.name.object, login.strip("[]")))


def parse_dates(clauses: Mapping[str, Any], now: datetime) -> dict[str, datetime]:
    """Return START_DATE and EXPIRY_DATE, if they are given. Without START_DATE the certificate begins now.

    Raises:
        TsqlError: 402 the certificate expires before it begins, 241 a text is not a date.
    """
    dates: dict[str, datetime] = {
        name: parse_date(clauses[name]) for name in ("start_date", "expiry_date") if name in clauses
    }
    valid_from = dates.get("start_date", now)
    if dates.get("expiry_date", datetime.max.replace(tzinfo=UTC)) <= valid_from:
        raise TsqlError(
            402,
            f"EXPIRY_DATE '{clauses['expiry_date']}' must be later than the certificate's first day, "
            f"{valid_from:%Y-%m-%d}. Write a later date, or leave it out: the certificate then is valid for a year.",
        )
    return dates


def parse_date(text: str) -> datetime:
    """Return a date of CREATE CERTIFICATE, in UTC.

    Raises:
        TsqlError: 241 the text is not a date.
    """
    moment = convert(text, NVARCHAR, DATETIME)
    assert isinstance(moment, datetime)
    return moment.replace(tzinfo=UTC)


def _login_of(machine: Machine, user: str | None) -> str | None:
    """Return the login of a user of master. None for dbo, whose certificates let a peer in without a login.

    Raises:
        TsqlError: 15151 the user has no login, so that nothing could be granted to the peer.
    """
    if user is None or user.lower() == "dbo":
        return None
    rows = fetch(
        machine.connection,
        "transport_certificates.login_of",
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
