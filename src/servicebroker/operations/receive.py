"""RECEIVE, and GET CONVERSATION GROUP, which locks the group of the next RECEIVE; each may wait (WAITFOR)."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, replace
from typing import ClassVar
from uuid import UUID

from servicebroker.model.arguments import check_count, check_wait
from servicebroker.model.errors import BrokerError
from servicebroker.model.messages import Message
from servicebroker.model.wording import short_repr
from servicebroker.model.workers import Worker
from servicebroker.operations.operation import Operation


@dataclass(frozen=True, slots=True)
class Receive(Operation[list[Message]]):
    """RECEIVE: take messages of one conversation group, in order. Return an empty list if there is no message.

    The group is locked until the transaction ends; other readers take from other groups meanwhile. A ROLLBACK
    puts the messages back.

    Args:
        queue: the name of the queue, case-insensitive; `schema.queue` if the schema is not dbo.
        top: the maximum number of messages of a group; None for all its messages.
        groups: the maximum number of groups, those with the oldest messages. The messages are ordered by group.
        conversation_handle: take only from this conversation; this waits for the lock of its group.
        conversation_group_id: take only from this group; this waits for its lock.
        wait: seconds to wait for a message (WAITFOR); float("inf") for ever.

    Raises:
        BrokerError: 15151 no such queue, 9617 it is disabled, 229 no permission, 8426 no such conversation, 8436 no
            such group; during a wait also 8468 a service of the queue was altered or dropped.
    """

    permission: ClassVar[str] = "RECEIVE"
    leaves: ClassVar[bool] = False

    queue: str
    _: KW_ONLY
    top: int | None = None
    groups: int = 1
    conversation_handle: UUID | None = None
    conversation_group_id: UUID | None = None
    wait: float = 0.0

    @classmethod
    def of_worker(cls, worker: Worker, wait: float = 0.0) -> Receive:
        """Return the RECEIVE of a worker, which waits `wait` seconds for a message."""
        return cls(worker.queue, top=worker.batch or 1, groups=worker.groups, wait=wait)

    @property
    def timeout_s(self) -> float:
        """Seconds to wait; 0 for TOP (0), which takes no message."""
        return 0.0 if self.top == 0 else self.wait

    @property
    def of_one(self) -> Receive:
        """A RECEIVE of a single message with these options."""
        return replace(self, top=1, groups=1)

    @property
    def at_once(self) -> Receive:
        """A RECEIVE with these options that does not wait."""
        return replace(self, wait=0.0)

    @property
    def held(self) -> Hold:
        """The first half of this RECEIVE, which leaves the messages in the queue."""
        return Hold(self.queue, top=self.top, groups=self.groups)

    @property
    def has_condition(self) -> bool:
        """True if WHERE names a conversation or a group, so an empty result does not mean an empty queue."""
        return self.conversation_handle is not None or self.conversation_group_id is not None

    def check(self) -> None:
        """Refuse invalid arguments: TOP, the number of groups, and the two forms of WHERE.

        Raises:
            BrokerError: 402 an invalid argument.
        """
        if self.top is not None and (not isinstance(self.top, int) or isinstance(self.top, bool) or self.top < 0):
            raise BrokerError(402, "TOP", short_repr(self.top), "an int of 0 or more")
        check_count("groups", self.groups)
        if self.groups > 1 and self.has_condition:
            raise BrokerError(402, "groups", str(self.groups), "1 if a conversation or a group is named")
        for name in ("conversation_handle", "conversation_group_id"):
            condition = getattr(self, name)
            if condition is not None and not isinstance(condition, UUID):
                raise BrokerError(402, name, f"of type {type(condition).__name__}", "a uuid.UUID")
        if self.conversation_handle is not None and self.conversation_group_id is not None:
            raise BrokerError(402, "the condition", "both a conversation and a group", "one of the two")

    def check_wait(self) -> None:
        """Refuse an invalid `wait` before the first poll.

        Raises:
            BrokerError: 402 an invalid `wait`.
        """
        check_wait(self.wait)


@dataclass(frozen=True, slots=True)
class Hold(Receive):
    """The first half of a RECEIVE from many groups: lock the groups, and read the messages without deleting them.

    The second half, `OwnerVerbs.take` in engine/conversation/owner_verbs.py, deletes the messages of one group.
    """

    leaves: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class GetConversationGroup(Operation[UUID | None]):
    """GET CONVERSATION GROUP: return the group that `receive` would take from, or None.

    The group is locked until the transaction ends, also if no message is received from it. Several calls can lock
    several groups.

    Args:
        queue: the name of the queue, as for `receive`.
        wait: seconds to wait for a group, as for `receive`.

    Raises:
        BrokerError: 9617 the queue is disabled, 15151 no such queue, 229 no permission; during a wait also 8468 a
            service of the queue was altered or dropped.
    """

    permission: ClassVar[str] = "GET CONVERSATION GROUP"

    queue: str
    _: KW_ONLY
    wait: float = 0.0

    @property
    def timeout_s(self) -> float:
        """Seconds to wait."""
        return self.wait

    @property
    def has_condition(self) -> bool:
        """False: the statement takes any group."""
        return False

    def check_wait(self) -> None:
        """Refuse an invalid `wait` before the first poll.

        Raises:
            BrokerError: 402 an invalid `wait`.
        """
        check_wait(self.wait)
