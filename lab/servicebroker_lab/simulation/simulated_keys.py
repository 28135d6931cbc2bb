"""Keys and certificates of the simulated instances, created once in a process, because that takes longer than a run."""

from __future__ import annotations

import functools
from datetime import timedelta
from pathlib import Path
from typing import NamedTuple

from servicebroker.engine.security.master_keys import MasterKey
from servicebroker.engine.security.user_certificates import BY_MASTER_KEY, StoredKey, UserCertificate
from servicebroker.model.security.certificates import MASTER_KEY, PRIVATE_KEY
from servicebroker.model.security.permissions import DBO_ID
from servicebroker.overriding import override
from servicebroker.store.keys.key_files import KeyFolder
from servicebroker.store.keys.sealing import KEY_BYTES, seal
from servicebroker.store.keys.x509_certificates import issue, key_bytes
from servicebroker_lab.simulation.simulated_time import MIDNIGHT

SERVICE_MASTER_KEY, DATABASE_MASTER_KEY = bytes(KEY_BYTES), bytes(range(KEY_BYTES))
FIRST_USER = 100  # user 100 + n owns the certificate of instance n in the databases of the other instances
_VALIDITY = timedelta(days=3650)  # certificates are valid this long before and after the start of a run


class _Folder(KeyFolder):
    """A service master key without a file."""

    @override
    def service_master_key(self) -> bytes:
        """Return the service master key, which all instances share."""
        return SERVICE_MASTER_KEY


KEYS = _Folder(Path("nowhere"))


class Identity(NamedTuple):
    """The certificate of an instance: with its key in the own database, without it in the databases of others."""

    own: UserCertificate
    remote: UserCertificate


@functools.cache
def master_key() -> MasterKey:
    """Return the master key of every database."""
    return MasterKey(b"", seal(SERVICE_MASTER_KEY, DATABASE_MASTER_KEY, MASTER_KEY))


@functools.cache
def identity(index: int, generation: int = 0) -> Identity:
    """Return the certificate of an instance. `generation` counts its replacements."""
    facts, key = issue(
        f"sim{index} {generation}" if generation else f"sim{index}",
        MIDNIGHT - _VALIDITY,
        MIDNIGHT + _VALIDITY,
        timedelta(),
    )
    sealed = StoredKey(BY_MASTER_KEY, seal(DATABASE_MASTER_KEY, key_bytes(key), PRIVATE_KEY))
    return Identity(
        UserCertificate(index, DBO_ID, facts.subject, True, sealed, facts),
        UserCertificate(index, FIRST_USER + index, facts.subject, True, StoredKey(), facts),
    )
