"""CREATE, OPEN, CLOSE, ALTER and DROP MASTER KEY.

The master key encrypts the private keys of the database's certificates and the session keys of its conversations. It is
opened by the service master key, a file in the instance's key folder, or for one object by its password.
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
    """CREATE MASTER KEY ENCRYPTION BY PASSWORD; it is encrypted by the service master key too.

    Args:
        password: opens it.

    Raises:
        BrokerError: 15578 there is one already, 15116 the password is too short, 15247, 402.
    """

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class OpenMasterKey(_OfMasterKey):
    """OPEN MASTER KEY DECRYPTION BY PASSWORD: this object can use it until `close_master_key`.

    Args:
        password: opens it.

    Raises:
        BrokerError: 15581 there is none, 15313 the password is another one, 15247, 402.
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
    """ALTER MASTER KEY ADD ENCRYPTION BY SERVICE MASTER KEY, or with False DROP ENCRYPTION.

    Without that encryption `servicebroker serve` cannot use the key: secure conversations wait (28054).

    Args:
        service_master_key: whether it opens the key.

    Raises:
        BrokerError: 15581 there is none, or it is not open, 15247, 402.
    """

    _: KW_ONLY
    service_master_key: bool


@dataclass(frozen=True, slots=True)
class AddMasterKeyPassword(_OfMasterKey):
    """ALTER MASTER KEY ADD ENCRYPTION BY PASSWORD: this one opens it too.

    Args:
        password: the new one.

    Raises:
        BrokerError: 15581 there is none, or it is not open, 15116 the password is too short, 15247, 402.
    """

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class DropMasterKeyPassword(_OfMasterKey):
    """ALTER MASTER KEY DROP ENCRYPTION BY PASSWORD: this one opens it no more.

    Args:
        password: one of several.

    Raises:
        BrokerError: 15581 there is none, 15558 it is no password of the key, or its only one, 15247, 402.
    """

    password: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class RegenerateMasterKey(_OfMasterKey):
    """ALTER MASTER KEY [FORCE] REGENERATE: another key, with which everything is encrypted anew.

    Args:
        password: opens the new key.
        force: whether what the key before does not open is lost: private keys are removed, conversations that
            have a session key wait.

    Raises:
        BrokerError: 15581 there is none, 15329 it is not open, or does not open something, without `force`; 15116
            the password is too short, 15247, 402.
    """

    password: str = field(repr=False)
    _: KW_ONLY
    force: bool = False


@dataclass(frozen=True, slots=True)
class DropMasterKey(_OfMasterKey):
    """DROP MASTER KEY. Conversations that have session keys lose them, and wait.

    Raises:
        BrokerError: 15151 there is none, 15580 a certificate's private key is encrypted by it, 15247.
    """
