"""Options of the Spark source and writer, checked before anything is opened."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from servicebroker.model.errors import InstanceError
from servicebroker.model.wording import short_repr, storable

MAX_CLAIM_TIMEOUT_S = (2**31 - 1) // 1000  # PostgreSQL's lock_timeout counts milliseconds in 32 bits
MAX_SEND_ID_CHARACTERS = 500  # PostgreSQL's limit for an index entry is 2,704 bytes
MAX_DEFAULT_PARTITIONS = 8  # few, since each partition scans the whole slice for its conversation groups


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """Options of the source, from `.option(...)`.

    Attributes:
        instance: URL of a PostgreSQL database, or path of a data folder.
        database: broker database of the queue.
        queue: name of the queue, `schema.name` if the schema is not dbo; or several names, separated by commas.
        queue_pattern: in place of `queue`, a Python regular expression for the whole names of the queues to read.
        max_messages_per_trigger: maximum rows of one batch.
        max_bytes_per_trigger: maximum bytes of bodies in one batch; 0 for no limit. A single message may exceed it.
        min_messages_per_trigger, min_bytes_per_trigger: a batch waits until it reaches one of them; 0 for no minimum.
        max_trigger_delay: maximum seconds that a batch waits for its minimum.
        min_partitions: tasks that read one batch; a conversation group stays in one of them.
        end_of_stream: message type that ends its conversation when the message is acknowledged.
        claim_timeout: seconds to wait for another reader that still owns the queue.
        starting_offsets: start of a stream without a checkpoint: "earliest" reads all messages in the queue, and
            archived messages if `ack` is "archive"; "latest" reads only messages that arrive later.
        partitioning: "group" keeps each conversation group in one partition. "range" gives each partition an equal
            range of queuing_order and reads the queue only once. In both, messages keep their order.
        fail_on_data_loss: if True, a checkpoint of another server, or of a server restored to an earlier time, fails
            the query. If False, the stream starts over.
        include_system_messages: EndDialog, Error and DialogTimer become rows. They take effect in either case.
        ack: "delete" deletes a message that the sink has. "archive" moves it into the archive, which a stream with a
            new checkpoint reads again.
        deliver: "messages": a row is a message. "parts": a row stands for a part of the queue. The sinks of
            servicebroker read such a part themselves, so that no message passes through Java.
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
        """The names of the queues, in the order of the option."""
        return [name.strip() for name in self.queue.split(",") if name.strip()]

    @property
    def is_of_one_queue(self) -> bool:
        """True if the option names one queue. The offsets of the stream are then those of the queue."""
        return len(self.queues) == 1

    @property
    def has_minimum(self) -> bool:
        """True if a batch may wait for more messages."""
        return self.min_messages_per_trigger + self.min_bytes_per_trigger > 0

    @property
    def archives(self) -> bool:
        """True if acknowledged messages are moved into the archive."""
        return self.ack == "archive"

    @property
    def delivers_parts(self) -> bool:
        """True if a row stands for a part of the queue."""
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


def source_options(raw_options: Mapping[str, str]) -> SourceOptions:
    """Return the options of a reader. Names are case-insensitive.

    Raises:
        InstanceError: an unknown or missing option, or an invalid value.
    """
    queue_option = "queue" if "queuepattern" not in {name.lower() for name in raw_options} else "queuePattern"
    values = known_options("source", raw_options, _NAMES, ("instance", "database", queue_option))
    options = SourceOptions(
        instance=values["instance"],
        database=values["database"],
        **_queues(values),
        max_messages_per_trigger=whole_number(values, "maxMessagesPerTrigger", 1_000_000, 1),
        max_bytes_per_trigger=whole_number(values, "maxBytesPerTrigger", 0, 0, 2**63 - 1),
        min_messages_per_trigger=whole_number(values, "minMessagesPerTrigger", 0, 0),
        min_bytes_per_trigger=whole_number(values, "minBytesPerTrigger", 0, 0, 2**63 - 1),
        max_trigger_delay=_seconds(values, "maxTriggerDelay", 900),
        min_partitions=whole_number(values, "minPartitions", _default_partitions(), 1, 1024),
        end_of_stream=values.get("endofstream", "EndOfStream"),
        claim_timeout=whole_number(values, "claimTimeout", 30, 0, MAX_CLAIM_TIMEOUT_S),
        starting_offsets=one_of(values, "startingOffsets", ("earliest", "latest")),
        partitioning=one_of(values, "partitioning", ("group", "range")),
        fail_on_data_loss=one_of(values, "failOnDataLoss", ("true", "false")) == "true",
        include_system_messages=one_of(values, "includeSystemMessages", ("true", "false")) == "true",
        ack=one_of(values, "ack", ("delete", "archive")),
        deliver=one_of(values, "deliver", ("messages", "parts")),
    )
    minimums = {"Messages": options.min_messages_per_trigger, "Bytes": options.min_bytes_per_trigger}
    maximums = {"Messages": options.max_messages_per_trigger, "Bytes": options.max_bytes_per_trigger}
    for kind in minimums:
        if 0 < maximums[kind] < minimums[kind]:
            raise InstanceError(
                f"The option 'min{kind}PerTrigger' exceeds 'max{kind}PerTrigger', so no batch would be large enough."
            )
    return options


