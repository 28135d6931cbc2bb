"""The user who runs a CREATE, ALTER or DROP, with the cache and the clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.model.security.permissions import User


class Definer(NamedTuple):
    """The user who runs a CREATE, ALTER or DROP.

    Attributes:
        user: the user, whose permissions are checked, and the database.
        catalog: the cache of this process for that user.
        clock: returns the current time.
    """

    user: User
    catalog: Catalog
    clock: Callable[[], datetime]

    @property
    def database_id(self) -> int:
        """The id of the database."""
        return self.user.database_id
