"""EXECUTE AS of a module: the user with whose rights its statements run."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from servicebroker.engine.activation.clause import OWNER, SELF

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


def module_user(execute_as: str | None, creator: str) -> str | None:
    """Return the user that EXECUTE AS of a module names, None for the caller. The owner of every module is dbo."""
    if execute_as is None or execute_as == "CALLER":
        return None
    return creator if execute_as == SELF else "dbo" if execute_as == OWNER else execute_as


def impersonation(machine: Machine, user: str | None) -> Callable[[], None] | None:
    """Return a function that switches to a module's user; None if the module runs as its caller."""
    return None if user is None else functools.partial(machine.context.work_as, user)
