"""BEGIN DIALOG CONVERSATION and BEGIN CONVERSATION TIMER."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from datetime import datetime, timedelta
from typing import ClassVar
from uuid import UUID

from servicebroker.model import arguments, names
from servicebroker.model.conversation_events import ConversationEvent
from servicebroker.model.errors import MAXIMUM_LIFETIME, MINIMUM_LIFETIME, BrokerError
from servicebroker.model.wording import short_repr
from servicebroker.operations.operation import Operation
from servicebroker.overriding import override

IDEMPOTENCY_TTL_S = 86_400  # a day: longer than callers usually retry


class RepeatedHandle(UUID):
    """The handle that an earlier BEGIN DIALOG with the same idempotency key has returned.

    The conversation may have messages already, and may have ended.

        handle = tx.begin_dialog("//shop/Orders", "//shop/Stock", idempotency_key="order 17")
        if not isinstance(handle, sb.RepeatedHandle):
            tx.send(handle, "//shop/Order", b"teapot")
    """

    @classmethod
    def of(cls, handle: UUID) -> RepeatedHandle:
        """Return the same handle, marked as repeated."""
        return cls(int=handle.int)


@dataclass(frozen=True, slots=True)
class BeginDialog(Operation[UUID]):
    """BEGIN DIALOG: begin a conversation, and return its handle.

    The target is looked up with the first message. So BEGIN DIALOG does not refuse a wrong target name: the message
    waits, and `servicebroker doctor` reports it.

    Args:
        from_service: a service of this database. Answers arrive in its queue.
        to_service: the target service, in this instance or another one. The name is compared byte by byte.
        broker_instance: the identifier of the target's database, if several have the service; or "CURRENT DATABASE".
        contract: a contract of this database. It defines the message types that each side may send.
        related_conversation: the handle of a conversation whose group the new conversation joins.
        related_conversation_group: the conversation group to join. It is created if it does not exist.
        lifetime: seconds after which both sides get an Error (-8489), 1 to 2,147,483,647.
        encryption: whether dialog security is required. It matters only between instances.
        priority: 1 to 10, 10 first; it overrides the broker priorities, for this side and for a target in this
            database. A target in another database uses the priorities of that database.
        idempotency_key: a string of the application, such as an order number. A second BEGIN DIALOG with the key, from
            the same service by the same principal, begins nothing. It returns the first handle, a `RepeatedHandle`.
        idempotency_ttl: seconds for which the key is kept, also after the end of the conversation.

    Raises:
        BrokerError: 8423 no such service, 8425 no such contract, 8426 no such related conversation, 9610 the group
            belongs to another service, 8411 the lifetime is out of range, 8494 no RECEIVE on the service's queue, 229
            no REFERENCES on the contract, 402 an invalid `priority` or key; 8406, 8413, 8414, 8417, 8421, 1093 an
            invalid name or identifier.
    """

    permission: ClassVar[str] = "BEGIN DIALOG"
    event_class: ClassVar[ConversationEvent | None] = ConversationEvent.BEGIN

    from_service: str
    to_service: str
    _: KW_ONLY
    broker_instance: str | UUID | None = None
    contract: str = names.DEFAULT
    related_conversation: UUID | None = None
    related_conversation_group: UUID | None = None
    lifetime: int = MAXIMUM_LIFETIME
    encryption: bool = True
    priority: int | None = None
    idempotency_key: str | None = None
    idempotency_ttl: int = IDEMPOTENCY_TTL_S

    @override
    @property
    def handles(self) -> Sequence[UUID]:
        """The related conversation, if any; the handle of the new conversation is the result."""
        return [] if self.related_conversation is None else [self.related_conversation]

    @override
    @property
    def joined_groups(self) -> Sequence[UUID]:
        """The conversation group to join."""
        return [] if self.related_conversation_group is None else [self.related_conversation_group]

    @property
    def target_broker(self) -> str | None:
        """The broker instance in its usual spelling, CURRENT_DATABASE, or None if the routes decide.

        Raises:
            BrokerError: 1093 not an identifier, 8413 too long, 402 a wrong type.
        """
        return arguments.broker_instance(self.broker_instance)

    @property
    def may_be_deferred(self) -> bool:
        """True if the statement may be sent with the conversation's first messages: its result needs no server."""
        joins = self.related_conversation is not None or self.related_conversation_group is not None
        return not joins and self.priority is None and self.idempotency_key is None

    def key_expiry(self, now: datetime) -> datetime:
        """Return the time when the idempotency key of a conversation that begins at `now` expires."""
        return now + timedelta(seconds=self.idempotency_ttl)

    def expiry(self, now: datetime) -> datetime:
        """Return the end of the lifetime of a conversation that begins at `now`."""
        return now + timedelta(seconds=self.lifetime)

    def check(self) -> None:
        """Refuse invalid arguments.

        Raises:
            BrokerError: 8417 and 8421 a missing name, 15151 an impossible name, 8406 and 8411 lifetime, 1093 and 8413
                broker instance, 8414 group, 402 a wrong type.
        """
        if self.from_service is None or self.to_service is None:
            raise BrokerError(8421)
        if self.contract is None:
            raise BrokerError(8417)
        names.checked("service", self.to_service, names.MAXIMUM_SERVICE_NAME)
        self._check_lifetime()
        if self.broker_instance is not None:
            arguments.broker_instance(self.broker_instance)
        arguments.check_switch("ENCRYPTION", self.encryption)
        self._check_relation()
        if self.priority is not None:
            arguments.check_priority(self.priority)
        arguments.check_idempotency(self.idempotency_key, self.idempotency_ttl)
        names.checked("service", self.from_service)
        names.checked("service contract", self.contract)

    def _check_lifetime(self) -> None:
        if self.lifetime is None:
            raise BrokerError(8406, MINIMUM_LIFETIME, MAXIMUM_LIFETIME)
        if not isinstance(self.lifetime, int) or isinstance(self.lifetime, bool):
            raise BrokerError(402, "LIFETIME", short_repr(self.lifetime), "a whole number of seconds")
        if not MINIMUM_LIFETIME <= self.lifetime <= MAXIMUM_LIFETIME:
            raise BrokerError(8411, self.lifetime, MINIMUM_LIFETIME, MAXIMUM_LIFETIME)

    def _check_relation(self) -> None:
        conversation, group = self.related_conversation, self.related_conversation_group
        if conversation is not None and group is not None:
            clauses = "RELATED_CONVERSATION and RELATED_CONVERSATION_GROUP"
            raise BrokerError(402, "WITH", clauses, "only one of the two")
        for related in (conversation, group):
            if related is not None and not isinstance(related, UUID):
                raise BrokerError(402, "the related conversation", type(related).__name__, "uuid.UUID")
        if group is not None and group.int == 0:
            raise BrokerError(8414, group)


