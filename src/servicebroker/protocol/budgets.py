"""The budget of each peer: limits on what it can make this instance use.

A peer is identified by the owner of the certificate that its connections have shown. All peers without a certificate
count as one owner. A budget holds for all connections and conversations of an owner together. Messages or connections
beyond it are dropped or wait, with error 10928. doctor shows these errors, counted by owner.

Rounds and sockets share one `Budgets`.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Mapping
from typing import NamedTuple

from servicebroker.model.errors import BrokerError
from servicebroker.protocol.routing import Address

OVER_BUDGET = 10928  # the number of the event, and of the refusal that doctor shows
MAX_RECENT = 10_000  # remembered route requests; each counts once in `REQUEST_PERIOD_S`
REQUEST_PERIOD_S = 60.0  # seconds for which a route request is pending, or its answer counts
UNANSWERED_PERIOD_S = 10.0  # the longest pause between two attempts to connect
HOUR_S = 3_600.0


class Budget(NamedTuple):
    """The limits of one owner.

    Attributes:
        connections: connections at a time.
        openings: conversations begun by its messages, of which no message has been delivered yet.
        unfinished_bytes: stored bytes of its incomplete messages (`protocol/unfinished.py`).
        waiting_messages: messages in memory that wait for a decision on their service or sender.
        trace_contexts: trace contexts in memory whose messages are not stored yet.
        addresses: unanswered addresses that its messages name in ten seconds.
        route_requests: requests to the dynamic routing service that its messages cause in an hour.
    """

    connections: int = 64
    openings: int = 1_000
    unfinished_bytes: int = 268_435_456
    waiting_messages: int = 250
    trace_contexts: int = 5_000
    addresses: int = 64
    route_requests: int = 300


DEFAULT = Budget()


def share_of(amount: int, shares: int) -> int:
    """Return the part of an amount for each of `shares` shares, rounded up, so that it is 0 only for 0."""
    return -(-amount // shares)


def over_budget(resource: str, amount: int) -> BrokerError:
    """Return the event for work beyond a budget; `resource` is a field of `Budget`."""
    return BrokerError(OVER_BUDGET, resource.replace("_", " "), "the peer", f"{amount:,}")


class Budgets:
    """The budgets of all owners: the default, and those set for single owners.

    Attributes:
        amounts: the argument of the last `apply`.
    """

    def __init__(self, default: Budget = DEFAULT) -> None:
        self._default = default
        self._by_owner: Mapping[str, Budget] = {}
        self.amounts: Mapping[str, Mapping[str, int]] = {}

    def of(self, owner: str) -> Budget:
        """Return the budget of an owner."""
        return self._by_owner.get(owner, self._default)

    def apply(self, amounts: Mapping[str, Mapping[str, int]]) -> None:
        """Set the amounts that single owners have instead of the default; all others get the default back."""
        self.amounts = amounts
        self._by_owner = {owner: self._default._replace(**limits) for owner, limits in amounts.items()}


class RouteRequests:
    """Limits the requests to the dynamic routing service that each owner causes in an hour.

    The allowance returns evenly over the hour. A repeated request within `REQUEST_PERIOD_S` is not counted again.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self.shares = 1  # shares that divide the budget
        self._used: dict[str, tuple[float, float]] = {}  # owner -> requests, and the time of the last count
        self._recent: OrderedDict[object, float] = OrderedDict()  # request -> its time, the latest last

    def may_ask(self, owner: str, missing: object, now: float) -> bool:
        """Return whether this owner's message may cause a request for `missing`. If so, count it."""
        asked_at = self._recent.get(missing)
        if asked_at is not None and now - asked_at < REQUEST_PERIOD_S:
            return True
        limit = share_of(self._budgets.of(owner).route_requests, self.shares)
        used, since = self._used.get(owner, (0.0, now))
        used = max(0.0, used - (now - since) * limit / HOUR_S)
        if used + 1 > limit:
            self._used[owner] = used, now
            return False
        self._used[owner] = used + 1, now
        self._recent.pop(missing, None)
        self._recent[missing] = now
        if len(self._recent) > MAX_RECENT:
            self._recent.popitem(last=False)
        return True


class UnansweredAddresses:
    """Limits the unanswered addresses that messages of each owner name in ten seconds.

    A route of the kind TRANSPORT takes the address from the name of a service. So a peer chooses where to connect to.
    """

    def __init__(self, budgets: Budgets) -> None:
        self._budgets = budgets
        self.shares = 1  # shares that divide the budget
        self._since: dict[str, OrderedDict[Address, float]] = {}  # owner -> address -> its time, the latest last

    def may_connect(self, owner: str, address: Address, now: float) -> bool:
        """Return whether this owner's message may cause a connection to an address. If so, count it."""
        addresses = self._since.setdefault(owner, OrderedDict())
        while addresses and next(iter(addresses.values())) <= now - UNANSWERED_PERIOD_S:
            addresses.popitem(last=False)
        if address in addresses:
            return True
        if len(addresses) >= share_of(self._budgets.of(owner).addresses, self.shares):
            return False
        addresses[address] = now
        return True

    def reached(self, address: Address) -> None:
        """Stop counting an address that has answered."""
        for owner, addresses in list(self._since.items()):
            addresses.pop(address, None)
            if not addresses:
                del self._since[owner]
