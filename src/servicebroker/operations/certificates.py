"""CREATE, ALTER, DROP and BACKUP CERTIFICATE: of users in a database, and of the transport in an instance.

Files are those of the machine where the operation is run.
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
    """A certificate that is made, or read from a file.

    Args:
        name: compared without case.
        authorization: the user whose certificate it is; the one that this object works as when it is not given.
        subject: "CN=...", or just a name; that of the certificate when it is not given.
        start_date: valid from then on, with a time zone; from now on when it is not given.
        expiry_date: valid until then; for a year when it is not given.
        encryption_password: encrypts the private key, instead of the master key.
        file: a certificate in PEM or DER.
        private_key_file: its private key in PKCS #8; without it the certificate is somebody else's.
        decryption_password: of the file of the private key.
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
        """Refuse clauses that do not go together.

        Raises:
            BrokerError: 402.
        """
        if self.file is None:
            if self.private_key_file is not None or self.decryption_password is not None:
                raise BrokerError(402, "WITH PRIVATE KEY", "given without a file", "given with FROM FILE")
        elif any(option is not None for option in (self.subject, self.start_date, self.expiry_date)):
            raise BrokerError(402, "SUBJECT, START_DATE or EXPIRY_DATE", "given with a file", "left out")


@dataclass(frozen=True, slots=True)
class CreateCertificate(_NewCertificate, Definition[None]):
    """CREATE CERTIFICATE name AUTHORIZATION user [FROM FILE = ... [WITH PRIVATE KEY (FILE = ...)]] ...

    Without `file` a new one that signs itself, with a key on the curve P-256.

    Args:
        active_for_begin_dialog: whether new conversations may use the certificate.

    Raises:
        BrokerError: 15232 the name is taken, or the certificate is there already, 15208 no such file, or not what
            it should be, 15465 wrong password, 15581 there is no master key, or it is not open, 15116 the password
            is too short, 15151 no such user, 262, 402.
    """

    _: KW_ONLY
    active_for_begin_dialog: bool = True


