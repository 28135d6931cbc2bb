"""Where the private keys of an instance are: in its data folder, or for a server's in the user's own."""

from __future__ import annotations

import os
from pathlib import Path

from servicebroker.api.instance import Instance
from servicebroker.store.connection import is_url
from servicebroker.store.running import execute


def key_folder(instance: Instance, target: str, given: str | None) -> Path:
    """The folder: `given`, or `keys` in the data folder, or one named after the instance in the user's data."""
    if given is not None:
        return Path(given)
    if not is_url(target):
        return Path(target) / "keys"
    with instance.connection() as connection:
        ((identifier,),) = execute(connection, "select instance_id from servicebroker.instance")
    data = os.environ.get("XDG_DATA_HOME") or Path.home() / ".local" / "share"
    return Path(data) / "servicebroker" / str(identifier) / "keys"
