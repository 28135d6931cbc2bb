"""The budgets that single peers have instead of the default (protocol/budgets.py), by the owner of a certificate."""

from __future__ import annotations

from collections.abc import Mapping

from servicebroker.engine.security.transport_certificates import find_certificate
from servicebroker.model.errors import BrokerError
from servicebroker.protocol.budgets import DEFAULT, Budget
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)

MAX_AMOUNT = 2**53  # of any resource
Amounts = dict[str, int]


def find_amounts() -> Steps[dict[str, Amounts]]:
    """Return the amounts that differ from the default, by owner and resource."""
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
    """Set some amounts for the peer with this certificate; None restores the default. Returns its budget then.

    Raises:
        BrokerError: 15151 no such certificate of a peer, 402 no such resource, or an impossible amount.
    """
    owner = yield from _owner(name)
    for resource, amount in (amounts or {}).items():
        if resource not in Budget._fields:
            raise BrokerError(402, "the resource", f"'{resource}'", f"one of {', '.join(Budget._fields)}")
        if isinstance(amount, bool) or not isinstance(amount, int) or not 1 <= amount <= MAX_AMOUNT:
            raise BrokerError(402, f"the budget of {resource}", f"{amount!r}", f"a whole number from 1 to {MAX_AMOUNT}")
    if amounts is None:
        yield SQL("set_budget.delete_amounts", (owner,))
    else:
        yield SQL("set_budget.save_amounts", (owner, list(amounts), list(amounts.values())))
    return (yield from find_budget(name))


def _owner(name: str) -> Steps[str]:
    found = yield from find_certificate("find", name)
    if found.is_own:
        raise BrokerError(15151, "find", "certificate of a peer", name)
    return found.proved.owner
