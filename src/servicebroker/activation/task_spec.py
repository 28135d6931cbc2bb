"""The specification of a task, as plain values that can be sent to a child process."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.engine.activation.monitors import Definition


class TaskSpec(NamedTuple):
    """A reader of a queue: the three-part name of its procedure, and the principal that it works as."""

    queue_id: int
    database_id: int
    database: str
    queue: str
    procedure: str
    principal: str
    execute_as: int

    @classmethod
    def of(cls, definition: Definition) -> TaskSpec:
        """Return the specification for the present definition of a queue."""
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
        """The application name of the task's session in pg_stat_activity."""
        return f"servicebroker {self.procedure}".encode()[:63].decode(errors="ignore")
