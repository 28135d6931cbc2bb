"""The options of the source, checked before anything is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servicebroker.model.errors import InstanceError

LONGEST_CLAIM = (2**31 - 1) // 1000  # seconds: PostgreSQL counts milliseconds
MOST_PARTITIONS_BY_DEFAULT = 8  # each partition scans the whole range for its groups


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """What `.option(...)` says to the source.

    Attributes:
        instance: URL of a PostgreSQL database, or path of a data folder.
        database: broker database of the queue.
        queue: name of the queue, `schema.name` when the schema is not dbo; or several, with commas between them.
        queue_pattern: instead, a regular expression (of Python) for the whole names of the queues to read.
        max_messages_per_trigger: rows in one batch at most.
        max_bytes_per_trigger: bytes of bodies in one batch at most, but for one message; 0 for any number.
        min_messages_per_trigger, min_bytes_per_trigger: a batch waits until it has one of both; 0 for none.
        max_trigger_delay: seconds that it waits at most.
        min_partitions: tasks that read one batch; a conversation group stays in one of them.
        end_of_stream: message type that ends its conversation once it has been read.
        claim_timeout: seconds to wait for a reader that still holds the queue.
        starting_offsets: where a stream without a checkpoint begins: "earliest" with all that is there, archived
            messages too when `ack` is "archive"; "latest" with what comes after it has attached.
        partitioning: how a batch is divided: "group" keeps a conversation group in one partition, "range" gives each
            an equal range of arrival, which reads the queue once only; messages keep their order in either.
        fail_on_data_loss: whether a checkpoint of another server or time stops the query, or it begins anew.
        include_system_messages: whether EndDialog, Error and DialogTimer are rows; they act in either case.
        ack: what becomes of a message that the sink has: "delete", or "archive", where a later stream finds it.
        deliver: what a row is: "messages" one message, "parts" a part of the queue, which our own sinks read by
            themselves, so that no message passes through Java.
    """

    instance: str
    database: str
    queue: str = ""
    queue_pattern: str = ""
    max_messages_per_trigger: int = 1_000_000
    max_bytes_per_trigger: int = 0
    min_messages_per_trigger: int = 0
    min_bytes_per_trigger: int = 0
    max_trigger_delay: int = 900
    min_partitions: int = 2
    end_of_stream: str = "EndOfStream"
    claim_timeout: int = 30
    starting_offsets: str = "earliest"
    partitioning: str = "group"
    fail_on_data_loss: bool = True
    include_system_messages: bool = True
    ack: str = "delete"
    deliver: str = "messages"

    @property
    def queues(self) -> list[str]:
        """The queues by name, in the order of the option."""
        return [name.strip() for name in self.queue.split(",") if name.strip()]

    @property
    def is_of_one_queue(self) -> bool:
        """It names one queue: its offsets are that queue's alone."""
        return len(self.queues) == 1

    @property
    def has_minimum(self) -> bool:
        """A batch may wait for more."""
        return self.min_messages_per_trigger + self.min_bytes_per_trigger > 0

    @property
    def archives(self) -> bool:
        """Messages that the sink has are kept."""
        return self.ack == "archive"

    @property
    def delivers_parts(self) -> bool:
        """Rows stand for parts of the queue."""
        return self.deliver == "parts"


_NAMES = (
    "instance",
    "database",
    "queue",
    "queuePattern",
    "maxMessagesPerTrigger",
    "maxBytesPerTrigger",
    "minMessagesPerTrigger",
    "minBytesPerTrigger",
    "maxTriggerDelay",
    "minPartitions",
    "endOfStream",
    "claimTimeout",
    "startingOffsets",
    "partitioning",
    "failOnDataLoss",
    "includeSystemMessages",
    "ack",
    "deliver",
)


def source_options(given: Mapping[str, str]) -> SourceOptions:
    """The options of a reader; names are compared without case.

    Raises:
        InstanceError: an unknown or missing name, or a value that is not what it must be.
    """
    which = "queue" if "queuepattern" not in {name.lower() for name in given} else "queuePattern"
    values = known_options("source", given, _NAMES, ("instance", "database", which))
    options = SourceOptions(
        instance=values["instance"],
        database=values["database"],
        **_queues(values),
        max_messages_per_trigger=whole_number(values, "maxMessagesPerTrigger", 1_000_000, 1),
        max_bytes_per_trigger=whole_number(values, "maxBytesPerTrigger", 0, 0, 2**63 - 1),
        min_messages_per_trigger=whole_number(values, "minMessagesPerTrigger", 0, 0),
        min_bytes_per_trigger=whole_number(values, "minBytesPerTrigger", 0, 0, 2**63 - 1),
        max_trigger_delay=_seconds(values, "maxTriggerDelay", 900),
        min_partitions=whole_number(values, "minPartitions", _cores(), 1, 1024),
        end_of_stream=values.get("endofstream", "EndOfStream"),
        claim_timeout=whole_number(values, "claimTimeout", 30, 0, LONGEST_CLAIM),
        starting_offsets=one_of(values, "startingOffsets", ("earliest", "latest")),
        partitioning=one_of(values, "partitioning", ("group", "range")),
        fail_on_data_loss=one_of(values, "failOnDataLoss", ("true", "false")) == "true",
        include_system_messages=one_of(values, "includeSystemMessages", ("true", "false")) == "true",
        ack=one_of(values, "ack", ("delete", "archive")),
        deliver=one_of(values, "deliver", ("messages", "parts")),
    )
    least = {"Messages": options.min_messages_per_trigger, "Bytes": options.min_bytes_per_trigger}
    most = {"Messages": options.max_messages_per_trigger, "Bytes": options.max_bytes_per_trigger}
    for what in least:
        if 0 < most[what] < least[what]:
            raise InstanceError(
                f"The option 'min{what}PerTrigger' is more than 'max{what}PerTrigger', so no batch would have enough."
            )
    return options


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """What `.option(...)` says to the writer.

    Attributes:
        instance: URL of a PostgreSQL database, or path of a data folder.
        database: broker database of the initiating service.
        from_service, to_service, contract: of the conversations.
        message_type: of rows that name none.
        key: column whose equal values stay on one conversation, in order; "" for none.
        conversations: how many are in use at once.
        send_id: name of a batch job, which is sent once under it; "" in a stream.
        end_of_stream: message type that tells the target to end a conversation.
        recycle_after, recycle_seconds: messages or age after which a conversation is replaced.
        encryption: as BEGIN DIALOG has it: whether a conversation with another instance must be secured.
        refuses_unknown_target: whether a batch fails when no route leads to `to_service`; else its messages wait.
    """

    instance: str
    database: str
    from_service: str
    to_service: str
    contract: str
    message_type: str
    key: str = ""
    conversations: int = 4
    send_id: str = ""
    end_of_stream: str = "EndOfStream"
    recycle_after: int = 100_000
    recycle_seconds: int = 3600
    encryption: bool = True
    refuses_unknown_target: bool = True


