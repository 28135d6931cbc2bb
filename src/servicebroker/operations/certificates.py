"""CREATE, ALTER, DROP and BACKUP CERTIFICATE: certificates of users in a database, and of an instance's transport.

Files are on the machine where the operation runs.
"""

from __future__ import annotations

import os
from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime
from typing import ClassVar, TypeAlias

from servicebroker.model.arguments import check_switch, checked_password
from servicebroker.model.errors import BrokerError
from servicebroker.operations.operation import Definition, Named

File: TypeAlias = str | os.PathLike[str]


@dataclass(frozen=True, slots=True)
class _NewCertificate:
    """A certificate that is created, or read from a file.

    Args:
        name: the name of the certificate, case-insensitive.
        authorization: the user that owns the certificate. Default: the current user.
        subject: "CN=...", or a plain name. Default: the name of the certificate.
        start_date: the start of its validity, with a time zone. Default: now.
        expiry_date: the end of its validity. Default: a year after the start.
        encryption_password: encrypts the private key, instead of the master key.
        file: a certificate in PEM or DER.
        private_key_file: its private key in PKCS #8. Omit it for the certificate of another party.
        decryption_password: the password of the private key's file.
    """

    name: str
    _: KW_ONLY
    authorization: str | None = None
    subject: str | None = None
    start_date: datetime | None = None
    expiry_date: datetime | None = None
    encryption_password: str | None = field(default=None, repr=False)
    file: File | None = None
    private_key_file: File | None = None
    decryption_password: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Refuse clauses that exclude each other.

        Raises:
            BrokerError: 402 such clauses.
        """
        if self.file is None:
            if self.private_key_file is not None or self.decryption_password is not None:
                raise BrokerError(402, "WITH PRIVATE KEY", "used without FROM FILE", "used only with FROM FILE")
        elif any(option is not None for option in (self.subject, self.start_date, self.expiry_date)):
            raise BrokerError(402, "SUBJECT, START_DATE or EXPIRY_DATE", "used with FROM FILE", "omitted")


@dataclass(frozen=True, slots=True)
class CreateCertificate(_NewCertificate, Definition[None]):
    """CREATE CERTIFICATE name AUTHORIZATION user [FROM FILE = ... [WITH PRIVATE KEY (FILE = ...)]] ...

    Without `file`, create a self-signed certificate with a key on the curve P-256.

    Args:
        active_for_begin_dialog: whether new conversations may use the certificate.

    Raises:
        BrokerError: 15232 the name is taken, or the certificate exists already; 15208 no such file, or wrong content;
            15465 wrong password, 15581 the master key is missing or not open, 15116 the password is too short, 15151
            no such user, 262 no permission, 402 a wrong argument.
    """

    _: KW_ONLY
    active_for_begin_dialog: bool = True


@dataclass(frozen=True, slots=True)
class AlterCertificate(Definition[None]):
    """ALTER CERTIFICATE name: WITH ACTIVE FOR BEGIN_DIALOG, REMOVE PRIVATE KEY, or WITH PRIVATE KEY (...).

    WITH PRIVATE KEY encrypts the private key again, by `encryption_password` or by the master key.

    Args:
        name: the name of the certificate, case-insensitive.
        active_for_begin_dialog: whether new conversations may use the certificate.
        remove_private_key: True to remove its private key.
        private_key_file: the file of a private key. Default: the stored key.
        decryption_password: the present password of the key. Omit it if the master key encrypts the key.
        encryption_password: encrypts the key, instead of the master key.

    Raises:
        BrokerError: 15151 no such certificate, 15208 the file cannot be read, 15465 wrong password, 15556 no private
            key, 15581 the master key is missing or not open, 15116 the password is too short, 402 a wrong argument.
    """

    name: str
    _: KW_ONLY
    active_for_begin_dialog: bool | None = None
    remove_private_key: bool = False
    private_key_file: File | None = None
    decryption_password: str | None = field(default=None, repr=False)
    encryption_password: str | None = field(default=None, repr=False)

    @property
    def changes_key(self) -> bool:
        """True if the statement has WITH PRIVATE KEY."""
        options = self.private_key_file, self.decryption_password, self.encryption_password
        return any(option is not None for option in options)

    def check(self) -> None:
        """Refuse a statement without clauses, and clauses that exclude each other.

        Raises:
            BrokerError: 402 such a statement.
        """
        check_switch("REMOVE PRIVATE KEY", self.remove_private_key)
        if self.active_for_begin_dialog is None and not self.remove_private_key and not self.changes_key:
            raise BrokerError(402, "ALTER CERTIFICATE", "without a clause", "given at least one")
        if self.remove_private_key and self.changes_key:
            raise BrokerError(402, "WITH PRIVATE KEY", "used with REMOVE PRIVATE KEY", "omitted")


@dataclass(frozen=True, slots=True)
class DropCertificate(Named, Definition[None]):
    """DROP CERTIFICATE. Conversations that have exchanged session keys continue.

    Raises:
        BrokerError: 15151 no such certificate, 15559 a user was created for it, 15352 it has signed a module.
    """


@dataclass(frozen=True, slots=True)
class BackupCertificate(Definition[None]):
    """BACKUP CERTIFICATE name TO FILE = ... [WITH PRIVATE KEY (FILE = ..., ENCRYPTION BY PASSWORD = ...)].

    Give the file of the certificate to peers, and the private key to nobody. Either both files are written, or none.

    Args:
        name: the name of the certificate, case-insensitive.
        file: the new file for the certificate, in PEM.
        private_key_file: the new file for the private key.
        encryption_password: encrypts the private key in its file.
        decryption_password: the present password of the private key, if it has one.

    Raises:
        BrokerError: 15151 no such certificate, 15240 a file exists already or cannot be written, 15556 the private key
            is missing, 15465 wrong password, 15116 the password is too short, 402. In a database also 15581 the master
            key is missing or not open; in the instance also 15313 the private key has no password, 15247 no permission.
    """

    name: str
    file: File
    _: KW_ONLY
    private_key_file: File | None = None
    encryption_password: str | None = field(default=None, repr=False)
    decryption_password: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Refuse a file for the private key without a password or the reverse, and a password that is too short.

        Raises:
            BrokerError: 402 one of the two is missing, 15116 the password is too short.
        """
        if (self.private_key_file is None) != (self.encryption_password is None):
            raise BrokerError(402, "WITH PRIVATE KEY", "incomplete", "a file and the password that encrypts it")
        if self.encryption_password is not None:
            checked_password("ENCRYPTION BY PASSWORD", self.encryption_password, is_new=True)


