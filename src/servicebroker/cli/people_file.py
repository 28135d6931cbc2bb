"""The file of people who may sign in to the dashboard by name. Each line is NAME:ROLE:PASSWORD_HASH.

Every request checks whether the file has changed. So a removed person is signed out, and a new role takes effect,
immediately.
"""

from __future__ import annotations

import base64
import enum
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file
from servicebroker.store.keys import sealing

MIN_PASSWORD_CHARACTERS, MAX_PASSWORD_CHARACTERS = 10, 1000
MAX_NAME_CHARACTERS = 128


class Role(enum.IntEnum):
    """The role of a person; each role includes the ones before it."""

    SEE = 1
    BODIES = 2
    ACT = 3


class Person(NamedTuple):
    """A person who may sign in. Without a `password_hash`, a proxy has to name the person."""

    name: str
    role: Role
    password_hash: str = ""


class People:
    """The people of a file.

    Raises:
        InstanceError: the file cannot be read, users other than its owner can read it, or it has a malformed line.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None
        self._people: dict[str, Person] = {}
        self.all()

    def all(self) -> dict[str, Person]:
        """Return the people of the file by name. Read the file again if it has changed."""
        try:
            status = self._path.stat()
            version = status.st_mtime_ns, status.st_size, status.st_ino
            if version != self._version:
                self._people = _read(self._path)
                self._version = version
        except FileNotFoundError:
            raise InstanceError(f"There is no file '{self._path}': create it by servicebroker people add.") from None
        except OSError as problem:
            raise InstanceError(f"{self._path} cannot be read: {problem.strerror}.") from problem
        return self._people

    def find(self, name: str) -> Person | None:
        """Return the person with this name, or None."""
        return self.all().get(name)

    def authenticate(self, name: str, password: str) -> Person | None:
        """Return the person with this name and password, or None. An unknown name takes as long as a known one."""
        person = self.find(name)
        password_hash = person.password_hash if person is not None else ""
        is_right = _matches(password, password_hash or _DUMMY_HASH)
        return person if is_right and password_hash else None


def add(path: Path, name: str, role: Role, password: str | None) -> bool:
    """Add or replace a person in the file, which is created if missing. Return whether the person is new.

    Raises:
        InstanceError: the name or the password is not allowed, or the file is not a valid file of people.
    """
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable() or ":" in name or name != name.strip():
        raise InstanceError(
            f"{name!r} is not a valid name: use 1 to {MAX_NAME_CHARACTERS} printable characters, "
            "no colon, no outer blanks."
        )
    if password is not None and not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
        raise InstanceError(f"Use a password of {MIN_PASSWORD_CHARACTERS} to {MAX_PASSWORD_CHARACTERS} characters.")
    people = dict(People(path).all()) if path.exists() else {}
    is_new = name not in people
    password_hash = "" if password is None else _hash(password, os.urandom(sealing.SALT_BYTES))
    people[name] = Person(name, role, password_hash)
    _write(path, people)
    return is_new


def remove(path: Path, name: str) -> None:
    """Remove a person from the file.

    Raises:
        InstanceError: the file has no person with this name.
    """
    people = dict(People(path).all())
    if people.pop(name, None) is None:
        raise InstanceError(f"Nobody in {path} has the name {name!r}: servicebroker people show lists the names.")
    _write(path, people)


def _read(path: Path) -> dict[str, Person]:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InstanceError(f"Other users can read {path}, which has password hashes: chmod 600 {path}")
    text = read_file(path).decode(errors="replace")
    people = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        role, _, password_hash = rest.partition(":")
        if not name or role.upper() not in Role.__members__ or (password_hash and not _is_hash(password_hash)):
            raise InstanceError(
                f"{path}, line {number}, is not NAME:ROLE:PASSWORD_HASH as servicebroker people add writes it."
            )
        people[name] = Person(name, Role[role.upper()], password_hash)
    return people


def _write(path: Path, people: dict[str, Person]) -> None:
    """Replace the file atomically."""
    text = "".join(f"{person.name}:{person.role.name.lower()}:{person.password_hash}\n" for person in people.values())
    new_path = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(new_path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        new_path.replace(path)
    except OSError as problem:
        new_path.unlink(missing_ok=True)
        raise InstanceError(f"{path} cannot be written: {problem.strerror}.") from problem


def _hash(password: str, salt: bytes) -> str:
    return _write_hash(salt, sealing.derive_key(password, salt, sealing.SCRYPT_COST))


def _write_hash(salt: bytes, digest: bytes) -> str:
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(digest).decode()}"


def _matches(password: str, password_hash: str) -> bool:
    salt = base64.b64decode(password_hash.split("$")[1])
    return hmac.compare_digest(_hash(password, salt), password_hash)


def _is_hash(text: str) -> bool:
    kind, *parts = text.split("$")
    try:
        sizes = [len(base64.b64decode(part, validate=True)) for part in parts]
    except ValueError:
        return False
    return kind == "scrypt" and sizes == [sealing.SALT_BYTES, sealing.KEY_BYTES]


# of no password; it is checked for unknown names, so that they take as long as known ones
_DUMMY_HASH = _write_hash(bytes(sealing.SALT_BYTES), bytes(sealing.KEY_BYTES))
