"""The master key of a broker database as methods; who opens it, and with what."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, TypeVar

from servicebroker.engine.security import master_keys
from servicebroker.engine.security.master_keys import MasterKey
from servicebroker.model.arguments import check_switch, checked_password
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.certificates import MASTER_KEY
from servicebroker.model.security.permissions import User
from servicebroker.store.aio.concurrency import in_thread
from servicebroker.store.keys.sealing import new_key, seal, seal_by_password, unseal, unseal_by_password
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.aio.instance import AsyncInstance

T = TypeVar("T")


class AsyncMasterKeys(ABC):
    """CREATE, OPEN, CLOSE, ALTER and DROP MASTER KEY.

    The master key encrypts the private keys of the database's certificates and the session keys of its conversations.
    It is opened by the service master key, a file in the instance's key folder, or for this object by its password.
    """

    instance: AsyncInstance
    user: User
    _opened: tuple[bytes, bytes] | None = None  # what was opened by its password: as it is stored, and in clear

    @abstractmethod
    async def _alone(self, steps: Steps[T]) -> T:
        """Run the steps of DDL."""

    async def create_master_key(self, password: str) -> None:
        """CREATE MASTER KEY ENCRYPTION BY PASSWORD; it is encrypted by the service master key too.

        Raises:
            BrokerError: 15578 there is one already, 15116 the password is too short, 15247, 402.
        """
        checked_password("PASSWORD", password, is_new=True)
        key = new_key()
        by_password = await in_thread(seal_by_password, password, key, MASTER_KEY)
        service_key = await in_thread((await self.instance.key_folder()).ensure_service_master_key)
        await self._alone(
            master_keys.create_master_key(self.user, MasterKey(by_password, seal(service_key, key, MASTER_KEY)))
        )

    async def open_master_key(self, password: str) -> None:
        """OPEN MASTER KEY DECRYPTION BY PASSWORD: this object can use it until `close_master_key`.

        Raises:
            BrokerError: 15581 there is none, 15313 the password is another one, 15247, 402.
        """
        checked_password("PASSWORD", password)
        found = await self._alone(master_keys.require_master_key(self.user))
        for sealed in found.by_passwords:
            key = await in_thread(unseal_by_password, password, sealed, MASTER_KEY)
            if key is not None:
                self._opened = (found.by_password, key)
                return
        raise BrokerError(15313)

    async def close_master_key(self) -> None:
        """CLOSE MASTER KEY.

        Raises:
            BrokerError: 15315 `open_master_key` has not opened it.
        """
        if self._opened is None:
            raise BrokerError(15315, "master key")
        self._opened = None

    async def alter_master_key(self, *, service_master_key: bool) -> None:
        """ALTER MASTER KEY ADD ENCRYPTION BY SERVICE MASTER KEY, or with False DROP ENCRYPTION.

        Without that encryption `servicebroker serve` cannot use the key: secure conversations wait (28054).

        Raises:
            BrokerError: 15581 there is none, or it is not open, 15247, 402.
        """
        check_switch("ENCRYPTION BY SERVICE MASTER KEY", service_master_key)
        key = await self._master_key()
        sealed = None
        if service_master_key:
            folder = await self.instance.key_folder()
            sealed = seal(await in_thread(folder.ensure_service_master_key), key, MASTER_KEY)
        await self._alone(master_keys.set_service_encryption(self.user, sealed))

    async def add_master_key_password(self, password: str) -> None:
        """ALTER MASTER KEY ADD ENCRYPTION BY PASSWORD: this one opens it too.

        Raises:
            BrokerError: 15581 there is none, or it is not open, 15116 the password is too short, 15247, 402.
        """
        checked_password("PASSWORD", password, is_new=True)
        sealed = await in_thread(seal_by_password, password, await self._master_key(), MASTER_KEY)
        found = await self._alone(master_keys.require_master_key(self.user))
        await self._alone(master_keys.set_password_encryption(self.user, [*found.by_passwords, sealed]))

    async def drop_master_key_password(self, password: str) -> None:
        """ALTER MASTER KEY DROP ENCRYPTION BY PASSWORD: this one opens it no more.

        Raises:
            BrokerError: 15581 there is none, 15558 it is no password of the key, or its only one, 15247, 402.
        """
        checked_password("PASSWORD", password)
        found = await self._alone(master_keys.require_master_key(self.user))
        left = [
            sealed
            for sealed in found.by_passwords
            if await in_thread(unseal_by_password, password, sealed, MASTER_KEY) is None
        ]
        if not left or len(left) == len(found.by_passwords):
            raise BrokerError(15558, "the encryption of the master key", "this password")
        if self._opened is not None:
            self._opened = (left[0], self._opened[1])
        await self._alone(master_keys.set_password_encryption(self.user, left))

    async def regenerate_master_key(self, password: str, *, force: bool = False) -> None:
        """ALTER MASTER KEY [FORCE] REGENERATE: another key, with which everything is encrypted anew.

        Args:
            password: opens the new key.
            force: whether what the key before does not open is lost: private keys are removed, conversations that
                have a session key wait.

        Raises:
            BrokerError: 15581 there is none, 15329 it is not open, or does not open something, without `force`; 15116
                the password is too short, 15247, 402.
        """
        check_switch("FORCE", force)
        checked_password("PASSWORD", password, is_new=True)
        found = await self._alone(master_keys.require_master_key(self.user))
        try:
            old = await self._master_key()
        except BrokerError as closed:
            if not force:
                raise BrokerError(15329, "master key") if closed.number == 15581 else closed from None
            old = None
        new = new_key()
        by_password = await in_thread(seal_by_password, password, new, MASTER_KEY)
        sealed = None
        if found.by_service_master_key is not None:
            folder = await self.instance.key_folder()
            sealed = seal(await in_thread(folder.ensure_service_master_key), new, MASTER_KEY)

        def renew(secret: bytes, about: str) -> bytes | None:
            clear = None if old is None else unseal(old, secret, about)
            if clear is None and not force:
                raise BrokerError(15329, "master key")
            return None if clear is None else seal(new, clear, about)

        key = MasterKey(by_password, sealed)
        await self._alone(master_keys.regenerate_master_key(self.user, key, renew))
        self._opened = (by_password, new)

    async def drop_master_key(self) -> None:
        """DROP MASTER KEY. Conversations that have session keys lose them, and wait.

        Raises:
            BrokerError: 15151 there is none, 15580 a certificate's private key is encrypted by it, 15247.
        """
        await self._alone(master_keys.drop_master_key(self.user))
        self._opened = None

    async def _master_key(self) -> bytes:
        """The master key in clear."""
        found = await self._alone(master_keys.require_master_key(self.user))
        if self._opened is not None and self._opened[0] == found.by_password:
            return self._opened[1]
        service_key = await in_thread((await self.instance.key_folder()).service_master_key)
        if service_key is not None and found.by_service_master_key is not None:
            key = unseal(service_key, found.by_service_master_key, MASTER_KEY)
            if key is not None:
                return key
        raise BrokerError(15581)
