"""The user who runs a definition, with the cache and the clock."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.model.security.permissions import User


class Definer(NamedTuple):
    """A user of a database, whose permissions count.

    Attributes:
        user: the database and its user.
        catalog: the cache of this process for that user.
        clock: returns the time.
    """

    user: User
    catalog: Catalog
    clock: Callable[[], datetime]

    @property
    def database_id(self) -> int:
        """The id of the database."""
        return self.user.database_id
