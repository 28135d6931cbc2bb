"""Keys and certificates of the simulated instances: made once in a process, since that takes longer than a run."""

from __future__ import annotations

import functools
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from servicebroker.engine.security.master_keys import MasterKey
from servicebroker.engine.security.user_certificates import BY_MASTER_KEY, StoredKey, UserCertificate
from servicebroker.model.security.certificates import MASTER_KEY, PRIVATE_KEY
from servicebroker.model.security.permissions import DBO_ID
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.keys.sealing import KEY_BYTES, seal
from servicebroker.store.keys.x509_certificates import issue, key_bytes
from servicebroker_lab.simulation.simulated_time import MIDNIGHT

SERVICE_MASTER_KEY, OF_DATABASES = bytes(KEY_BYTES), bytes(range(KEY_BYTES))
FIRST_USER = 100  # stands for instance 0 in the databases of the others, and so on
_LASTS = timedelta(days=3650)


class _Folder(KeyFolder):
    """A service master key without a file."""

    def service_master_key(self) -> bytes:
        """The same in every instance."""
        return SERVICE_MASTER_KEY


KEYS = _Folder(Path("nowhere"))


class Identity(NamedTuple):
    """The certificate of an instance: as its own database has it, and those of the others."""

    own: UserCertificate
    abroad: UserCertificate


@functools.cache
def master_key() -> MasterKey:
    """That of every database."""
    return MasterKey(b"", seal(SERVICE_MASTER_KEY, OF_DATABASES, MASTER_KEY))


@functools.cache
def identity(index: int, generation: int = 0) -> Identity:
    """Of the instance of that number; another one each time that it replaces its certificate."""
    facts, key = issue(
        f"sim{index} {generation}" if generation else f"sim{index}", MIDNIGHT - _LASTS, MIDNIGHT + _LASTS, timedelta()
    )
    sealed = StoredKey(BY_MASTER_KEY, seal(OF_DATABASES, key_bytes(key), PRIVATE_KEY))
    return Identity(
        UserCertificate(index, DBO_ID, facts.subject, True, sealed, facts),
        UserCertificate(index, FIRST_USER + index, facts.subject, True, StoredKey(), facts),
    )
