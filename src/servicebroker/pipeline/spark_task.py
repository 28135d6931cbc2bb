"""What a task of Spark knows of itself."""

from __future__ import annotations

from uuid import UUID

from servicebroker.model.errors import InstanceError

QUERY_ID = "sql.streaming.queryId"  # local properties of Spark's tasks
BATCH_ID = "streaming.sql.batchId"


def query_id(format_: str) -> str:
    """The id of the streaming query that this task works for; it stays the same as long as the checkpoint.

    Raises:
        InstanceError: this is no task of a streaming query.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    found = context.getLocalProperty(QUERY_ID) if context else None
    if not found:
        raise InstanceError(f"The {format_} sink runs only inside a streaming query of Spark.")
    return str(found)


def batch_of_task() -> tuple[str, int] | None:
    """The id of the streaming query that this task works for, and the number of its batch; None outside of one."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query, number = (context.getLocalProperty(name) if context else None for name in (QUERY_ID, BATCH_ID))
    return (str(UUID(query)), int(number)) if query and number else None


def partition_id() -> int:
    """The number of this task's partition; 0 outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context else 0
