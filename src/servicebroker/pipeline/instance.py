"""From the option `instance` to a PostgreSQL that answers."""

from __future__ import annotations

import re

from servicebroker.store.embedded import EmbeddedServer


class OpenInstance:
    """A PostgreSQL that answers at `url` until `close`; the embedded one of a data folder is started or joined."""

    def __init__(self, instance: str) -> None:
        self._server = None if is_url(instance) else EmbeddedServer.start(instance)
        self.url = self._server.url if self._server else instance

    def close(self) -> None:
        """Let it go; the last one out stops an embedded server."""
        if self._server:
            self._server.close()


def is_url(instance: str) -> bool:
    """A URL or a libpq string `key=value ...`; anything else is the path of a data folder."""
    return bool(re.match(r"postgres(ql)?://|\w+ *=", instance))
