# Made from aio/pool.py by tools/make_sync.py: change that file, then run `make sync`.
"""A pool of conversations: many sends reuse a conversation, until a new one replaces it.

The rules: docs/reference/rules.md#recycled-conversations.

**Lock order.** The sender locks the pool's row of its key, then the conversation. RECEIVE may lock endpoints first: it
fires their timers. So messages that come back are handled in two transactions: `note` stores them in the transaction
of the RECEIVE, and `recycle` then locks the row first.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from servicebroker.api.transaction import JoinedTransaction, Transaction
from servicebroker.engine.conversation import recycling
from servicebroker.engine.conversation.recycling import ConversationError, PoolAnswer
from servicebroker.model import names
from servicebroker.model.arguments import OMITTED, Body, Omitted, check_count, check_procedure, check_wait
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers import check_result
from servicebroker.model.messages import Message, read_error
from servicebroker.store.concurrency import IS_ASYNC
from servicebroker.store.direct import is_idle

if TYPE_CHECKING:
    from servicebroker.api.database import Database

Procedure: TypeAlias = Callable[[Transaction, list[Message]], object]

END_OF_STREAM = "EndOfStream"
MAX_ATTEMPTS = 10  # conversations that one SEND tries
_UNKNOWN_CONVERSATION_ERROR = 8426
_UNUSABLE = {8426, 8429}  # the conversation does not exist, or no message can be sent on it any more


class ConversationPool:
    """A pool of conversations from one service to another: one for each key, replaced after a time.

    Transactions that send with the same key run one after the other. The last message of a conversation has the type
    `end_of_stream` (EMPTY, sent by the initiator). The target ends its side when it receives that message; `target`
    makes a procedure for this.

    A program must call `answer` repeatedly. It handles the DialogTimers, EndDialogs and Errors of the conversations:
    it sends `end_of_stream` when the time of a conversation has passed, and ends this side.

    Args:
        database: the database of `from_service`.
        from_service: the initiating service.
        to_service: the name of the target service.
        contract: the contract of the conversations; it must allow `end_of_stream`.
        end_of_stream: the message type of a conversation's last message.
        seconds: replace a conversation after this time, 1 or more.
        messages: replace a conversation after this many messages, too; None for no limit.
        conversations: senders without a key take turns over this many conversations. None: one conversation for each
            connection.
        broker_instance: as for `begin_dialog`.
        encryption: as for `begin_dialog`.

    Raises:
        BrokerError: 402 an argument is not a number, or is less than 1.
    """

    def __init__(
        self,
        database: Database,
        from_service: str,
        to_service: str,
        *,
        contract: str = names.DEFAULT,
        end_of_stream: str = END_OF_STREAM,
        seconds: int = 3600,
        messages: int | None = None,
        conversations: int | None = None,
        broker_instance: str | UUID | None = None,
        encryption: bool = True,
    ) -> None:
        check_count("seconds", seconds)
        for name, count in (("messages", messages), ("conversations", conversations)):
            if count is not None:
                check_count(name, count)
        self.database = database
        self._address = recycling.PoolAddress(
            database.database_id,
            names.checked("service", from_service),
            names.checked("service", to_service),
            names.checked("contract", contract),
            names.checked("message type", end_of_stream),
        )
        self._seconds = seconds
        self._messages = messages
        self._turns = itertools.cycle(range(conversations)) if conversations else None
        self._broker_instance = broker_instance
        self._encryption = encryption

    def send(
        self,
        transaction: JoinedTransaction,
        message_type: str = names.DEFAULT,
        body: Body | Omitted = OMITTED,
        *,
        key: str | None = None,
    ) -> UUID:
        """SEND on the conversation of the key; begin one if there is none or it is unusable. Returns its handle.

        Messages with the same key keep their order within each conversation. If transactions send with several keys,
        all of them should use the keys in the same order. Otherwise two transactions can deadlock.

        Raises:
            BrokerError: as `send` and `begin_dialog`.
            InstanceError: no transaction is open, or ten conversations in a row were unusable.
        """
        return self._send(transaction, key, 1, lambda handle: transaction.send(handle, message_type, body))

    def send_batch(
        self, transaction: JoinedTransaction, message_type: str, bodies: Sequence[Body], *, key: str | None = None
    ) -> UUID:
        """SEND many messages, in order, on the conversation of the key. Returns its handle.

        Raises:
            BrokerError: as `send_batch` and `begin_dialog`.
            InstanceError: as `send`.
        """
        return self._send(
            transaction, key, len(bodies), lambda handle: transaction.send_batch(handle, message_type, bodies)
        )

    def end_streams(self) -> None:
        """Send `end_of_stream` on every conversation in use. The next message of each sender begins a new one."""
        for handle in self.database._do(recycling.find_conversations(self._address)):
            with self.database.transaction() as transaction:
                self._end_stream(transaction, handle)

    def answer(self, *, wait: float = 0.0) -> int:
        """Receive and handle the messages that came back on the pool's conversations. Returns their number.

        For a DialogTimer, send `end_of_stream`. For an EndDialog or an Error, end this side; `errors` returns the
        Errors. Other messages are refused. A service that gets replies needs a procedure of its own, which calls
        `note` for these three kinds, and `recycle` after its COMMIT.

        Args:
            wait: seconds to wait for a message before this returns; float("inf") for ever.

        Raises:
            BrokerError: as `receive`, 15151 no such service.
            InstanceError: a message of another kind came; it stays in the queue.
        """
        check_wait(wait)
        queue = self.database._do(recycling.find_queue(self._address.database_id, self._address.from_service))
        processed = 0
        self.recycle()  # messages that a dead process has noted
        while taken := self._take(queue, wait):
            processed += taken
            self.recycle()
        return processed

    def note(self, transaction: Transaction, messages: list[Message]) -> None:
        """Store DialogTimer, EndDialog and Error messages for `recycle`, in the transaction that received them.

        Raises:
            InstanceError: one of the messages is of another kind.
        """
        for message in messages:
            if not (message.is_timer or message.is_end_dialog or message.is_error):
                raise InstanceError(
                    f"A message of the type '{message.message_type_name}' came back on a conversation of a pool: "
                    "receive in a procedure of your own, and pass only DialogTimer, EndDialog and Error to `note`."
                )
        transaction._do(recycling.store_answers(self._address.database_id, messages))

    def recycle(self) -> int:
        """Handle the messages stored by `note`, each in a transaction of its own. Returns their number."""
        recycled = 0
        while self._recycle_one():
            recycled += 1
        return recycled

    def errors(self) -> list[ConversationError]:
        """Return the last 1,000 Errors of conversations from `from_service` in any pool, oldest first."""
        return self.database._do(recycling.find_errors(self._address.database_id, self._address.from_service))

    @staticmethod
    def target(procedure: Procedure, *, end_of_stream: str = END_OF_STREAM) -> Procedure:
        """Return a procedure for `process` at the target: it calls `procedure`, and ends finished conversations.

        `procedure` gets the received messages except for `end_of_stream`, EndDialog and Error. Each of these three
        ends this side of its conversation.

        Raises:
            BrokerError: 402 `procedure` cannot be called.
        """
        check_procedure(procedure, may_be_async=IS_ASYNC)

        def run(transaction: Transaction, messages: list[Message]) -> None:
            ended = [m for m in messages if m.is_end_dialog or m.is_error or m.message_type_name == end_of_stream]
            others = [m for m in messages if m not in ended]
            if others:
                check_result(procedure(transaction, others))
            for handle in dict.fromkeys(m.conversation_handle for m in ended):
                transaction.end_conversation(handle)

        return run

    def _send(
        self,
        transaction: JoinedTransaction,
        key: str | None,
        messages: int,
        send: Callable[[UUID], object],
    ) -> UUID:
        if is_idle(transaction.connection):
            raise InstanceError("A pool sends only inside a transaction: begin a transaction on the connection first.")
        session = self._slot_key(transaction, key)
        handle, sent = transaction._do(recycling.use_conversation(self._address, session, messages))
        for _ in range(MAX_ATTEMPTS):
            if handle is None:
                handle, sent = self._begin(transaction, session), messages
            try:
                send(handle)
            except BrokerError as problem:
                if problem.number not in _UNUSABLE:
                    raise
                refused = problem
            else:
                if self._messages is not None and sent >= self._messages:
                    self._end_stream(transaction, handle)
                return handle
            transaction._do(recycling.unassign(handle, messages))
            handle = None
        raise InstanceError(
            f"SEND failed on {MAX_ATTEMPTS} conversations in a row. The last error: {refused}"
        ) from refused

    def _slot_key(self, transaction: JoinedTransaction, key: str | None) -> str:
        if key is not None:
            return f"key {names.checked('pool key', key)}"
        if self._turns is not None:
            return f"turn {next(self._turns)}"
        return f"session {transaction.connection.info.backend_pid}"

    def _begin(self, transaction: JoinedTransaction, session: str) -> UUID:
        address = self._address
        handle = transaction.begin_dialog(
            address.from_service,
            address.to_service,
            broker_instance=self._broker_instance,
            contract=address.contract,
            encryption=self._encryption,
        )
        transaction.begin_conversation_timer(handle, self._seconds)
        transaction._do(recycling.assign(address, session, handle))
        return handle

    def _end_stream(self, transaction: JoinedTransaction, handle: UUID) -> None:
        """Remove the conversation from the pool, so that no sender uses it any more; then send `end_of_stream`."""
        end_of_stream = transaction._do(recycling.release(handle))
        if end_of_stream is None:
            return
        try:
            transaction.send(handle, end_of_stream)
        except BrokerError as refused:
            if refused.number not in _UNUSABLE:  # else the conversation has ended already
                raise

    def _take(self, queue: str, wait: float) -> int:
        with self.database.transaction() as transaction:
            messages = transaction.receive(queue, wait=wait)
            if messages:
                self.note(transaction, messages)
        return len(messages)

    def _recycle_one(self) -> bool:
        with self.database.transaction() as transaction:
            address = self._address
            answer = transaction._do(recycling.next_answer(address.database_id, address.from_service))
            if answer is None:
                return False
            if answer.message_type_id == names.DIALOG_TIMER_ID:
                self._end_stream(transaction, answer.conversation_handle)
            else:
                self._end(transaction, answer)
            transaction._do(recycling.remove_answer(answer))
        return True

    def _end(self, transaction: Transaction, answer: PoolAnswer) -> None:
        handle = answer.conversation_handle
        transaction._do(recycling.release(handle))
        if answer.message_type_id == names.ERROR_ID:
            error = ConversationError(handle, *read_error(answer.message_body), self.database.instance.clock())
            transaction._do(recycling.record_error(self._address.database_id, answer.from_service, error))
        try:
            transaction.end_conversation(handle)
        except BrokerError as refused:
            if refused.number != _UNKNOWN_CONVERSATION_ERROR:  # removed meanwhile, for example by NEW_BROKER
                raise
