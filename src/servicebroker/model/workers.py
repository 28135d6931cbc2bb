"""Workers as values: a queue, the handlers of its messages by type, and a retry policy for failed messages."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from datetime import timedelta
from difflib import get_close_matches
from typing import Any, NamedTuple, TypeVar

from servicebroker.model.arguments import (
    check_count,
    check_groups,
    check_policy,
    check_slots,
    check_switch,
    messages_per_second,
)
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.handlers import check_kind, check_parameters
from servicebroker.model.handlers.schedules import Missed, Schedule, name_of
from servicebroker.model.handlers.typed import Handler, Middleware
from servicebroker.model.messages import Message
from servicebroker.model.names import END_DIALOG
from servicebroker.model.poison import Failure, Policy, SetAside, Verdict, give_up_after
from servicebroker.model.wording import short_repr

F = TypeVar("F", bound=Callable[..., Any])

_OTHERS = ""  # the key of the handler of all other types


def by_default(failure: Failure) -> Verdict:
    """Retry five times, after 1, 2, 4, 8 and 16 seconds, then keep a dead letter. If no retry can help, skip them."""
    return _patient(failure)


_patient = give_up_after(5, SetAside(), pause=1.0)


class ScheduledHandler(NamedTuple):
    """A handler that is called at the times of a schedule."""

    schedule: Schedule
    handler: Handler


class ExpectedType(NamedTuple):
    """A message type that initiators may send to a queue, by the contract of a service of that queue."""

    message_type: str
    contract: str
    service: str


class Worker:
    """A reader of a queue. A failure of a handler affects its message only.

        stock = sb.Worker("StockQueue")

        @stock.on("//shop/Order")
        def order(tx: sb.Transaction, message: sb.Message[Order]) -> None:
            tx.send(message.conversation_handle, "//shop/Confirmation", b"...")

    It is run by `servicebroker worker module:stock`, or by `with database.working(stock): ...`. Each call of a handler
    has a transaction of its own, in which its message was received, except with `groups`. After an EndDialog or an
    Error, and after the handler of that type, if any, the worker ends the conversation. It logs an Error.

    Attributes:
        queue: its name.
        batch: None, and handlers get (transaction, message); or a number, and they get (transaction, messages): at most
            that many consecutive messages of one conversation group.
        groups: the number of conversation groups, at most 60, that share a transaction. This makes conversations of few
            messages several times as fast. An exception of a handler undoes only the work for its group.
        answers_ends: True if the worker answers EndDialog itself, for many conversations in one statement. Requires
            `groups` > 1. An Error still reaches its handler, or is logged.
        poison: the retry policy for a message whose handler raises an exception.
        concurrency: the number of messages that each process handles at a time; None for that of `working` or of the
            command.
        rate: the most messages that each process handles in a time, spread evenly, as "100/s", "30/min" or "1000/h".
        global_concurrency: the maximum number of handlers that run at a time in all processes, for all workers of the
            queue that set this limit; at most 1,000.
        global_rate: the most messages in a time, as `rate`, of all workers of the queue that set this limit.
    """

    def __init__(
        self,
        queue: str,
        *,
        batch: int | None = None,
        groups: int = 1,
        answers_ends: bool = False,
        poison: Policy = by_default,
        concurrency: int | None = None,
        rate: str | None = None,
        global_concurrency: int | None = None,
        global_rate: str | None = None,
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
        if concurrency is not None:
            check_count("concurrency", concurrency)
        if global_concurrency is not None:
            check_slots(global_concurrency)
        self.per_second = None if rate is None else messages_per_second("rate", rate)
        self.global_per_second = None if global_rate is None else messages_per_second("global_rate", global_rate)
        self.queue = queue
        self.batch = batch
        self.groups = groups
        self.answers_ends = answers_ends
        self.poison = poison
        self.concurrency = concurrency
        self.rate = rate
        self.global_concurrency = global_concurrency
        self.global_rate = global_rate
        self._handlers: dict[str, Handler] = {}
        self._middleware: list[Middleware] = []
        self._schedules: dict[str, ScheduledHandler] = {}

    def on(self, *message_types: str) -> Callable[[F], F]:
        """Register the function as handler of these message types; without any, of all types without another handler.

        `sb.DIALOG_TIMER`, `sb.END_DIALOG` and `sb.ERROR` are types as well. The annotation of the second parameter
        decides what the function gets. Without one, or with `sb.Message`, it gets the message. With `sb.Message[Order]`
        the `body` of the message is an Order, and with `Order` the function gets the body. A dataclass, a
        msgspec.Struct and a model of pydantic are read from JSON, str as UTF-8, bytes as they are. With `batch` it is a
        list of these.

        Raises:
            BrokerError: 402 an argument that is not a name, a type that has a handler, END_DIALOG with `answers_ends`,
                a coroutine function beside a plain one, a generator function, or one that does not take two arguments.
        """
        for name in message_types:
            if not isinstance(name, str):
                raise BrokerError(402, "on", short_repr(name), 'the name of a message type: @worker.on("//shop/Order")')
        if self.answers_ends and END_DIALOG in message_types:
            raise BrokerError(
                402, "on", "END_DIALOG", "another type: with answers_ends the worker answers EndDialog itself"
            )

        def register(function: F) -> F:
            if not callable(function):
                raise BrokerError(402, "on", short_repr(function), "a function of a transaction and its messages")
            handler = self._made("on", function, sys._getframe(1).f_locals)
            for message_type in message_types or (_OTHERS,):
                if message_type in self._handlers:
                    raise BrokerError(402, "on", f"'{message_type}', which has a handler", "another message type")
                self._handlers[message_type] = handler
            return function

        return register

    def every(
        self,
        every: str | timedelta,
        *,
        time_zone: str = "UTC",
        missed: Missed = "once",
        name: str | None = None,
    ) -> Callable[[F], F]:
        """Register the function to be called at the times of a schedule, once for each time in all processes.

            @stock.every("0 9 * * mon-fri", time_zone="Europe/Berlin")
            def remind(tx: sb.Transaction, at: datetime) -> None: ...

        Its message is the DialogTimer of a conversation of its own, which begins when a worker first runs the schedule.
        The body is the time, as text. With the annotation `datetime` the function gets the time, else the message; with
        `batch` a list of one. The retry policy decides on failures, as for any message. After a final
        failure the schedule continues with the next time.

        Args:
            every: the five fields of cron, `@hourly`, `@daily`, `@weekly`, `@monthly` or `@yearly`; or a timedelta of
                whole seconds, counted from 1970, so that an hour is each full hour.
            time_zone: of the fields.
            missed: for times that passed while no worker ran: "once" calls the function once, for the last of them;
                "all" calls it for each; "skip" for none that is more than a minute old.
            name: of the schedule, in its queue; the function's own without it. A schedule with another rule keeps its
                conversation, one with another name is another schedule.

        Raises:
            BrokerError: 402 no rule, zone, policy or name; a name that another function has; or a function that `on`
                would refuse.
        """
        schedule = Schedule.of(every, time_zone, missed)

        def register(function: F) -> F:
            if not callable(function):
                raise BrokerError(402, "every", short_repr(function), "a function of a transaction and a message")
            handler = self._made("every", function, sys._getframe(1).f_locals)
            schedule_name = name_of(name, function)
            if schedule_name in self._schedules:
                raise BrokerError(402, "every", f"'{schedule_name}', which another function has", "another name=")
            self._schedules[schedule_name] = ScheduledHandler(schedule, handler)
            return function

        return register

    def _made(self, where: str, function: Callable[..., Any], scope: dict[str, Any]) -> Handler:
        """Return the handler of a function. `scope`: an annotation may name a class of the decorating function.

        Raises:
            BrokerError: 402 the worker cannot call it.
        """
        check_kind(where, function, may_be_async=True)
        check_parameters(where, function, "transaction", "message" if self.batch is None else "messages")
        handler = Handler(function, self._middleware, is_batch=self.batch is not None, scope=scope)
        if (self._handlers or self._schedules) and handler.is_async != self.is_async:
            raise BrokerError(402, where, "async def beside def", "the same for all handlers of a worker")
        return handler

    @property
    def schedules(self) -> Mapping[str, Schedule]:
        """The schedules, by name."""
        return {name: scheduled.schedule for name, scheduled in self._schedules.items()}

    def handler_of_schedule(self, name: str) -> Handler:
        """Return the handler of a schedule.

        Raises:
            InstanceError: the worker has no schedule of that name.
        """
        if name in self._schedules:
            return self._schedules[name].handler
        raise InstanceError(
            f"The worker of {self.queue} has no schedule '{name}': let each worker of the queue have it, or remove it "
            f"with servicebroker schedule drop."
        )

    def middleware(self, function: F) -> F:
        """Register a function that wraps each call of a handler: with one `yield`, or that returns a context manager.

            @stock.middleware
            def timed(tx, message):
                with metrics.timer(message.message_type_name):
                    yield

        It gets the transaction and the message; with `batch`, the list of messages. The first that is registered is
        the outermost. What a handler raises is raised at the `yield`. An exception of the middleware is a failure of
        the message, as one of the handler. With `async def` handlers both forms may be used, `async def` too.

        Raises:
            BrokerError: 402 a coroutine function without `yield`, or one that does not take two arguments.
        """
        if not callable(function):
            raise BrokerError(402, "middleware", short_repr(function), "a function of a transaction and a message")
        self._middleware.append(Middleware(function))
        return function

    @property
    def has_handlers(self) -> bool:
        """False if neither a message type nor a schedule has a handler: with `answers_ends` such a worker runs."""
        return bool(self._handlers or self._schedules)

    @property
    def is_async(self) -> bool:
        """True if its handlers are coroutine functions."""
        scheduled = (each.handler for each in self._schedules.values())
        return any(handler.is_async for handler in (*self._handlers.values(), *scheduled))

    def check(self, *, is_async: bool) -> None:
        """Refuse a worker that cannot run here.

        Raises:
            BrokerError: 402 it has no handler and not `answers_ends`, handlers or middleware of the other kind, or an
                annotation that messages of the type cannot be read as.
        """
        worker = f"the worker of {self.queue}"
        if not self.has_handlers and not self.answers_ends:
            raise BrokerError(402, worker, "one without handlers", 'given one: @worker.on("//shop/Order")')
        if self.has_handlers and self.is_async != is_async:
            kinds = "functions", "coroutine functions (async def)"
            raise BrokerError(402, worker, f"one of {kinds[self.is_async]}", f"one of {kinds[is_async]} here")
        if not is_async and any(middleware.is_async for middleware in self._middleware):
            raise BrokerError(402, "middleware", "an async generator function", "a plain one, as the handlers are")
        for message_type, handler in self._handlers.items():
            if message_type != _OTHERS:
                handler.prepare(message_type)
        for scheduled in self._schedules.values():
            scheduled.handler.prepare_schedule()

    def check_handles(self, expected: Iterable[ExpectedType]) -> None:
        """Refuse a worker without a handler of a type that initiators send to its queue.

        Raises:
            BrokerError: 402 a type has no handler.
        """
        if _OTHERS in self._handlers:
            return
        for message_type, contract, service in expected:
            if message_type in self._handlers:
                continue
            near = get_close_matches(message_type, self._handlers, 1)
            hint = f"Did you mean it by the handler of '{near[0]}'?" if near else ""
            actual = (
                f"one without a handler of '{message_type}', which '{contract}' lets initiators send to '{service}'"
            )
            remedy = f"given one: @worker.on({message_type!r}), or @worker.on() for all other types"
            raise BrokerError(402, f"the worker of {self.queue}", actual, remedy, hint=hint)

    def handler_of(self, message: Message) -> Handler | None:
        """Return the handler of a message; None for an EndDialog or Error without a handler.

        Raises:
            InstanceError: its type has no handler.
        """
        handler = self._handlers.get(message.message_type_name)
        if handler is not None or message.is_end_dialog or message.is_error:
            return handler
        if _OTHERS in self._handlers:
            return self._handlers[_OTHERS]
        raise InstanceError(
            f"The worker of {self.queue} has no handler for messages of type '{message.message_type_name}': register "
            f"one with @worker.on({message.message_type_name!r})."
        )
