"""Conversations that are reused by many sends and recycled after a while.

The rules: docs/reference/rules.md#recycled-conversations.

The sender takes its session's row and then the conversation. What comes back is answered in two steps: RECEIVE only
notes it, since it may hold endpoints whose timers it has fired; a transaction of its own then takes the row first.
"""

from __future__ import annotations

import itertools
from collections.abc import Awaitable, Callable, Sequence
from typing import TYPE_CHECKING, TypeAlias
from uuid import UUID

from servicebroker.api.aio.transaction import AsyncJoinedTransaction, AsyncTransaction
from servicebroker.engine.conversation import recycling
from servicebroker.engine.conversation.recycling import ConversationError, PoolAnswer
from servicebroker.model import names
from servicebroker.model.arguments import OMITTED, Body, Omitted, check_count, check_procedure, check_wait
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers import check_result
from servicebroker.model.messages import Message, read_error
from servicebroker.store.aio.concurrency import IS_ASYNC
from servicebroker.store.direct import is_idle

if TYPE_CHECKING:
    from servicebroker.api.aio.database import AsyncDatabase

Procedure: TypeAlias = Callable[[AsyncTransaction, list[Message]], Awaitable[object]]

END_OF_STREAM = "EndOfStream"
MAX_ATTEMPTS = 10  # conversations that one SEND tries
_UNUSABLE = {8426, 8429}  # the conversation is gone, or nothing can be sent there any more