@dataclass(frozen=True, slots=True)
class WriterOptions:
    """Options of the writer, from `.option(...)`.

    Attributes:
        instance: URL of a PostgreSQL database, or path of a data folder.
        database: broker database of the initiating service.
        from_service, to_service, contract: arguments of BEGIN DIALOG.
        message_type: message type of rows without a type of their own.
        key: rows with equal values in this column go to one conversation, in order; "" for no key.
        conversations: number of parallel conversations.
        send_id: name of a batch job. Its rows are sent once under this name; "" for a streaming query.
        end_of_stream: type of the last message of a conversation, on which the target ends its side.
        recycle_after, recycle_seconds: a conversation is replaced after this number of messages or seconds.
        encryption: as in BEGIN DIALOG: a conversation with another instance must be secured.
        refuses_unknown_target: if no route leads to `to_service`, the batch fails. If False, its messages wait.
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


_SPARK_OPTIONS = ("checkpointlocation", "queryname")  # Spark's own options, which it also passes to a sink


def writer_options(raw_options: Mapping[str, str]) -> WriterOptions:
    """Return the options of a writer. Names are case-insensitive.

    Raises:
        InstanceError: an unknown or missing option, or an invalid value.
    """
    values = known_options("writer", without_spark_options(raw_options), _WRITER_NAMES, _WRITER_NEEDS)
    if len(values.get("sendid", "")) > MAX_SEND_ID_CHARACTERS:
        raise InstanceError(f"The option 'sendId' has more than {MAX_SEND_ID_CHARACTERS} characters.")
    for name in _WRITER_NAMES:
        if storable(value := values.get(name.lower(), "")) != value:
            raise InstanceError(f"The option '{name}' has a NUL or half of a surrogate pair: {short_repr(value)}.")
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
    except (re.error, OverflowError) as problem:
        raise InstanceError(f"The option 'queuePattern' is not a regular expression: {problem}.") from None
    except RecursionError:
        raise InstanceError("The option 'queuePattern' is a regular expression nested too deeply.") from None
    queues = [name.strip().lower() for name in names.split(",")]
    if not pattern and ("" in queues or len(set(queues)) < len(queues)):
        raise InstanceError(f"The option 'queue' names a queue twice, or none between two commas: {short_repr(names)}.")
    return {"queue": names, "queue_pattern": pattern}


def _seconds(values: Mapping[str, str], name: str, default: int) -> int:
    """Return the value in seconds of an option such as 30, 30s, 15m or 1h.

    Raises:
        InstanceError: the value is not such a duration.
    """
    text = values.get(name.lower(), str(default)).strip().lower()
    match = re.fullmatch(r"(\d{1,9})\s*([smh]?)", text)
    if not match:
        raise InstanceError(f"The option '{name}' must be a time such as 30s, 15m or 1h, not {short_repr(text)}.")
    return int(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def without_spark_options(raw_options: Mapping[str, str]) -> dict[str, str]:
    """Return the options without Spark's own options."""
    return {name: value for name, value in raw_options.items() if name.lower() not in _SPARK_OPTIONS}


def known_options(
    format_: str, raw_options: Mapping[str, str], known_names: Sequence[str], required_names: Sequence[str]
) -> dict[str, str]:
    """Return the options, with names in lower case.

    Raises:
        InstanceError: an unknown option, an option given twice, or a required option without a value.
    """
    values = {name.lower(): value for name, value in raw_options.items()}
    for name in raw_options:
        if name.lower() not in {option.lower() for option in known_names}:
            raise InstanceError(
                f"The servicebroker {format_} has no option {short_repr(name)}; it has {', '.join(known_names)}."
            )
    for name in values:
        if sum(name == given_name.lower() for given_name in raw_options) > 1:
            raise InstanceError(
                f"The option {name!r} of the servicebroker {format_} is given twice (names ignore case)."
            )
    for name in required_names:
        if not values.get(name.lower(), "").strip():
            raise InstanceError(f"The servicebroker {format_} needs the option '{name}'.")
    return values


def one_of(values: Mapping[str, str], name: str, choices: Sequence[str]) -> str:
    """Return the value of an option with few choices. The first choice is the default.

    Raises:
        InstanceError: the value is not among the choices.
    """
    value = values.get(name.lower(), choices[0]).strip().lower()
    if value not in choices:
        raise InstanceError(
            f"The option '{name}' must be {' or '.join(choices)}, not {short_repr(values[name.lower()])}."
        )
    return value


def whole_number(values: Mapping[str, str], name: str, default: int, lowest: int, highest: int = 2**31 - 1) -> int:
    """Return the integer value of an option, from `lowest` to `highest`.

    Raises:
        InstanceError: the value is not such an integer.
    """
    text = values.get(name.lower())
    if text is None:
        return default
    try:
        number = int(text)
    except ValueError:
        number = lowest - 1
    if not lowest <= number <= highest:
        raise InstanceError(
            f"The option '{name}' must be a whole number from {lowest} to {highest}, not {short_repr(text)}."
        )
    return number


def _default_partitions() -> int:
    return max(2, min(os.cpu_count() or 2, MAX_DEFAULT_PARTITIONS))
