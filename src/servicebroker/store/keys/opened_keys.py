"""Decrypt the master keys and private keys of broker databases, and cache them."""

from __future__ import annotations

import logging
from collections.abc import Callable
from uuid import UUID

from servicebroker.model.errors import InstanceError
from servicebroker.model.security.certificates import MASTER_KEY, PRIVATE_KEY
from servicebroker.store.keys.key_files import KeyFolder, user_data
from servicebroker.store.keys.sealing import unseal
from servicebroker.store.keys.x509_certificates import PrivateKey, load_key

MAX_PRIVATE_KEYS = 1_000  # cached; then the cache is cleared
_LOG = logging.getLogger("servicebroker")


class OpenedKeys:
    """Decrypts and caches keys for a process. `trouble` is called with the reason if the key folder is unusable.

    Attributes:
        folder: the folder of the service master key; None before the first call of `locate`.
    """

    def __init__(self, folder: KeyFolder | None, trouble: Callable[[str], None] = _LOG.warning) -> None:
        self.folder = folder
        self._trouble = trouble
        self._master_keys: dict[bytes, bytes] = {}  # opened keys, by their encrypted form
        self._private_keys: dict[bytes, PrivateKey] = {}  # opened keys, by their encrypted form

    def locate(self, instance_id: UUID) -> KeyFolder:
        """Return the key folder. The default is a folder of the instance in the user's data."""
        if self.folder is None:
            self.folder = KeyFolder(user_data() / str(instance_id) / "keys")
        return self.folder

    def master_key(self, sealed: bytes | None) -> bytes | None:
        """Decrypt a master key. Returns None if the service master key is missing, or another one."""
        if sealed is None or self.folder is None:
            return None
        if sealed not in self._master_keys:
            try:
                service_key = self.folder.service_master_key()
            except InstanceError as problem:
                self._trouble(str(problem))
                return None
            opened = None if service_key is None else unseal(service_key, sealed, MASTER_KEY)
            if opened is None:
                return None
            self._master_keys[sealed] = opened
        return self._master_keys[sealed]

    def private_key(self, sealed: bytes | None, master: bytes) -> PrivateKey | None:
        """Decrypt a private key with a master key. Returns None if it was encrypted with another one."""
        if sealed is None:
            return None
        if sealed not in self._private_keys:
            opened = unseal(master, sealed, PRIVATE_KEY)
            if opened is None:
                return None
            if len(self._private_keys) >= MAX_PRIVATE_KEYS:
                self._private_keys.clear()
            self._private_keys[sealed] = load_key(opened)
        return self._private_keys[sealed]
