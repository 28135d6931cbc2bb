"""`servicebroker certificate ... --database NAME`: certificates of users, for dialog security.

Importing a peer's certificate also creates its user, the remote service binding and the permission, if asked for.
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

PASSWORD_VARIABLE = "SERVICEBROKER_MASTER_KEY_PASSWORD"

DatabaseOption = Annotated[
    str | None,
    typer.Option(
        "--database",
        metavar="NAME",
        help="Certificates of users of this database (dialog security), not those of the instance.",
    ),
]
UserOption = Annotated[
    str | None,
    typer.Option(
        "--user", metavar="NAME", help="The user that owns the certificate; created if missing. Default: dbo."
    ),
]


class Row(NamedTuple):
    """A row of `certificate list`.

    `owner` is a user, this instance, or a peer. `is_own`: the private key is here. `is_used`: the
    owner's new conversations or connections use this certificate. `by_password`: a password encrypts its private key.
    """

    name: str
    owner: str
    is_own: bool
    is_used: bool
    by_password: bool
    facts: Facts

    def to_json(self) -> dict[str, object]:
        """Return the row as values for JSON."""
        return {
            "name": self.name,
            "of": self.owner,
            "is_own": self.is_own,
            "is_used": self.is_used,
            "by_password": self.by_password,
            "subject": self.facts.subject,
            "start_date": self.facts.start_date.isoformat(),
            "expiry_date": self.facts.expiry_date.isoformat(),
            "sha256": self.facts.thumbprint.hex(),
        }


def list_certificates(opened: Instance, database: str) -> list[Row]:
    """Return the certificates of the users of a database, ordered by user and name."""
    broker_database = opened.database(database)
    with opened.connection() as connection:
        certificates_by_user = run(connection, find_certificates_by_user(broker_database.database_id))
    now, rows = opened.clock(), []
    for user, certificates in certificates_by_user.items():
        used = choose(certificates, now)
        for certificate in certificates:
            encryption = certificate.key.encryption
            rows.append(
                Row(
                    certificate.name,
                    f"user {user}",
                    is_own=encryption != NONE,
                    is_used=certificate == used,
                    by_password=encryption == BY_PASSWORD,
                    facts=certificate.facts,
                )
            )
    return rows


def create_master_key(opened: Instance, database: str) -> None:
    """Create the master key of a database. Its password comes from the environment, else from a prompt."""
    password = os.environ.get(PASSWORD_VARIABLE)
    if password is None:
        password = typer.prompt("Password of the master key", hide_input=True, confirmation_prompt=True)
    opened.database(database).create_master_key(password)


def create(opened: Instance, database: str, operation: CreateCertificate) -> UserCertificate:
    """Create a certificate of a user. The master key of the database encrypts its private key.

    Raises:
        BrokerError: 15581 the database has no master key.
    """
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
    """Import a peer's certificate, and assign it to a local user. The peer acts as that user.

    Args:
        opened: the instance.
        database: the broker database of the user.
        name: the name of the certificate.
        file: the exported certificate.
        user: the local user; created if it is missing.
        to_service: the remote service of the peer, bound to the user by a remote service binding.
        send: a local service to which the user gets SEND.
    """
    broker_database = opened.database(database)
    if user is None:
        raise BrokerError(402, "--user", "missing", "the user as which the peer acts", hint="Use any unused name.")
    ensure_user(broker_database, user)
    broker_database.create_certificate(name, authorization=user, file=file)
    if to_service is not None:
        broker_database.create_remote_service_binding(name, to_service=to_service, user=user)
    if send is not None:
        broker_database.grant("SEND", user, service=send)
    return find(broker_database, name)


def find(broker_database: Database, name: str) -> UserCertificate:
    """Return the certificate with this name.

    Raises:
        BrokerError: 15151 there is no such certificate.
    """
    with broker_database.instance.connection() as connection:
        return run(connection, find_certificate("find", broker_database.database_id, name))


def ensure_user(broker_database: Database, user: str | None) -> None:
    """Create the user, without a login, if it is missing. None does nothing."""
    if user is None:
        return
    try:
        with broker_database.instance.connection() as connection:
            run(connection, find_principal("find", broker_database.database_id, user))
    except BrokerError as missing:
        if missing.number != 15151:
            raise
        broker_database.create_user(user)
