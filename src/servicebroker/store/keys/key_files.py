"""Store keys of an instance in files, in a folder that only the owner may read.

The database has neither the private keys of the transport nor the service master key, which decrypts all other keys.
Otherwise a reader of its tables, or of a dump, could impersonate the instance.
"""

from __future__ import annotations

import os
import tempfile
from contextlib import suppress
from pathlib import Path

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import BYTES_PER_MIB, read_file
from servicebroker.store.keys.sealing import new_key

SERVICE_MASTER_KEY = "service-master-key"


class KeyFolder:
    """The key folder: the service master key, and a file with the private key of each certificate of the transport."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def file(self, thumbprint: bytes) -> Path:
        """Return the path of the file for a certificate's key."""
        return self.path / f"{thumbprint.hex()}.pem"

    def write(self, thumbprint: bytes, pem: bytes) -> None:
        """Write the key of a certificate, and replace an earlier one. Only the owner may read it."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        replace(self.file(thumbprint), pem)

    def find(self, thumbprint: bytes) -> Path | None:
        """Return the file with the key of a certificate; None if it does not exist.

        Raises:
            InstanceError: others than the owner may read it.
        """
        file = self.file(thumbprint)
        if not file.is_file():
            return None
        check_private(file)
        return file

    def remove(self, thumbprint: bytes) -> None:
        """Delete the key of a certificate."""
        self.file(thumbprint).unlink(missing_ok=True)

    def service_master_key(self) -> bytes | None:
        """Return the key that decrypts the master key of every broker database; None if it is missing.

        Raises:
            InstanceError: others than the owner may read it, or it cannot be read.
        """
        file = self.path / SERVICE_MASTER_KEY
        return read_private(file) if file.is_file() else None

    def ensure_service_master_key(self) -> bytes:
        """Return the service master key. Create it if it is missing; concurrent callers get one and the same key."""
        self.path.mkdir(mode=0o700, parents=True, exist_ok=True)
        file = self.path / SERVICE_MASTER_KEY
        if not file.exists():
            with tempfile.TemporaryDirectory(dir=self.path) as folder:
                new = Path(folder) / SERVICE_MASTER_KEY
                write_private(new, new_key())
                with suppress(FileExistsError):
                    os.link(new, file)
        return read_private(file)


def user_data() -> Path:
    """Return the folder for the data of the operating-system user, shared by all instances."""
    return Path(os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share") / "servicebroker"


def write_private(file: Path, data: bytes) -> None:
    """Write a new file that only the owner may read, and flush it to disk.

    Raises:
        OSError: the file exists already, or cannot be written.
    """
    descriptor = os.open(file, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    with os.fdopen(descriptor, "wb") as written:
        written.write(data)
        written.flush()
        os.fsync(descriptor)


def replace(file: Path, data: bytes, mode: int = 0o600) -> None:
    """Write a file atomically, also over an existing one.

    Raises:
        OSError: the file cannot be written.
    """
    descriptor, name = tempfile.mkstemp(prefix=".", dir=file.parent)
    try:
        with os.fdopen(descriptor, "wb") as written:
            os.fchmod(descriptor, mode)
            written.write(data)
            written.flush()
            os.fsync(descriptor)
        os.replace(name, file)
    except BaseException:
        os.unlink(name)
        raise


def read_private(file: Path) -> bytes:
    """Return the contents of a key file, which only its owner may read.

    Raises:
        InstanceError: others may read the file, another user has created it, or it cannot be read.
    """
    try:
        return read_file(file, BYTES_PER_MIB, lambda status: _check_private(status, file))
    except OSError as problem:
        raise InstanceError(f"The key in {file} cannot be read: {problem.strerror or problem}.") from None


def check_private(file: Path) -> None:
    """Check that only its owner may read a key file, and that the owner is this user, root or the folder's owner.

    Raises:
        InstanceError: others may read it, or somebody else owns it.
    """
    _check_private(file.stat(), file)


def _check_private(status: os.stat_result, file: Path) -> None:
    if status.st_mode & 0o077:
        raise InstanceError(f"Others may read the key in {file}: make it yours alone with chmod 600.")
    if status.st_uid not in (0, os.geteuid(), file.parent.stat().st_uid):
        raise InstanceError(
            f"The key in {file} belongs to user {status.st_uid}, who is neither you nor the owner of the folder: take "
            "it with chown, or remove it if you do not know it."
        )