class AsyncConversationPool:
    """One conversation for each key, from one service to another; each is ended after a time and replaced.

    Of the transactions that send with the same key one runs at a time. The target is told by a message of the type
    `end_of_stream` (EMPTY, sent by the initiator), which is the last of its conversation, and ends it; `target` makes a
    procedure that does so. `answer` must run somewhere: it tells the target when a time is over, and ends this side.

    Args:
        database: where `from_service` is.
        from_service: the initiator.
        to_service: the target's name.
        contract: of the conversations; it must allow `end_of_stream`.
        end_of_stream: the message type that ends a stream.
        seconds: how long a conversation is used, 1 or more.
        messages: after how many messages it is replaced even before; None for any number.
        conversations: take turns over so many; None: a sender that names no key has one for its connection.
        broker_instance: as for `begin_dialog`.
        encryption: as for `begin_dialog`.

    Raises:
        BrokerError: 402 a number that is none, or not 1 or more.
    """

    def __init__(
        self,
        database: AsyncDatabase,
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

    async def send(
        self,
        transaction: AsyncJoinedTransaction,
        message_type: str = names.DEFAULT,
        body: Body | Omitted = OMITTED,
        *,
        key: str | None = None,
    ) -> UUID:
        """SEND on the conversation of the key, a new one when there is none or it cannot be used; returns its handle.

        Messages with the same key keep their order within each conversation. A transaction that sends with several
        keys should do so in the order of the keys, as every other should: else two can be each other's deadlock.

        Raises:
            BrokerError: as `send` and `begin_dialog`.
            InstanceError: no transaction is open, or ten conversations in a row could not be used.
        """
        return await self._send(transaction, key, 1, lambda handle: transaction.send(handle, message_type, body))

    async def send_batch(
        self, transaction: AsyncJoinedTransaction, message_type: str, bodies: Sequence[Body], *, key: str | None = None
    ) -> UUID:
        """SEND many messages on the conversation of the key, in their order; returns its handle.

        Raises:
            BrokerError: as `send_batch` and `begin_dialog`.
            InstanceError: as `send`.
        """
        return await self._send(
            transaction, key, len(bodies), lambda handle: transaction.send_batch(handle, message_type, bodies)
        )

    async def end_streams(self) -> None:
        """End the stream of every conversation in use: each sender's next message opens another one."""
        for handle in await self.database._do(recycling.find_conversations(self._address)):
            async with self.database.transaction() as transaction:
                await self._end_stream(transaction, handle)

    async def answer(self, *, wait: float = 0.0) -> int:
        """Take what came back on the pool's conversations and answer it; returns how many messages.

        A DialogTimer ends the stream, an EndDialog and an Error end this side; Errors are kept for `errors`. A pool
        takes no other messages of the queue. A service that gets replies needs a procedure of its own, with `note` for
        these three kinds and `recycle` after its COMMIT.

        Args:
            wait: seconds to wait for a message before it ends; float("inf") for ever.

        Raises:
            BrokerError: as `receive`, 15151 no such service.
            InstanceError: there is a message of another kind; it stays in the queue.
        """
        check_wait(wait)
        queue = await self.database._do(recycling.find_queue(self._address.database_id, self._address.from_service))
        done = 0
        await self.recycle()  # messages that a process noted before it died
        while taken := await self._take(queue, wait):
            done += taken
            await self.recycle()
        return done

    async def note(self, transaction: AsyncTransaction, messages: list[Message]) -> None:
        """Keep the DialogTimer, EndDialog and Error messages of a RECEIVE in its transaction, for `recycle`.

        Raises:
            InstanceError: there is a message of another kind.
        """
        for message in messages:
            if not (message.is_timer or message.is_end_dialog or message.is_error):
                raise InstanceError(
                    f"A message of the type '{message.message_type_name}' came back on a conversation of a pool: "
                    "receive in a procedure of your own and give `note` the system messages only."
                )
        await transaction._do(recycling.store_answers(self._address.database_id, messages))

    async def recycle(self) -> int:
        """Answer the noted messages, each in a transaction of its own. Returns their number."""
        done = 0
        while await self._recycle_one():
            done += 1
        return done

    async def errors(self) -> list[ConversationError]:
        """Return the last thousand Errors that ended conversations of this initiator's pools, oldest first."""
        return await self.database._do(recycling.find_errors(self._address.database_id, self._address.from_service))

    @staticmethod
    def target(procedure: Procedure, *, end_of_stream: str = END_OF_STREAM) -> Procedure:
        """Make a procedure for the target's `process`: it runs yours on messages and ends conversations that are over.

        Yours gets what RECEIVE took but for `end_of_stream`, EndDialog and Error, each of which ends this side of its
        conversation.

        Raises:
            BrokerError: 402 `procedure` cannot be called.
        """
        check_procedure(procedure, may_be_async=IS_ASYNC)

        async def run(transaction: AsyncTransaction, messages: list[Message]) -> None:
            over = [m for m in messages if m.is_end_dialog or m.is_error or m.message_type_name == end_of_stream]
            rest = [m for m in messages if m not in over]
            if rest:
                check_result(await procedure(transaction, rest))
            for handle in dict.fromkeys(m.conversation_handle for m in over):
                await transaction.end_conversation(handle)

        return run

    async def _send(
        self,
        transaction: AsyncJoinedTransaction,
        key: str | None,
        messages: int,
        send: Callable[[UUID], Awaitable[object]],
    ) -> UUID:
        if is_idle(transaction.connection):
            raise InstanceError("A pool sends only inside a transaction: begin a transaction on the connection first.")
        session = self._session(transaction, key)
        handle, sent = await transaction._do(recycling.use_conversation(self._address, session, messages))
        for _ in range(MAX_ATTEMPTS):
            if handle is None:
                handle, sent = await self._begin(transaction, session), messages
            try:
                await send(handle)
            except BrokerError as problem:
                if problem.number not in _UNUSABLE:
                    raise
                refused = problem
            else:
                if self._messages is not None and sent >= self._messages:
                    await self._end_stream(transaction, handle)
                return handle
            await transaction._do(recycling.unassign(handle, messages))
            handle = None
        raise InstanceError(f"Nothing could be sent on {MAX_ATTEMPTS} conversations in a row: {refused}") from refused

    def _session(self, transaction: AsyncJoinedTransaction, key: str | None) -> str:
        if key is not None:
            return f"key {names.checked('pool key', key)}"
        if self._turns is not None:
            return f"turn {next(self._turns)}"
        return f"session {transaction.connection.info.backend_pid}"

    async def _begin(self, transaction: AsyncJoinedTransaction, session: str) -> UUID:
        address = self._address
        handle = await transaction.begin_dialog(
            address.from_service,
            address.to_service,
            broker_instance=self._broker_instance,
            contract=address.contract,
            encryption=self._encryption,
        )
        await transaction.begin_conversation_timer(handle, self._seconds)
        await transaction._do(recycling.assign(address, session, handle))
        return handle

    async def _end_stream(self, transaction: AsyncJoinedTransaction, handle: UUID) -> None:
        """Release the row first, so that nobody sends there any more; then tell the target."""
        end_of_stream = await transaction._do(recycling.release(handle))
        if end_of_stream is None:
            return
        try:
            await transaction.send(handle, end_of_stream)
        except BrokerError as refused:
            if refused.number not in _UNUSABLE:  # the conversation has ended already: no target to tell
                raise

    async def _take(self, queue: str, wait: float) -> int:
        async with self.database.transaction() as transaction:
            messages = await transaction.receive(queue, wait=wait)
            if messages:
                await self.note(transaction, messages)
        return len(messages)

    async def _recycle_one(self) -> bool:
        async with self.database.transaction() as transaction:
            address = self._address
            answer = await transaction._do(recycling.next_answer(address.database_id, address.from_service))
            if answer is None:
                return False
            if answer.message_type_id == names.DIALOG_TIMER_ID:
                await self._end_stream(transaction, answer.conversation_handle)
            else:
                await self._end(transaction, answer)
            await transaction._do(recycling.remove_answer(answer))
        return True

    async def _end(self, transaction: AsyncTransaction, answer: PoolAnswer) -> None:
        handle = answer.conversation_handle
        await transaction._do(recycling.release(handle))
        if answer.message_type_id == names.ERROR_ID:
            error = ConversationError(handle, *read_error(answer.message_body), self.database.instance.clock())
            await transaction._do(recycling.record_error(self._address.database_id, answer.from_service, error))
        try:
            await transaction.end_conversation(handle)
        except BrokerError as refused:
            if refused.number != 8426:  # gone with its broker's identifier, for one
                raise