# ---------------------------------------------------------------- transport certificates


@dataclass(frozen=True, slots=True)
class CreateTransportCertificate(_NewCertificate, Definition[bytes]):
    """CREATE CERTIFICATE, as in the database master: the identity of this instance, or of a peer, in the network.

    Args:
        authorization: the login of a peer with this certificate; the login needs CONNECT on the endpoint. Without a
            login, every peer with the certificate may connect.
        subject: "CN=...", or a plain name, for a new certificate. Default: its name. Peers do not check it.
        start_date: the start of a new certificate's validity, with a time zone. Default: now; clocks of peers may be 10
            minutes behind.
        encryption_password: encrypts the private key. The endpoint cannot use the key before `alter_certificate` has
            removed the password.
        file: a certificate in PEM or DER of a peer, or with `private_key_file` of this instance. Without a file, a new
            certificate of this instance is created; its key is stored in the key folder.
        private_key_file: the private key in PKCS #8.

    Returns:
        The SHA-256 of the certificate.

    Raises:
        BrokerError: 15232 the name is taken, or the certificate exists already; 15208 no such file, or wrong content;
            15465 wrong password, 15116 the password is too short, 15151 no such login, 15247 no permission, 402 a wrong
            argument.
    """

    permission: ClassVar[str] = "CREATE CERTIFICATE IN MASTER"
    method: ClassVar[str] = "create_certificate"


@dataclass(frozen=True, slots=True)
class AlterTransportCertificate(Definition[None]):
    """ALTER CERTIFICATE name WITH PRIVATE KEY (DECRYPTION BY PASSWORD = ..., ENCRYPTION BY PASSWORD = ...).

    Args:
        name: the name of the certificate, case-insensitive.
        decryption_password: the present password of the private key. Without an `encryption_password`, the password is
            removed, so that the endpoint can use the key.
        encryption_password: the new password of the private key.

    Raises:
        BrokerError: 15151 no such certificate, 15556 its private key is missing, 15465 wrong password, 15313 the key
            has no password, 15116 the password is too short, 15247 no permission, 402 a wrong argument.
    """

    permission: ClassVar[str] = "ALTER CERTIFICATE IN MASTER"
    method: ClassVar[str] = "alter_certificate"

    name: str
    _: KW_ONLY
    decryption_password: str | None = field(default=None, repr=False)
    encryption_password: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Refuse an empty ALTER.

        Raises:
            BrokerError: 402 an empty ALTER.
        """
        if self.decryption_password is None and self.encryption_password is None:
            raise BrokerError(402, "ALTER CERTIFICATE", "empty", "WITH PRIVATE KEY")


@dataclass(frozen=True, slots=True)
class DropTransportCertificate(Named, Definition[None]):
    """DROP CERTIFICATE. A peer with it cannot connect any more. The key of a certificate of this instance is removed.

    Raises:
        BrokerError: 15151 no such certificate, 3716 the endpoint uses it, 15247 no permission.
    """

    permission: ClassVar[str] = "DROP CERTIFICATE IN MASTER"
    method: ClassVar[str] = "drop_certificate"
