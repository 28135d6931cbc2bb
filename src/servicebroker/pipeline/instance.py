"""From the option `instance` to a PostgreSQL that answers."""

from __future__ import annotations

from servicebroker.store.connection import is_url
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
