"""`servicebroker certificate ... --database DB`: the certificates of users, for secure conversations.

What importing one takes besides, the user, its binding or its permission, is made in the same command.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated, NamedTuple

import typer

from servicebroker.api.database import Database
from servicebroker.api.instance import Instance
from servicebroker.engine.security.principals import find_principal
from servicebroker.engine.security.user_certificates import (
    BY_PASSWORD,
    NONE,
    UserCertificate,
    find_certificate,
    find_certificates_by_user,
)
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.certificates import Facts
from servicebroker.model.security.dialog_security import choose
from servicebroker.operations.certificates import CreateCertificate
from servicebroker.store.running import run

PASSWORD = "SERVICEBROKER_MASTER_KEY_PASSWORD"  # the name of the variable

DatabaseOption = Annotated[
    str | None, typer.Option("--database", help="A certificate of a user of this database, for secure conversations.")
]
UserOption = Annotated[str | None, typer.Option("--user", help="Whose it is; made when it is missing. Default: dbo.")]


class Row(NamedTuple):
    """A listed certificate. `is_used`: this is the one that is used, if the user has several."""

    name: str
    whose: str
    is_own: bool
    is_used: bool
    by_password: bool
    facts: Facts

    def told(self) -> dict[str, object]:
        """Return the result as JSON values, for programs."""
        return {
            "name": self.name,
            "of": self.whose,
            "is_own": self.is_own,
            "is_used": self.is_used,
            "by_password": self.by_password,
            "subject": self.facts.subject,
            "start_date": self.facts.start_date.isoformat(),
            "expiry_date": self.facts.expiry_date.isoformat(),
            "sha256": self.facts.thumbprint.hex(),
        }


def listed(opened: Instance, database: str) -> list[Row]:
    """The certificates of the users of a database, by user and name."""
    broker_database = opened.database(database)
    with opened.connection() as connection:
        found = run(connection, find_certificates_by_user(broker_database.database_id))
    now, rows = opened.clock(), []
    for user, certificates in found.items():
        used = choose(certificates, now)
        for certificate in certificates:
            own, locked = certificate.key.encryption != NONE, certificate.key.encryption == BY_PASSWORD
            rows.append(Row(certificate.name, f"user {user}", own, certificate == used, locked, certificate.facts))
    return rows


def create_master_key(opened: Instance, database: str) -> None:
    """Make the master key of a database; its password comes from the environment, or is asked for."""
    password = os.environ.get(PASSWORD)
    if password is None:
        password = typer.prompt("Password of the master key", hide_input=True, confirmation_prompt=True)
    opened.database(database).create_master_key(password)


def create(opened: Instance, database: str, operation: CreateCertificate) -> UserCertificate:
    """Make a certificate of a user, with its private key under the master key of the database."""
    broker_database = opened.database(database)
    ensure_user(broker_database, operation.authorization)
    try:
        broker_database.run(operation)
    except BrokerError as refused:
        if refused.number == 15581:
            command = f"servicebroker certificate master-key --database {database}"
            raise BrokerError(15581, hint=f"Make one with {command}.") from None
        raise
    return find(broker_database, operation.name)


def import_(
    opened: Instance, database: str, name: str, file: Path, user: str | None, to_service: str | None, send: str | None
) -> UserCertificate:
    """Import a peer's certificate for the user that stands for the peer here.

    `to_service` is the remote service that has it, and gets a remote service binding; `send` is a service of ours to
    which it may send.
    """
    broker_database = opened.database(database)
    if user is None:
        raise BrokerError(402, "--user", "missing", "the user that stands for the peer", hint="Any name that is free.")
    ensure_user(broker_database, user)
    broker_database.create_certificate(name, authorization=user, file=file)
    if to_service is not None:
        broker_database.create_remote_service_binding(name, to_service=to_service, user=user)
    if send is not None:
        broker_database.grant("SEND", user, service=send)
    return find(broker_database, name)


def find(broker_database: Database, name: str) -> UserCertificate:
    """The certificate of that name.

    Raises:
        BrokerError: 15151 there is none.
    """
    with broker_database.instance.connection() as connection:
        return run(connection, find_certificate("find", broker_database.database_id, name))


def ensure_user(broker_database: Database, user: str | None) -> None:
    """The user; made, without a login, when it is missing."""
    if user is None:
        return
    try:
        with broker_database.instance.connection() as connection:
            run(connection, find_principal("find", broker_database.database_id, user))
    except BrokerError as missing:
        if missing.number != 15151:
            raise
        broker_database.create_user(user)
