"""Who may sign in by name, and what each may do: a file with a line for each of them.

The file is looked at with every request: who is taken out is out at once, and what somebody may do is what it says now.
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

SHORTEST, LONGEST = 10, 1000  # characters of a password
_COST, _BLOCKS = 2**15, 8  # 32 MB and some 0.1 s for each guess
_MEMORY = 64 * 2**20
LONGEST_NAME = 128


class Role(enum.IntEnum):
    """What somebody who is let in may do; each may what those before it may."""

    SEE = 1
    BODIES = 2
    ACT = 3


class Person(NamedTuple):
    """Somebody who may be let in. `seal` is made of the password; without one only a proxy can say that it is them."""

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
        """By name, as the file is now."""
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
        """Who has that name."""
        return self.all().get(name)

    def checked(self, name: str, password: str) -> Person | None:
        """Who has that name and that password. It takes as long for a name that is not there."""
        person = self.find(name)
        seal = person.seal if person is not None else ""
        is_right = _is_sealed(password, seal or _NOBODY)
        return person if is_right and seal else None


def add(path: Path, name: str, role: Role, password: str | None) -> bool:
    """Write somebody into the file, which is made when it is not there; whether they are new.

    Raises:
        InstanceError: the name or the password cannot be one, or the file is none of ours.
    """
    if not 0 < len(name) <= LONGEST_NAME or not name.isprintable() or ":" in name or name != name.strip():
        raise InstanceError(f"{name!r} is no name: it has 1 to {LONGEST_NAME} printable characters, and no colon.")
    if password is not None and not SHORTEST <= len(password) <= LONGEST:
        raise InstanceError(f"A password has {SHORTEST} to {LONGEST} characters.")
    people = dict(People(path).all()) if path.exists() else {}
    is_new = name not in people
    people[name] = Person(name, role, "" if password is None else _sealed(password, secrets.token_bytes(16)))
    _write(path, people)
    return is_new


def remove(path: Path, name: str) -> None:
    """Take somebody out of the file.

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
    """The whole file at once: who reads it meanwhile reads the old one."""
    text = "".join(f"{one.name}:{one.role.name.lower()}:{one.seal}\n" for one in people.values())
    fresh = path.with_name(f"{path.name}.{secrets.token_hex(4)}")
    try:
        with os.fdopen(os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
            file.write(text)
        fresh.replace(path)
    except OSError as problem:
        fresh.unlink(missing_ok=True)
        raise InstanceError(f"{path} cannot be written: {problem.strerror}.") from problem


def _sealed(password: str, salt: bytes) -> str:
    made = hashlib.scrypt(password.encode(), salt=salt, n=_COST, r=_BLOCKS, p=1, maxmem=_MEMORY, dklen=32)
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
