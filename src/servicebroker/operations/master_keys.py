"""CREATE, OPEN, CLOSE, ALTER and DROP MASTER KEY.

The master key encrypts the private keys of the database's certificates and the session keys of its conversations. The
service master key, a file in the instance's key folder, opens it. OPEN MASTER KEY opens it by a password, for one
`Database` object.
"""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from typing import ClassVar

from servicebroker.operations.operation import Definition


class _OfMasterKey(Definition[None]):
    """A statement of a master key."""

    __slots__ = ()

    permission: ClassVar[str] = "MASTER KEY"


@dataclass(frozen=True, slots=True)
class CreateMasterKey(_OfMasterKey):
    """CREATE MASTER KEY ENCRYPTION BY PASSWORD. The service master key encrypts it, too.

    Args:
        password: the password of the master key.

    Raises:
        BrokerError: 15578 the database has a master key already, 15116 the password is too short, 15247 no permission,
            402 the password is not a str.
    """

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OpenMasterKey(_OfMasterKey):
    """OPEN MASTER KEY DECRYPTION BY PASSWORD: this `Database` object can use the key until `close_master_key`.

    Args:
        password: a password of the master key.

    Raises:
        BrokerError: 15581 no master key, 15313 wrong password, 15247 no permission, 402 the password is not a str.
    """

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class CloseMasterKey(_OfMasterKey):
    """CLOSE MASTER KEY.

    Raises:
        BrokerError: 15315 `open_master_key` has not opened it.
    """


@dataclass(frozen=True, slots=True)
class AlterMasterKey(_OfMasterKey):
    """ALTER MASTER KEY ADD (True) or DROP (False) ENCRYPTION BY SERVICE MASTER KEY.

    Without that encryption `servicebroker serve` cannot use the key: secure conversations wait (28054).

    Args:
        service_master_key: whether the service master key opens the master key.

    Raises:
        BrokerError: 15581 the master key is missing or not open, 15247 no permission, 402 the argument is not a bool.
    """

    _: KW_ONLY
    service_master_key: bool


@dataclass(frozen=True, slots=True)
class AddMasterKeyPassword(_OfMasterKey):
    """ALTER MASTER KEY ADD ENCRYPTION BY PASSWORD: add a password that opens the master key.

    Args:
        password: the new password.

    Raises:
        BrokerError: 15581 the master key is missing or not open, 15116 the password is too short, 15247 no permission,
            402 the password is not a str.
    """

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropMasterKeyPassword(_OfMasterKey):
    """ALTER MASTER KEY DROP ENCRYPTION BY PASSWORD: remove a password of the master key.

    Args:
        password: the password to remove. The key must have another one.

    Raises:
        BrokerError: 15581 no master key, 15558 it does not open the key, or is its only password, 15247 no permission,
            402 the password is not a str.
    """

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RegenerateMasterKey(_OfMasterKey):
    """ALTER MASTER KEY [FORCE] REGENERATE: create a new master key, and encrypt all private and session keys with it.

    Args:
        password: the password of the new key.
        force: give up keys that the old master key cannot decrypt: such private keys are removed, and conversations
            with such session keys wait.

    Raises:
        BrokerError: 15581 no master key; 15329 it is not open, or cannot decrypt a key, without `force`; 15116 the
            password is too short, 15247 no permission, 402 an argument has the wrong type.
    """

    password: str = field(repr=False)
    _: KW_ONLY
    force: bool = False


@dataclass(frozen=True, slots=True)
class DropMasterKey(_OfMasterKey):
    """DROP MASTER KEY. Conversations lose their session keys, and wait.

    Raises:
        BrokerError: 15151 no master key, 15580 it encrypts the private key of a certificate, 15247 no permission.
    """
