"""Request and answer: a conversation of one message and its answer, made of BEGIN DIALOG, SEND, RECEIVE and END."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass, field
from datetime import datetime, timedelta
from typing import ClassVar
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.arguments import OMITTED, check_handle, check_seconds
from servicebroker.model.errors import MAXIMUM_LIFETIME, BrokerError
from servicebroker.model.messages import Message, read_error
from servicebroker.model.requests import LateAnswerTreatment, RequestError, request_group
from servicebroker.model.wording import short_repr
from servicebroker.operations.begin import IDEMPOTENCY_TTL_S, BeginDialog
from servicebroker.operations.operation import Composite
from servicebroker.operations.send import Send

KEEP_S = 60.0  # longer than two maintenance runs: a caller that waits again at once gets the answer


@dataclass(frozen=True, slots=True)
class _Asked:
    """The options of BEGIN DIALOG and SEND of a request."""

    from_service: str
    to_service: str
    message_type: str = names.DEFAULT
    body: object = field(default=OMITTED, repr=False)
    _: KW_ONLY
    contract: str = names.DEFAULT
    broker_instance: str | UUID | None = None
    lifetime: int = MAXIMUM_LIFETIME
    encryption: bool = True
    priority: int | None = None
    idempotency_key: str | None = None
    idempotency_ttl: int = IDEMPOTENCY_TTL_S
    keep: float = KEEP_S
    late_answers: str = LateAnswerTreatment.DROP.value

    def begin(self) -> BeginDialog:
        """Return the BEGIN DIALOG of the request."""
        return BeginDialog(
            self.from_service,
            self.to_service,
            broker_instance=self.broker_instance,
            contract=self.contract,
            lifetime=self.lifetime,
            encryption=self.encryption,
            priority=self.priority,
            idempotency_key=self.idempotency_key,
            idempotency_ttl=self.idempotency_ttl,
        )

    def _group(self, now: datetime, timeout: float, random: UUID) -> UUID:
        check_seconds("keep", self.keep)
        if self.late_answers not in list(LateAnswerTreatment):
            raise BrokerError(402, "late_answers", short_repr(self.late_answers), '"drop" or "handle"')
        until = now + timedelta(seconds=timeout + self.keep)
        return request_group(until, LateAnswerTreatment(self.late_answers), random)

    def send(self, handle: UUID) -> Send[int]:
        """Return the SEND of the request."""
        return Send(handle, self.message_type, self.body)


@dataclass(frozen=True, slots=True)
class BeginRequest(Composite[UUID], _Asked):
    """Begin a request: BEGIN DIALOG and SEND. Return the handle, for `wait_for_answer` after the COMMIT.

    In a transaction, the request is sent with its COMMIT, together with changes of the application's tables.

    Args:
        from_service: as for `request`.
        to_service: as for `request`.
        message_type: as for `request`.
        body: as for `request`.
        contract: as for `request`.
        broker_instance: as for `request`.
        lifetime: as for `request`.
        encryption: as for `request`.
        priority: as for `request`.
        idempotency_key: as for `request`. A second BEGIN sends nothing, and returns the handle of the first.
        idempotency_ttl: as for `request`.
        keep: seconds for which the answer is kept for its caller; after that it is late.
        late_answers: as for `request`.

    Raises:
        BrokerError: as `begin_dialog` and `send`; 402 an invalid `keep` or `late_answers`.
    """

    permission: ClassVar[str] = "BEGIN DIALOG"

    def group(self, now: datetime, random: UUID) -> UUID:
        """Return the conversation group, which encodes the time after which the answer is late.

        Raises:
            BrokerError: 402 a wrong field.
        """
        return self._group(now, 0, random)


@dataclass(frozen=True, slots=True)
class Request(Composite[Message], _Asked):
    """Send a request, wait for its answer, and end the conversation. Return the answer; `answer.body` is its body.

    The request is a transaction of its own, so it is refused while the caller has a transaction open. Many threads or
    tasks can wait at a time. After a timeout or a cancellation, the conversation stays open until its answer arrives.

    Args:
        from_service: a service of this database. No other reader may use RECEIVE without WHERE on its queue.
        to_service: the service that answers.
        message_type: the message type of the request.
        body: as for `send`.
        contract: a contract of this database.
        broker_instance: as for `begin_dialog`.
        lifetime: as for `begin_dialog`. It ends a request without an answer.
        encryption: as for `begin_dialog`.
        priority: as for `begin_dialog`.
        idempotency_key: as for `begin_dialog`: a second request with it sends nothing, and waits for the answer to the
            first. One caller gets the answer; after that the request is refused with 8426.
        idempotency_ttl: as for `begin_dialog`.
        keep: seconds after the timeout for which the answer is kept for a caller that waits again; after that it is
            late.
        late_answers: "drop": the maintenance of any open instance ends the conversation when a late answer has arrived.
            "handle": the answer is left to `process_late_answers`. Both apply even if this program ends.
        timeout: seconds to wait for the answer.

    Raises:
        RequestTimeout: no answer has arrived in time. It has the reason and the handle.
        RequestError: the other side has ended the conversation with an error or without an answer.
        BrokerError: as `begin_dialog` and `send`; 226 the caller has a transaction open, 402 an invalid `timeout`,
            `keep` or `late_answers`, 9617 the queue of `from_service` is disabled.
    """

    permission: ClassVar[str] = "BEGIN DIALOG"

    _: KW_ONLY
    timeout: float = 30.0

    def group(self, now: datetime, random: UUID) -> UUID:
        """Return the conversation group, which encodes the time after which the answer is late.

        Raises:
            BrokerError: 402 a wrong field.
        """
        check_seconds("timeout", self.timeout)
        return self._group(now, self.timeout, random)


@dataclass(frozen=True, slots=True)
class WaitForAnswer(Composite[Message]):
    """Wait for the answer to a request, end its conversation, and return the answer.

    Args:
        handle: the handle of a request of any program: from `begin_request`, or from RequestTimeout.
        timeout: seconds to wait. An answer that becomes late meanwhile may be dropped.

    Raises:
        RequestTimeout: as `request`.
        RequestError: as `request`.
        BrokerError: 8426 no such conversation: another caller has received its answer, or it was late; 226 the caller
            has a transaction open, 9617 the queue is disabled, 402 an invalid `timeout`, 8418 the handle is missing.
    """

    permission: ClassVar[str] = "RECEIVE"

    handle: UUID
    _: KW_ONLY
    timeout: float = 30.0

    def check(self) -> None:
        """Refuse invalid arguments.

        Raises:
            BrokerError: 8418 and 402 handle, 402 timeout.
        """
        check_handle(self.handle)
        check_seconds("timeout", self.timeout)


def answer_in(handle: UUID, messages: list[Message]) -> Message | None:
    """Return the answer among messages of the conversation of a request, or None.

    Raises:
        RequestError: the other side, or the broker, has ended the conversation.
    """
    for message in messages:
        if message.is_error:
            raise RequestError(handle, *read_error(message.message_body))
        if not (message.is_timer or message.is_end_dialog):
            return message
    if any(message.is_end_dialog for message in messages):
        raise RequestError(handle, 0, "The other side has ended the conversation without an answer.")
    return None


def ends_conversation(messages: list[Message]) -> bool:
    """Return whether these messages end the conversation of a request: any but a DialogTimer."""
    return any(not message.is_timer for message in messages)
