"""Identity of a running Spark task: its query, batch and partition."""

from __future__ import annotations

from uuid import UUID

from servicebroker.model.errors import InstanceError

# Names of local properties of Spark's tasks.
QUERY_ID = "sql.streaming.queryId"
BATCH_ID = "streaming.sql.batchId"


def query_id(format_: str) -> str:
    """Return the id of this task's streaming query. A checkpoint has the same id in all its runs.

    Raises:
        InstanceError: this is not a task of a streaming query.
    """
    from pyspark import TaskContext

    context = TaskContext.get()
    query = context.getLocalProperty(QUERY_ID) if context else None
    if not query:
        raise InstanceError(f"The {format_} sink runs only inside a streaming query of Spark.")
    return str(query)


def batch_of_task() -> tuple[str, int] | None:
    """Return the id of this task's streaming query, and its batch number; None outside of a streaming query."""
    from pyspark import TaskContext

    context = TaskContext.get()
    query, number = (context.getLocalProperty(name) if context else None for name in (QUERY_ID, BATCH_ID))
    return (str(UUID(query)), int(number)) if query and number else None


def partition_id() -> int:
    """Return the number of this task's partition; 0 outside of Spark."""
    from pyspark import TaskContext

    context = TaskContext.get()
    return context.partitionId() if context else 0
