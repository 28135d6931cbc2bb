"""Certificates of the database master, which are those of the transport, and CONNECT ON ENDPOINT.

In master a certificate says who this instance is to others, or with FROM FILE and without a private key, whom it lets
in; the owner's login is then who that peer is. In every other database certificates belong to conversations.
"""

from __future__ import annotations

import math
from datetime import UTC, datetime
from typing import Any

from servicebroker.tsql.context import MASTER, check_alone
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.errors import TsqlError, unsupported
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.syntax import Definition, Permission
from servicebroker.tsql.types import DATETIME, NVARCHAR

_DAY = 86_400  # seconds


def is_of_the_transport(machine: Machine) -> bool:
    """Whether the current database is the one whose certificates the endpoint uses."""
    name: str = machine.database.name
    return name.lower() == MASTER


def create_certificate(machine: Machine, statement: Definition, private_key: dict[str, Any]) -> None:
    """CREATE CERTIFICATE in master."""
    check_alone(machine, "CREATE CERTIFICATE in master")
    machine.context.demand("CREATE CERTIFICATE IN MASTER")
    clauses, name = statement.clauses, statement.name.own
    if "password" in clauses or private_key.pop("encryption_password", None) is not None:
        raise unsupported(
            "ENCRYPTION BY PASSWORD in master",
            "Leave it out: the endpoint must open the key, which is a file that only the instance's owner reads.",
            statement.line,
        )
    if "file" in clauses:
        login = None if private_key else _login_of(machine, clauses.get("authorization"))
        machine.instance.create_certificate(name, file=clauses["file"], authorization=login, **private_key)
        return
    now = machine.instance.clock()
    if "start_date" in clauses and date(clauses["start_date"]) > now:
        raise unsupported("A START_DATE in the future in master", "Create the certificate then.", statement.line)
    given: dict[str, Any] = {}
    if "subject" in clauses:
        given["subject"] = clauses["subject"]
    if "expiry_date" in clauses:
        check_expiry(clauses["expiry_date"], now)
        given["days"] = math.ceil((date(clauses["expiry_date"]) - now).total_seconds() / _DAY)
    machine.instance.create_certificate(name, **given)


def backup_certificate(machine: Machine, statement: Definition, private_key: dict[str, Any]) -> None:
    """BACKUP CERTIFICATE in master: what is handed to peers."""
    machine.context.demand("BACKUP CERTIFICATE IN MASTER", "certificate", statement.name.own)
    if private_key:
        raise unsupported(
            "BACKUP CERTIFICATE WITH PRIVATE KEY in master",
            "The key is a file in the instance's folder `keys`, named after the certificate: copy that.",
            statement.line,
        )
    machine.instance.backup_certificate(statement.name.own, statement.clauses["file"])


def connect_on_endpoint(machine: Machine, statement: Permission) -> None:
    """GRANT, DENY and REVOKE CONNECT ON ENDPOINT, for logins.

    Raises:
        TsqlError: 40515 for other permissions than CONNECT.
        BrokerError: 15151 no such endpoint or login.
    """
    if statement.permissions != ("CONNECT",) or statement.name is None:
        raise unsupported(
            f"{statement.verb} {', '.join(statement.permissions)} ON ENDPOINT",
            "Endpoints have CONNECT; they are altered by the owner of the instance.",
            statement.line,
        )
    check_alone(machine, f"{statement.verb} CONNECT ON ENDPOINT")
    machine.context.demand("CONNECT ON ENDPOINT", "endpoint", statement.name.own)
    instance = machine.instance
    done = {"GRANT": instance.grant_connect, "DENY": instance.deny_connect, "REVOKE": instance.revoke_connect}
    for login in statement.principals:
        done[statement.verb](statement.name.own, login.strip("[]"))


def check_expiry(said: str, valid_from: datetime) -> None:
    """That a certificate is valid at some time.

    Raises:
        TsqlError: 402 it expires before it begins; 241 this is no date.
    """
    if date(said) <= valid_from:
        raise TsqlError(
            402, f"EXPIRY_DATE '{said}' must be later than the certificate's first day, {valid_from:%Y-%m-%d}. "
            "Write a later date, or leave it out: the certificate then is valid for a year.",
        )  # fmt: skip


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
    rows = machine.connection.run_prepared(
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
