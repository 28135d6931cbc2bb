"""Who runs a definition, and with what."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import NamedTuple

from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.model.security.permissions import User


class Definer(NamedTuple):
    """A user of a database, whose permissions count.

    Attributes:
        user: the database and who works there.
        catalog: what this process remembers for that user.
        clock: gives the time.
    """

    user: User
    catalog: Catalog
    clock: Callable[[], datetime]

    @property
    def database_id(self) -> int:
        """The number of the database."""
        return self.user.database_id
