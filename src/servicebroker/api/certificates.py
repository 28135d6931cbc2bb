# Made from aio/certificates.py by tools/make_sync.py: change that file, then run `make sync`.
"""The certificates of a broker database as methods. Files are those of the machine where this runs."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from datetime import datetime, timedelta
from pathlib import Path
from typing import TypeVar

from servicebroker.api.definitions import defined
from servicebroker.api.master_keys import MasterKeys
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security import principals, user_certificates
from servicebroker.engine.security.user_certificates import BY_MASTER_KEY, BY_PASSWORD, KeptKey
from servicebroker.model.arguments import check_switch, checked_password
from servicebroker.model.errors import BrokerError
from servicebroker.model.named_files import MEBIBYTE, read_argument
from servicebroker.model.security.certificates import PRIVATE_KEY, Facts
from servicebroker.store.concurrency import in_thread
from servicebroker.store.keys.key_files import write_private
from servicebroker.store.keys.sealing import seal, seal_by_password, unseal, unseal_by_password
from servicebroker.store.keys.x509_certificates import (
    DAYS,
    PrivateKey,
    as_pem,
    issue,
    key_bytes,
    key_pem,
    load_key,
    read,
    read_key,
    sign,
)
from servicebroker.store.statements import Steps

T = TypeVar("T")
File = str | os.PathLike[str]


class CertificateBackup(ABC):
    """BACKUP CERTIFICATE, of a database and of the instance."""

    @abstractmethod
    def _find_to_back_up(self, name: str, password: str | None, *, with_key: bool) -> tuple[Facts, PrivateKey | None]:
        """A certificate and, where it is wanted, its private key, which the password opens."""

    def backup_certificate(
        self,
        name: str,
        file: File,
        *,
        private_key_file: File | None = None,
        encryption_password: str | None = None,
        decryption_password: str | None = None,
    ) -> None:
        """BACKUP CERTIFICATE name TO FILE = ... [WITH PRIVATE KEY (FILE = ..., ENCRYPTION BY PASSWORD = ...)].

        The certificate alone is for others to import; the private key is for nobody else. `decryption_password` is
        that of a private key which is kept under a password. Both files are written, or none.

        Raises:
            BrokerError: 15151 no such certificate, 15240 a file is there already or cannot be written, 15556 the
                private key is not here, 15465 wrong password, 15116 the password is too short, 402; of a database
                15581 there is no master key, or it is not open; of the instance 15313 the private key lies under no
                password, 15247.
        """
        if (private_key_file is None) != (encryption_password is None):
            raise BrokerError(402, "WITH PRIVATE KEY", "half given", "a file and the password that encrypts it")
        if encryption_password is not None:
            checked_password("ENCRYPTION BY PASSWORD", encryption_password, is_new=True)
        with_key = private_key_file is not None
        facts, key = self._find_to_back_up(name, decryption_password, with_key=with_key)
        in_thread(_write_backup, file, facts, private_key_file, key, encryption_password)


class Certificates(CertificateBackup, MasterKeys):
    """CREATE, ALTER, DROP and BACKUP CERTIFICATE: who a user of the database is in secure conversations.

    A private key is encrypted by the master key of the database, or by a password; the broker can use only the former.
    """

    def create_certificate(
        self,
        name: str,
        *,
        authorization: str | None = None,
        subject: str | None = None,
        start_date: datetime | None = None,
        expiry_date: datetime | None = None,
        active_for_begin_dialog: bool = True,
        encryption_password: str | None = None,
        file: File | None = None,
        private_key_file: File | None = None,
        decryption_password: str | None = None,
    ) -> None:
        """CREATE CERTIFICATE name AUTHORIZATION user [FROM FILE = ... [WITH PRIVATE KEY (FILE = ...)]] ...

        Without `file` a new one that signs itself, with a key on the curve P-256.

        Args:
            name: compared without case.
            authorization: the user whose certificate it is; the one that this object works as when it is not given.
            subject: "CN=...", or just a name; that of the certificate when it is not given.
            start_date: valid from then on, with a time zone; from now on when it is not given.
            expiry_date: valid until then; for a year when it is not given.
            active_for_begin_dialog: whether conversations that begin may use it.
            encryption_password: encrypts the private key, instead of the master key.
            file: a certificate in PEM or DER.
            private_key_file: its private key in PKCS #8; without it the certificate is somebody else's.
            decryption_password: of the file of the private key.

        Raises:
            BrokerError: 15232 the name is taken, or the certificate is there already, 15208 no such file, or not what
                it should be, 15465 wrong password, 15581 there is no master key, or it is not open, 15116 the password
                is too short, 15151 no such user, 262, 402.
        """
        self._alone(rights.authorize(self.user, "CREATE CERTIFICATE"))  # before a file is looked at
        if file is None:
            if private_key_file is not None or decryption_password is not None:
                raise BrokerError(402, "WITH PRIVATE KEY", "given without a file", "given with FROM FILE")
            start = self.instance.clock() if start_date is None else start_date
            expiry = after(start, DAYS) if expiry_date is None else expiry_date
            facts, key = issue(name if subject is None else subject, start, expiry)
            kept = self._keep(key, encryption_password)
        else:
            if any(one is not None for one in (subject, start_date, expiry_date)):
                raise BrokerError(402, "SUBJECT, START_DATE or EXPIRY_DATE", "given with a file", "left out")
            facts = read(in_thread(read_file, file))
            kept = self._read_key(facts, private_key_file, decryption_password, encryption_password)

        def steps() -> Steps[None]:
            owner = yield from principals.find_owner(self.user, authorization)
            yield from user_certificates.create_certificate(
                self.user.database_id, name, owner, facts, kept, is_active=active_for_begin_dialog
            )

        self._alone(steps())

    def alter_certificate(
        self,
        name: str,
        *,
        active_for_begin_dialog: bool | None = None,
        remove_private_key: bool = False,
        private_key_file: File | None = None,
        decryption_password: str | None = None,
        encryption_password: str | None = None,
    ) -> None:
        """ALTER CERTIFICATE name: WITH ACTIVE FOR BEGIN_DIALOG, REMOVE PRIVATE KEY, or WITH PRIVATE KEY (...).

        With `private_key_file` the key comes from there. Without, `decryption_password` opens the one that is there,
        or the master key does, and it is encrypted anew, by `encryption_password` or by the master key.

        Raises:
            BrokerError: 15151 no such certificate, 15208, 15465, 15556 there is no private key, 15581, 15116, 402.
        """
        check_switch("REMOVE PRIVATE KEY", remove_private_key)
        changes_key = any(one is not None for one in (private_key_file, decryption_password, encryption_password))
        if active_for_begin_dialog is None and not remove_private_key and not changes_key:
            raise BrokerError(402, "ALTER CERTIFICATE", "empty", "at least one clause")
        if remove_private_key and changes_key:
            raise BrokerError(402, "WITH PRIVATE KEY", "given with REMOVE PRIVATE KEY", "left out")
        kept = KeptKey() if remove_private_key else None
        if changes_key:
            found = self._find_certificate("ALTER CERTIFICATE", name)
            if private_key_file is not None:
                kept = self._read_key(found.facts, private_key_file, decryption_password, encryption_password)
            else:
                kept = self._keep(self._open(found, decryption_password), encryption_password)
        steps = user_certificates.alter_certificate(self.user.database_id, name, active_for_begin_dialog, kept)
        self._alone(rights.authorized(steps, self.user, "ALTER CERTIFICATE", rights.certificate(name)))

    drop_certificate = defined(user_certificates.drop_certificate)

    def _find_to_back_up(self, name: str, password: str | None, *, with_key: bool) -> tuple[Facts, PrivateKey | None]:
        found = self._find_certificate("BACKUP CERTIFICATE", name)
        return found.facts, self._open(found, password) if with_key else None

    def sign_with_certificate(self, name: str, text: bytes, *, decryption_password: str | None = None) -> bytes:
        """The signature of a text by the private key of a certificate: ECDSA or RSA-PSS, with SHA-256.

        Args:
            name: the certificate.
            text: what is signed.
            decryption_password: of a private key that is kept under a password.

        Raises:
            BrokerError: 15151 no such certificate, or no CONTROL on it, 15556 there is no private key, 15465, 15581,
                402.
        """
        found = self._find_certificate("BACKUP CERTIFICATE", name)
        return sign(text, self._open(found, decryption_password))

    def _find_certificate(self, statement: str, name: str) -> user_certificates.UserCertificate:
        action = statement.split()[0].lower()
        steps = user_certificates.find_certificate(action, self.user.database_id, name)
        return self._alone(rights.authorized(steps, self.user, statement, rights.certificate(name)))

    def _read_key(
        self, facts: Facts, file: File | None, decryption_password: str | None, encryption_password: str | None
    ) -> KeptKey:
        """What is kept of the private key in a file; nothing without one."""
        if decryption_password is not None:
            checked_password("DECRYPTION BY PASSWORD", decryption_password)
        if file is None:
            return KeptKey()
        data = in_thread(read_file, file)
        return self._keep(in_thread(read_key, data, decryption_password, facts), encryption_password)

    def _keep(self, key: PrivateKey, password: str | None) -> KeptKey:
        """The private key as it is stored."""
        if password is None:
            return KeptKey(BY_MASTER_KEY, seal(self._master_key(), key_bytes(key), PRIVATE_KEY))
        checked_password("ENCRYPTION BY PASSWORD", password, is_new=True)
        return KeptKey(BY_PASSWORD, in_thread(seal_by_password, password, key_bytes(key), PRIVATE_KEY))

    def _open(self, certificate: user_certificates.UserCertificate, password: str | None) -> PrivateKey:
        """The private key that is stored."""
        encryption, sealed = certificate.key
        if sealed is None:
            raise BrokerError(15556, f"certificate '{certificate.name}'")
        if encryption == BY_MASTER_KEY:
            der = unseal(self._master_key(), sealed, PRIVATE_KEY)
        else:
            given = checked_password("DECRYPTION BY PASSWORD", password)
            der = in_thread(unseal_by_password, given, sealed, PRIVATE_KEY)
        if der is None:
            raise BrokerError(15465)
        return load_key(der)


def _write_backup(
    file: File, facts: Facts, private_key_file: File | None, key: PrivateKey | None, password: str | None
) -> None:
    write_file(file, as_pem(facts.der))
    if private_key_file is not None and key is not None:
        try:
            write_file(private_key_file, key_pem(key, password))
        except BrokerError:
            Path(file).unlink()
            raise


def after(start: datetime, days: int) -> datetime:
    """So many days later.

    Raises:
        BrokerError: 402 that is no date.
    """
    try:
        return start + timedelta(days=days)
    except (TypeError, OverflowError):
        raise BrokerError(402, "START_DATE", repr(start), "datetime with a time zone") from None


def read_file(file: File) -> bytes:
    """What is in a file.

    Raises:
        BrokerError: 402 no name of a file, 15208 it cannot be read.
    """
    try:
        return read_argument(_path(file), MEBIBYTE)
    except (OSError, ValueError) as problem:
        raise BrokerError(15208, hint=f"'{file}': {_why(problem)}") from None


def write_file(file: File, data: bytes) -> None:
    """A new file that only its owner may read.

    Raises:
        BrokerError: 402 no name of a file, 15240 it is there already, or cannot be written.
    """
    try:
        write_private(_path(file), data)
    except (OSError, ValueError) as problem:
        raise BrokerError(15240, file, hint=_why(problem)) from None


def _why(problem: OSError | ValueError) -> str:
    return f"{problem.strerror}." if isinstance(problem, OSError) else "That can be no file."


def _path(file: object) -> Path:
    if not isinstance(file, str | os.PathLike):
        raise BrokerError(402, "FILE", type(file).__name__, "str or os.PathLike")
    return Path(os.fsdecode(file))
