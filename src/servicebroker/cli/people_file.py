"""The file of people who may sign in by name, with the role of each: one line for each person.

The file is checked with every request, so a removed person is signed out at once, and a new role holds at once.
"""

from __future__ import annotations

import base64
import enum
import hashlib
import hmac
import os
import secrets
import stat
from pathlib import Path
from typing import NamedTuple

from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_file

MIN_PASSWORD_CHARACTERS, MAX_PASSWORD_CHARACTERS = 10, 1000
_SCRYPT_N, _SCRYPT_R = 2**15, 8  # a guess costs 32 MB and some 0.1 s
_SCRYPT_MAX_BYTES = 64 * 2**20
MAX_NAME_CHARACTERS = 128


class Role(enum.IntEnum):
    """The role of a person; each role includes the ones before it."""

    SEE = 1
    BODIES = 2
    ACT = 3


class Person(NamedTuple):
    """A person who may sign in. `seal` is made of the password; without one, only a proxy can vouch for the person."""

    name: str
    role: Role
    seal: str = ""


class People:
    """The people of a file.

    Raises:
        InstanceError: it cannot be read, others than its owner can read it, or a line of it is none.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._version: tuple[int, int, int] | None = None
        self._people: dict[str, Person] = {}
        self.all()

    def all(self) -> dict[str, Person]:
        """Return the people of the file by name, as it is now."""
        try:
            found = self._path.stat()
            version = found.st_mtime_ns, found.st_size, found.st_ino
            if version != self._version:
                self._people = _read(self._path)
                self._version = version
        except FileNotFoundError:
            raise InstanceError(f"There is no file '{self._path}': make it with servicebroker people add.") from None
        except OSError as problem:
            raise InstanceError(f"{self._path} cannot be read: {problem.strerror}.") from problem
        return self._people

    def find(self, name: str) -> Person | None:
        """Return the person of that name; None without one."""
        return self.all().get(name)

    def checked(self, name: str, password: str) -> Person | None:
        """Return the person with that name and password, else None. An unknown name takes as long as a known one."""
        person = self.find(name)
        seal = person.seal if person is not None else ""
        is_right = _is_sealed(password, seal or _NOBODY)
        return person if is_right and seal else None


def add(path: Path, name: str, role: Role, password: str | None) -> bool:
    """Write a person into the file, which is made if it is missing. Return whether the person is new.

    Raises:
        InstanceError: the name or the password cannot be one, or the file is none of ours.
    """
    if not 0 < len(name) <= MAX_NAME_CHARACTERS or not name.isprintable() or ":" in name or name != name.strip():
        raise InstanceError(
            f"{name!r} is no name: it has 1 to {MAX_NAME_CHARACTERS} printable characters, and no colon."
        )
    if password is not None and not MIN_PASSWORD_CHARACTERS <= len(password) <= MAX_PASSWORD_CHARACTERS:
        raise InstanceError(f"A password has {MIN_PASSWORD_CHARACTERS} to {MAX_PASSWORD_CHARACTERS} characters.")
    people = dict(People(path).all()) if path.exists() else {}
    is_new = name not in people
    people[name] = Person(name, role, "" if password is None else _sealed(password, secrets.token_bytes(16)))
    _write(path, people)
    return is_new


def remove(path: Path, name: str) -> None:
    """Remove a person from the file.

    Raises:
        InstanceError: nobody there has that name.
    """
    people = dict(People(path).all())
    if people.pop(name, None) is None:
        raise InstanceError(f"Nobody in {path} has the name {name!r}: servicebroker people show says who is there.")
    _write(path, people)


def _read(path: Path) -> dict[str, Person]:
    if stat.S_IMODE(path.stat().st_mode) & 0o077:
        raise InstanceError(f"{path} is open to others, and has passwords in it, if sealed: chmod 600 {path}")
    text = read_file(path).decode(errors="replace")
    found = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line or line.startswith("#"):
            continue
        name, _, rest = line.partition(":")
        role, _, seal = rest.partition(":")
        if not name or role.upper() not in Role.__members__ or (seal and not _is_seal(seal)):
            raise InstanceError(f"{path}, line {number}, is not NAME:ROLE:SEAL as servicebroker people add writes it.")
        found[name] = Person(name, Role[role.upper()], seal)
    return found


def _write(path: Path, people: dict[str, Person]) -> None:
    """Replace the whole file at once: readers see the old one or the new one."""
    text = "".join(f"{person.name}:{person.role.name.lower()}:{person.seal}\n" for person in people.values())
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as problem:
        fresh.unlink(missing_ok=True)
        raise InstanceError(f"{path} cannot be written: {problem.strerror}.") from problem


def _sealed(password: str, salt: bytes) -> str:
    made = hashlib.scrypt(
        password.encode(), salt=salt, n=_SCRYPT_N, r=_SCRYPT_R, p=1, maxmem=_SCRYPT_MAX_BYTES, dklen=32
    )
    return f"scrypt${base64.b64encode(salt).decode()}${base64.b64encode(made).decode()}"


def _is_sealed(password: str, seal: str) -> bool:
    salt = base64.b64decode(seal.split("$")[1])
    return hmac.compare_digest(_sealed(password, salt), seal)


def _is_seal(text: str) -> bool:
    kind, *parts = text.split("$")
    try:
        sizes = [len(base64.b64decode(part, validate=True)) for part in parts]
    except ValueError:
        return False
    return kind == "scrypt" and sizes == [16, 32]


_NOBODY = f"scrypt${base64.b64encode(bytes(16)).decode()}${base64.b64encode(bytes(32)).decode()}"
