"""Workers as values: a queue, the handlers of its messages by type, and a policy for failed messages."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

from servicebroker.model import handlers
from servicebroker.model.arguments import check_count, check_groups, check_policy, check_switch
from servicebroker.model.errors import BodyError, BrokerError, InstanceError
from servicebroker.model.handlers import check_kind, check_parameters
from servicebroker.model.messages import Message
from servicebroker.model.names import END_DIALOG
from servicebroker.model.poison import Failure, Policy, SetAside, Verdict, give_up_after
from servicebroker.model.wording import shown

F = TypeVar("F", bound=Callable[..., Any])

UNANSWERABLE = {8426, 8429}  # the conversation is gone, was ended by the other side, or has failed

_OTHERS = ""  # the key of the handler of all other types


def by_default(failure: Failure) -> Verdict:
    """Retry five times, after 1, 2, 4, 8 and 16 seconds, then keep a dead letter; at once if no retry can help."""
    error = failure.error
    cannot_be_answered = isinstance(error, BrokerError) and error.number in UNANSWERABLE
    return SetAside() if cannot_be_answered or isinstance(error, BodyError) else _patient(failure)


_patient = give_up_after(5, SetAside(), pause=1.0)


class Worker:
    """A reader of a queue. A failure of a handler affects its message only.

        stock = sb.Worker("StockQueue")

        @stock.on("//shop/Order")
        def order(tx, message):
            tx.send(message.conversation_handle, "//shop/Confirmation", b"...")

    It is run by `servicebroker worker module:stock`, or by `with database.working(stock): ...`. Each call of a handler
    has a transaction of its own, in which its message was received, except with `groups`. EndDialog is answered with
    END CONVERSATION, and an Error too, which is logged; handlers of these types are called first.

    Attributes:
        queue: its name.
        batch: None, and handlers get (transaction, message); or a number, and they get (transaction, messages): at most
            that many consecutive messages of one conversation group.
        groups: the number of conversation groups, at most 60, that share a transaction. This makes conversations of few
            messages several times as fast. An exception of a handler undoes only the work for its group.
        answers_ends: EndDialog is answered without a handler, for many conversations at a time; needs more than one of
            `groups`. An Error still reaches its handler, or is logged.
        poison: the policy for a message whose handler raises an exception.
    """

    def __init__(
        self,
        queue: str,
        *,
        batch: int | None = None,
        groups: int = 1,
        answers_ends: bool = False,
        poison: Policy = by_default,
    ) -> None:
        if not isinstance(queue, str):
            raise BrokerError(402, "queue", type(queue).__name__, "str, the name of a queue")
        if batch is not None:
            check_count("batch", batch)
        check_groups(groups)
        check_switch("answers_ends", answers_ends)
        if answers_ends and groups == 1:
            raise BrokerError(402, "answers_ends", "True", "False with one of `groups`: ends are answered for many")
        check_policy(poison)
        self.queue = queue
        self.batch = batch
        self.groups = groups
        self.answers_ends = answers_ends
        self.poison = poison
        self._handlers: dict[str, Callable[..., Any]] = {}

    def on(self, *message_types: str) -> Callable[[F], F]:
        """Register the function as handler of these message types; without any, of all types without another handler.

        `sb.DIALOG_TIMER`, `sb.END_DIALOG` and `sb.ERROR` are types as well.

        Raises:
            BrokerError: 402 an argument that is no name, a type that has a handler, END_DIALOG with `answers_ends`, a
                coroutine function beside a plain one, a generator function, or one that does not take two arguments.
        """
        for given in message_types:
            if not isinstance(given, str):
                raise BrokerError(402, "on", shown(given), 'the name of a message type: @worker.on("//shop/Order")')
        if self.answers_ends and END_DIALOG in message_types:
            raise BrokerError(402, "on", "END_DIALOG", "another type: this worker answers ends without a handler")

        def register(function: F) -> F:
            if not callable(function):
                raise BrokerError(402, "on", shown(function), "a function of a transaction and its messages")
            check_kind("on", function, may_be_async=True)
            check_parameters("on", function, "transaction", "message" if self.batch is None else "messages")
            is_async = handlers.is_async(function)
            if self._handlers and is_async != self.is_async:
                raise BrokerError(402, "on", "async def beside def", "the same for all handlers of a worker")
            for message_type in message_types or (_OTHERS,):
                if message_type in self._handlers:
                    raise BrokerError(402, "on", f"'{message_type}', which has a handler", "another message type")
                self._handlers[message_type] = function
            return function

        return register

    @property
    def is_async(self) -> bool:
        """True if its handlers are coroutine functions."""
        return any(handlers.is_async(handler) for handler in self._handlers.values())

    def check(self, *, is_async: bool) -> None:
        """Refuse a worker that cannot run here.

        Raises:
            BrokerError: 402 it has no handler, or handlers of the other kind.
        """
        if not self._handlers:
            raise BrokerError(402, "worker", "one without handlers", 'given one: @worker.on("//shop/Order")')
        if self.is_async != is_async:
            kinds = "functions", "coroutine functions (async def)"
            raise BrokerError(402, "worker", f"one of {kinds[self.is_async]}", f"one of {kinds[is_async]} here")

    def handler_of(self, message: Message) -> Callable[..., Any] | None:
        """Return the handler of a message; None for an EndDialog or Error without a handler.

        Raises:
            InstanceError: its type has no handler.
        """
        given = self._handlers.get(message.message_type_name)
        if given is not None or message.is_end_dialog or message.is_error:
            return given
        if _OTHERS in self._handlers:
            return self._handlers[_OTHERS]
        raise InstanceError(
            f"The worker of {self.queue} has no handler for messages of type '{message.message_type_name}': register "
            f"one with @worker.on({message.message_type_name!r})."
        )
