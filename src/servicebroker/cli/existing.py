"""An instance that a command works on, and does not make."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from servicebroker.api.instance import Instance
from servicebroker.api.open import open_instance
from servicebroker.model.errors import InstanceError
from servicebroker.store.connection import is_url
from servicebroker.store.embedded import EmbeddedServer


@contextmanager
def open_existing(target: str, keys: str | None = None) -> Iterator[Instance]:
    """An instance that exists: a new one in a mistyped folder would help nobody. `keys`: see `open`.

    Raises:
        InstanceError: there is none.
    """
    if not is_url(target) and not EmbeddedServer.exists(target):
        raise InstanceError(f"There is no instance in '{target}': make one with servicebroker init.")
    with open_instance(target, upkeep=None, keys=keys) as opened:
        yield opened
