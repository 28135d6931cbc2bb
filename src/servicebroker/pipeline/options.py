"""The options of the source, checked before anything is opened."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from servicebroker.model.errors import InstanceError

MOST_PARTITIONS_BY_DEFAULT = 8  # each partition scans the whole range for its groups


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What `.option(...)` says to the source.

    Attributes:
        instance: URL of a PostgreSQL database, or path of a data folder.
        database: broker database of the queue.
        queue: name of the queue, `schema.name` when the schema is not dbo.
        max_messages_per_trigger: rows in one batch at most.
        min_partitions: tasks that read one batch; a conversation group stays in one of them.
        end_of_stream: message type that ends its conversation once it has been read.
        claim_timeout: seconds to wait for a reader that still holds the queue.
    """

    instance: str
    database: str
    queue: str
    max_messages_per_trigger: int = 1_000_000
    min_partitions: int = 2
    end_of_stream: str = "EndOfStream"
    claim_timeout: int = 30


_NAMES = (
    "instance",
    "database",
    "queue",
    "maxMessagesPerTrigger",
    "minPartitions",
    "endOfStream",
    "claimTimeout",
)


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a reader; names are compared without case.

    Raises:
        InstanceError: an unknown or missing name, or a value that is not what it must be.
    """
    values = {name.lower(): value for name, value in given.items()}
    for name in given:
        if name.lower() not in {known.lower() for known in _NAMES}:
            raise InstanceError(f"The servicebroker source has no option '{name}'; it has {', '.join(_NAMES)}.")
    for name in ("instance", "database", "queue"):
        if not values.get(name, "").strip():
            raise InstanceError(f"The servicebroker source needs the option '{name}'.")
    return SourceOptions(
        instance=values["instance"],
        database=values["database"],
        queue=values["queue"],
        max_messages_per_trigger=_number(values, "maxMessagesPerTrigger", 1_000_000, 1),
        min_partitions=_number(values, "minPartitions", _cores(), 1, 1024),
        end_of_stream=values.get("endofstream", "EndOfStream"),
        claim_timeout=_number(values, "claimTimeout", 30, 0),
    )


def _number(values: Mapping[str, str], name: str, default: int, lowest: int, highest: int = 2**31 - 1) -> int:
    text = values.get(name.lower())
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = lowest - 1
    if not lowest <= number <= highest:
        raise InstanceError(f"The option '{name}' must be a whole number from {lowest} to {highest}, not '{text}'.")
    return number


def _cores() -> int:
    return max(2, min(os.cpu_count() or 2, MOST_PARTITIONS_BY_DEFAULT))