_WRITER_NEEDS = ("instance", "database", "fromService", "toService", "contract")
_WRITER_NAMES = (
    *_WRITER_NEEDS,
    "messageType",
    "key",
    "conversations",
    "sendId",
    "endOfStream",
    "recycleAfter",
    "recycleSeconds",
    "encryption",
    "unknownTarget",
)


_SPARKS_OWN = ("checkpointlocation", "queryname")


def writer_options(given: Mapping[str, str]) -> WriterOptions:
    """The options of a writer; names are compared without case.

    Raises:
        InstanceError: an unknown or missing name, or a value that is not what it must be.
    """
    values = known_options("writer", without_sparks_own(given), _WRITER_NAMES, _WRITER_NEEDS)
    return WriterOptions(
        instance=values["instance"],
        database=values["database"],
        from_service=values["fromservice"],
        to_service=values["toservice"],
        contract=values["contract"],
        message_type=values.get("messagetype", ""),
        key=values.get("key", ""),
        conversations=whole_number(values, "conversations", 4, 1, 10_000),
        send_id=values.get("sendid", "").strip(),
        end_of_stream=values.get("endofstream", "EndOfStream"),
        recycle_after=whole_number(values, "recycleAfter", 100_000, 1),
        recycle_seconds=whole_number(values, "recycleSeconds", 3600, 1),
        encryption=one_of(values, "encryption", ("on", "off")) == "on",
        refuses_unknown_target=one_of(values, "unknownTarget", ("refuse", "wait")) == "refuse",
    )


def _queues(values: Mapping[str, str]) -> dict[str, str]:
    names, pattern = values.get("queue", ""), values.get("queuepattern", "")
    if names and pattern:
        raise InstanceError("The options 'queue' and 'queuePattern' exclude each other: give one of them.")
    try:
        re.compile(pattern)
    except re.error as problem:
        raise InstanceError(f"The option 'queuePattern' is no regular expression: {problem}.") from None
    listed = [name.strip().lower() for name in names.split(",")]
    if not pattern and ("" in listed or len(set(listed)) < len(listed)):
        raise InstanceError(f"The option 'queue' names a queue twice, or none between two commas: '{names}'.")
    return {"queue": names, "queue_pattern": pattern}


def _seconds(values: Mapping[str, str], name: str, default: int) -> int:
    """The seconds of an option: a whole number of them, or of what stands behind it, s, m or h.

    Raises:
        InstanceError: the value is none.
    """
    text = values.get(name.lower(), str(default)).strip().lower()
    found = re.fullmatch(r"(\d{1,9})\s*([smh]?)", text)
    if not found:
        raise InstanceError(f"The option '{name}' must be a time such as 30s, 15m or 1h, not '{text}'.")
    return int(found[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[found[2]]


def without_sparks_own(given: Mapping[str, str]) -> dict[str, str]:
    """The options that Spark does not give a sink by itself."""
    return {name: value for name, value in given.items() if name.lower() not in _SPARKS_OWN}


def known_options(
    format_: str, given: Mapping[str, str], known: Sequence[str], needed: Sequence[str]
) -> dict[str, str]:
    """The options by their names in lower case.

    Raises:
        InstanceError: an option that the source or sink does not know, or a needed one without a value.
    """
    values = {name.lower(): value for name, value in given.items()}
    for name in given:
        if name.lower() not in {one.lower() for one in known}:
            raise InstanceError(f"The servicebroker {format_} has no option '{name}'; it has {', '.join(known)}.")
    for name in needed:
        if not values.get(name.lower(), "").strip():
            raise InstanceError(f"The servicebroker {format_} needs the option '{name}'.")
    return values


def one_of(values: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """The value of an option that knows few; the first of them when it is not given.

    Raises:
        InstanceError: another value.
    """
    value = values.get(name.lower(), choices[0]).strip().lower()
    if value not in choices:
        raise InstanceError(f"The option '{name}' must be {' or '.join(choices)}, not '{values[name.lower()]}'.")
    return value


def whole_number(values: Mapping[str, str], name: str, default: int, lowest: int, highest: int = 2**31 - 1) -> int:
    """The number of an option, from `lowest` to `highest`.

    Raises:
        InstanceError: the value is no such number.
    """
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