@dataclass(frozen=True, slots=True)
class AlterCertificate(Definition[None]):
    """ALTER CERTIFICATE name: WITH ACTIVE FOR BEGIN_DIALOG, REMOVE PRIVATE KEY, or WITH PRIVATE KEY (...).

    A private key that changes is encrypted anew, by `encryption_password` or by the master key.

    Args:
        name: compared without case.
        active_for_begin_dialog: whether new conversations may use the certificate.
        remove_private_key: whether its private key is removed.
        private_key_file: where the key comes from; without it, it is the one that is there.
        decryption_password: opens the key, if the master key does not.
        encryption_password: encrypts the key, instead of the master key.

    Raises:
        BrokerError: 15151 no such certificate, 15208, 15465, 15556 there is no private key, 15581, 15116, 402.
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
        """Return whether a private key is given, or one is encrypted anew."""
        given = self.private_key_file, self.decryption_password, self.encryption_password
        return any(option is not None for option in given)

    def check(self) -> None:
        """Refuse clauses that do not go together.

        Raises:
            BrokerError: 402.
        """
        check_switch("REMOVE PRIVATE KEY", self.remove_private_key)
        if self.active_for_begin_dialog is None and not self.remove_private_key and not self.changes_key:
            raise BrokerError(402, "ALTER CERTIFICATE", "empty", "at least one clause")
        if self.remove_private_key and self.changes_key:
            raise BrokerError(402, "WITH PRIVATE KEY", "given with REMOVE PRIVATE KEY", "left out")


@dataclass(frozen=True, slots=True)
class DropCertificate(Named, Definition[None]):
    """DROP CERTIFICATE. Conversations that have their session keys go on.

    Raises:
        BrokerError: 15151 no such certificate, 15559 a user stands for it, 15352 it has signed a module.
    """


@dataclass(frozen=True, slots=True)
class BackupCertificate(Definition[None]):
    """BACKUP CERTIFICATE name TO FILE = ... [WITH PRIVATE KEY (FILE = ..., ENCRYPTION BY PASSWORD = ...)].

    The certificate alone is for others to import; the private key is for nobody else. Both files are written, or none.

    Args:
        name: compared without case.
        file: that of the certificate, in PEM.
        private_key_file: that of the private key.
        encryption_password: encrypts the private key in its file.
        decryption_password: of a private key that is kept under a password.

    Raises:
        BrokerError: 15151 no such certificate, 15240 a file is there already or cannot be written, 15556 the
            private key is not here, 15465 wrong password, 15116 the password is too short, 402; of a database
            15581 there is no master key, or it is not open; of the instance 15313 the private key lies under no
            password, 15247.
    """

    name: str
    file: File
    _: KW_ONLY
    private_key_file: File | None = None
    encryption_password: str | None = field(default=None, repr=False)
    decryption_password: str | None = field(default=None, repr=False)

    def check(self) -> None:
        """Refuse a private key that is half given, and a password that is too short.

        Raises:
            BrokerError: 402, 15116.
        """
        if (self.private_key_file is None) != (self.encryption_password is None):
            raise BrokerError(402, "WITH PRIVATE KEY", "half given", "a file and the password that encrypts it")
        if self.encryption_password is not None:
            checked_password("ENCRYPTION BY PASSWORD", self.encryption_password, is_new=True)


# ---------------------------------------------------------------- of the transport


@dataclass(frozen=True, slots=True)
class CreateTransportCertificate(_NewCertificate, Definition[bytes]):
    """CREATE CERTIFICATE, as in the database master: who this instance, or a peer, is in the network.

    Args:
        authorization: the login that a peer with this certificate is: it needs CONNECT on the endpoint. Without it
            the peer is let in because of its certificate.
        subject: "CN=...", or just a name, of a new one; its name when it is not given. It proves nothing.
        start_date: a new one is valid from then on, with a time zone; from now on when it is not given, also for
            clocks that are 10 minutes behind.
        encryption_password: encrypts the private key: the endpoint cannot use it before `alter_certificate` has
            opened it.
        file: a certificate in PEM or DER: that of a peer, or with `private_key_file` one of this instance. Without
            it a new one of this instance is made, whose key goes into the key folder.
        private_key_file: its key in PKCS #8.

    Returns:
        The SHA-256 of the certificate.

    Raises:
        BrokerError: 15232 the name is taken, or the certificate is there already, 15208 no such file, or not what
            it should be, 15465 wrong password, 15116 the password is too short, 15151 no such login, 15247, 402.
    """

    permission: ClassVar[str] = "CREATE CERTIFICATE IN MASTER"
    method: ClassVar[str] = "create_certificate"


@dataclass(frozen=True, slots=True)
class AlterTransportCertificate(Definition[None]):
    """ALTER CERTIFICATE name WITH PRIVATE KEY (DECRYPTION BY PASSWORD = ..., ENCRYPTION BY PASSWORD = ...).

    Args:
        name: compared without case.
        decryption_password: opens a private key that lies under one; then the endpoint can use it, unless an
            `encryption_password` is to encrypt it anew.
        encryption_password: encrypts the private key.

    Raises:
        BrokerError: 15151 no such certificate, 15556 its private key is not here, 15465 wrong password, 15313 it
            lies under none, 15116 the password is too short, 15247, 402.
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
            BrokerError: 402.
        """
        if self.decryption_password is None and self.encryption_password is None:
            raise BrokerError(402, "ALTER CERTIFICATE", "empty", "WITH PRIVATE KEY")


@dataclass(frozen=True, slots=True)
class DropTransportCertificate(Named, Definition[None]):
    """DROP CERTIFICATE: of a peer, it is let in no more; of this instance, its key is removed too.

    Raises:
        BrokerError: 15151 no such certificate, 3716 the endpoint names it, 15247.
    """

    permission: ClassVar[str] = "DROP CERTIFICATE IN MASTER"
    method: ClassVar[str] = "drop_certificate"