@dataclass(frozen=True, slots=True)
class BeginConversationTimer(Operation[None]):
    """BEGIN CONVERSATION TIMER: after `timeout` seconds a DialogTimer message arrives in this side's queue.

    A conversation has one timer: setting it again replaces it. The timer is stored in PostgreSQL, so the message
    arrives even if this program has ended meanwhile.

    Args:
        handle: the conversation.
        timeout: seconds, 0 to 2,147,483,647.

    Raises:
        BrokerError: 8426 no such conversation, 8410 the conversation's lifetime ends earlier, 8458 it has ended or
            failed, 8494 no SEND on this side's service, 8418 the handle is missing.
    """

    permission: ClassVar[str] = "BEGIN CONVERSATION TIMER"

    handle: UUID
    timeout: int

    def check(self) -> None:
        """Refuse invalid arguments.

        Raises:
            BrokerError: 8418 the handle is missing, 402 a wrong type or number of seconds.
        """
        arguments.check_handle(self.handle)
        timeout = self.timeout
        if not isinstance(timeout, int) or isinstance(timeout, bool) or not 0 <= timeout <= MAXIMUM_LIFETIME:
            raise BrokerError(402, "TIMEOUT", short_repr(timeout), f"an int from 0 to {MAXIMUM_LIFETIME} (seconds)")
