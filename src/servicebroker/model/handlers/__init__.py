"""Handlers: functions of the application that workers and `process` call.

**The problem.** A body that never runs must not count as done, and a handler wants an Order, not a row of the queue.
Registration refuses functions that certainly run nothing: generator functions, and coroutine functions where nothing
awaits them. A plain function may still return a coroutine, for example a lambda or a decorator's wrapper.
`check_result` refuses that result, as a failure of the message.

**Modules.**

* `typed.py`: a handler as a worker calls it: with the argument of its annotation, within middleware.
* `schedules.py`: the times of a scheduled handler, from a cron rule or an interval.

**The rules.**

* Errors in a handler's signature are raised when it is registered, or when its worker starts.
* An exception of a handler, of its middleware or of a codec is a failure of its message.

Begin with `Handler` in `typed.py`.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import AsyncGeneratorType, CoroutineType, GeneratorType
from typing import Any

from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.wording import describe_exception

_FLAWS = (
    (inspect.isgeneratorfunction, "a generator function, whose body would never run", "a function without yield"),
    (inspect.isasyncgenfunction, "an async generator function, whose body would never run", "a function without yield"),
)


def is_async(function: Callable[..., Any]) -> bool:
    """Check whether a call returns a coroutine: a coroutine function, or an object whose `__call__` is one."""
    return inspect.iscoroutinefunction(underlying_function(function))


def takes(function: Callable[..., Any], arguments: int) -> bool:
    """Check whether a function can be called with this number of positional arguments."""
    try:
        inspect.signature(function).bind(*range(arguments))
    except TypeError:
        return False
    except ValueError:  # a C function without a signature
        return True
    return True


def check_kind(where: str, function: Callable[..., Any], *, may_be_async: bool) -> None:
    """Refuse a function whose call would run nothing of its body.

    Raises:
        BrokerError: 402 a generator function, or a coroutine function that nothing awaits.
    """
    code = underlying_function(function)
    for has_flaw, flaw, cure in _FLAWS:
        if has_flaw(code):
            raise BrokerError(402, where, flaw, cure)
    if not may_be_async and inspect.iscoroutinefunction(code):
        raise BrokerError(402, where, "a coroutine function, which nothing awaits here", "a plain function (def)")


def check_parameters(where: str, function: Callable[..., Any], *parameters: str) -> None:
    """Refuse a function that cannot be called with these positional arguments.

    Raises:
        BrokerError: 402 it takes another number of them.
    """
    if not takes(function, len(parameters)):
        signature = inspect.signature(function)
        raise BrokerError(402, where, f"a function of {signature}", f"one of ({', '.join(parameters)})")


def check_result(result: object) -> None:
    """Refuse a result that means unfinished work: an awaitable or a generator.

    Raises:
        InstanceError: it is one, so its body does not run.
    """
    if result is None or not (isinstance(result, GeneratorType | AsyncGeneratorType) or inspect.isawaitable(result)):
        return
    if isinstance(result, GeneratorType | CoroutineType):
        result.close()  # else Python warns that it was never awaited
    raise InstanceError(
        f"The handler has returned an object of type '{type(result).__name__}', so its work is not done. Await it in "
        "an async handler of an asyncio worker, or write a plain function that does the work before it returns."
    )


def as_exception(problem: BaseException) -> Exception:
    """Return a handler's exception as an `Exception`, which policies and logs can take and raise again."""
    if isinstance(problem, Exception):
        return problem
    outcome = (
        "has called sys.exit"
        if isinstance(problem, SystemExit)
        else f"has ended by {describe_exception(problem).rstrip('.: ')}"
    )
    failure = InstanceError(f"The handler {outcome}.").with_traceback(problem.__traceback__)
    failure.__cause__ = problem
    return failure


def underlying_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that a call runs: a partial's function, an instance's `__call__`."""
    while isinstance(function, functools.partial):
        function = function.func
    is_code = inspect.isroutine(function) or inspect.isclass(function)
    return function if is_code else type(function).__call__
