"""What a task is to do, as plain values that also travel to another process."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.activation.monitors import Definition


class Order(NamedTuple):
    """One reader of a queue: the procedure (three-part name), and the user that it works as."""

    queue_id: int
    database_id: int
    database: str
    queue: str
    procedure: str
    principal: str
    execute_as: int

    @classmethod
    def of(cls, definition: Definition) -> Order:
        """What the catalog says now."""
        return cls(
            definition.queue_id,
            definition.database_id,
            definition.database,
            definition.name,
            definition.procedure or "",
            definition.principal or "",
            definition.execute_as,
        )

    @property
    def application_name(self) -> str:
        """How its session shows in pg_stat_activity."""
        return f"servicebroker {self.procedure}".encode()[:63].decode(errors="ignore")
