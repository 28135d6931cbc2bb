"""Reasons for which a client of SQL Server is refused, and advice for each."""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum


class ClientRefusal(StrEnum):
    """The kind of a reason."""

    ENCRYPTION = "no encryption"
    CERTIFICATE = "certificate"
    TLS = "TLS"
    VERSION = "version"
    METHOD = "sign-in method"
    PASSWORD = "password"
    LOGIN = "login"
    DISABLED = "disabled login"
    DELAY = "delay"
    USER = "no user"
    DATABASE = "database"
    LIMIT = "limit"


REFUSAL_TEXTS: Mapping[str, tuple[str, str]] = {  # kind -> problem, advice
    ClientRefusal.ENCRYPTION: (
        "A client that does not encrypt was refused",
        "Set Encrypt=yes in its connection string (FreeTDS: encryption = require). Only clients of the same "
        "machine may send in plain text.",
    ),
    ClientRefusal.CERTIFICATE: (
        "A client closed the connection because of the certificate",
        "Start servicebroker serve with --tds-certificate and --tds-key: a certificate that the client trusts, with "
        "the name that it connects to. Or set TrustServerCertificate=yes in its connection string.",
    ),
    ClientRefusal.TLS: (
        "A client and the server found no common encryption",
        "Let the client use TLS 1.2 or newer. Encrypt=strict needs a driver that speaks TDS 8.0.",
    ),
    ClientRefusal.VERSION: (
        "A client of another version of TDS was refused",
        "Use a newer driver, or set its TDS version to 7.1 or higher.",
    ),
    ClientRefusal.METHOD: (
        "A client asked for a Windows account or an access token",
        "Set a login and its password in the connection string: UID=...;PWD=..., without Trusted_Connection.",
    ),
    ClientRefusal.PASSWORD: (
        "A client sent a wrong password",
        "ALTER LOGIN ... WITH PASSWORD sets another one. sa is disabled until it has one.",
    ),
    ClientRefusal.LOGIN: (
        "A client named a login that does not exist",
        "CREATE LOGIN ... WITH PASSWORD, and CREATE USER ... FOR LOGIN in each database that it uses.",
    ),
    ClientRefusal.DISABLED: ("A client used a disabled login", "ALTER LOGIN ... ENABLE lets it in."),
    ClientRefusal.DELAY: (
        "A client tried again during the delay after wrong passwords",
        "Wait a minute. Look in servicebroker audit for an address that guesses.",
    ),
    ClientRefusal.USER: (
        "A login has no user in the database that it asked for",
        "CREATE USER ... FOR LOGIN in that database, or name another database in the connection string.",
    ),
    ClientRefusal.DATABASE: (
        "A client asked for a database that does not exist",
        "Correct the database in the connection string, or CREATE DATABASE.",
    ),
    ClientRefusal.LIMIT: (
        "A client was refused because too many are connected",
        "Close connections, or let pools keep fewer; another servicebroker serve --tds-only takes more.",
    ),
}
