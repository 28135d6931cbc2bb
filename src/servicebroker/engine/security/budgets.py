"""Stored budgets: limits for the resources that a peer or a restricted role may use.

A peer's budget belongs to the owner of its certificate; without one the default applies (protocol/budgets.py). The
functions of store/fence.sql check a restricted role's budget; without one the role has no limit.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from servicebroker.engine.security.transport_certificates import find_certificate
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.wording import short_repr
from servicebroker.protocol.budgets import DEFAULT, Budget
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)

MAX_AMOUNT = 2**53  # the highest limit of any resource, in its unit
Amounts = dict[str, int]  # limits by resource


def find_amounts() -> Steps[dict[str, Amounts]]:
    """Return the stored limits, by certificate owner and resource."""
    amounts: dict[str, Amounts] = {}
    for owner, resource, amount in (yield SQL("find_amounts")):
        if resource in Budget._fields:
            amounts.setdefault(owner, {})[resource] = amount
    return amounts


def find_budget(name: str) -> Steps[Budget]:
    """Return the budget of the peer with this certificate.

    Raises:
        BrokerError: 15151 no such certificate of a peer.
    """
    owner = yield from _owner(name)
    amounts = yield from find_amounts()
    return DEFAULT._replace(**amounts.get(owner, {}))


def set_budget(name: str, amounts: Mapping[str, int] | None) -> Steps[Budget]:
    """Set limits of the peer with this certificate; None restores the default. Returns the new budget.

    Raises:
        BrokerError: 15151 no such certificate of a peer, 402 no such resource, or an impossible amount.
    """
    owner = yield from _owner(name)
    _check({} if amounts is None else amounts, Budget._fields)
    if amounts is None:
        yield SQL("set_budget.delete_amounts", (owner,))
    else:
        yield SQL("set_budget.save_amounts", (owner, list(amounts), list(amounts.values())))
    return (yield from find_budget(name))


class RoleBudget(NamedTuple):
    """The limits of a restricted role; None for no limit.

    Attributes:
        conversations: open conversations that the role has begun since the limit was set.
        messages: unreceived messages of the role on one conversation.
        bytes: bytes of the bodies of those messages.
    """

    conversations: int | None = None
    messages: int | None = None
    bytes: int | None = None


def set_role_budget(role: str, amounts: Mapping[str, int] | None) -> Steps[RoleBudget]:
    """Set limits of a restricted role; None removes all. Returns the new budget.

    Raises:
        BrokerError: 15007 the role was not granted the verbs, 402 no such resource, or an impossible amount.
    """
    names.checked("role", role)
    _check({} if amounts is None else amounts, RoleBudget._fields)
    values = [(amounts or {}).get(resource) for resource in RoleBudget._fields]
    rows = yield SQL("set_role_budget", (role, amounts is None, *values))
    if not rows:
        raise BrokerError(15007, role)
    return RoleBudget(*rows[0])


def _check(amounts: object, resources: tuple[str, ...]) -> None:
    if not isinstance(amounts, Mapping):
        raise BrokerError(402, "the amounts", type(amounts).__name__, "a mapping of resources to whole numbers")
    for resource, amount in amounts.items():
        if resource not in resources:
            raise BrokerError(402, "the resource", f"'{resource}'", f"one of {', '.join(resources)}")
        if isinstance(amount, bool) or not isinstance(amount, int) or not 1 <= amount <= MAX_AMOUNT:
            raise BrokerError(
                402, f"the budget of {resource}", short_repr(amount), f"a whole number from 1 to {MAX_AMOUNT}"
            )


def _owner(name: str) -> Steps[str]:
    certificate = yield from find_certificate("find", name)
    if certificate.is_own:
        raise BrokerError(15151, "find", "certificate of a peer", name)
    return certificate.proved.owner
