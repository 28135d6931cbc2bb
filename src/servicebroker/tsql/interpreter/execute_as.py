"""EXECUTE AS of a module: as whom its statements work."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING

from servicebroker.engine.activation.clause import OWNER, SELF

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine


def user_of(execute_as: str | None, creator: str) -> str | None:
    """Whom EXECUTE AS of a module names, None for its caller. dbo owns all modules."""
    if execute_as is None or execute_as == "CALLER":
        return None
    return creator if execute_as == SELF else "dbo" if execute_as == OWNER else execute_as


def working_as(machine: Machine, user: str | None) -> Callable[[], None] | None:
    """What a module of this EXECUTE AS begins with."""
    return None if user is None else functools.partial(machine.context.work_as, user)
