"""The daemon's knowledge of peers: the owner of each address and instance, and false claims.

The network's thread adds knowledge, the relay's thread reads it. Once a second, new facts are stored in the database.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from uuid import UUID

from servicebroker.broker.policy import Policy
from servicebroker.engine.remote.known_peers import MAX_ADDRESSES, MAX_CLAIMS
from servicebroker.model.security.peers import ADDRESS, INSTANCE, NOBODY, Answer, Claims, FalseClaim, Proved
from servicebroker.protocol.budgets import Budgets
from servicebroker.protocol.routing import Address

OTHERS = "others"  # the owner to which false claims are added when too many owners have made some
OURSELVES = "this instance"  # an owner: no other peer may claim to be this instance


class Peers:
    """The peers of one instance. `own` is its identifier.

    Attributes:
        proves: connections prove the identities of peers. Without TLS nothing is proved, and all claims are believed.
        version: changes with each change of this knowledge.
        budgets: the limits of each owner.
    """

    def __init__(self, own: UUID | None = None) -> None:
        self.proves = False
        self.version = 0
        self.budgets = Budgets()
        self._own = own
        self._lock = threading.Lock()
        self._owners: frozenset[str] = frozenset()  # the owners of imported certificates
        self._claims = Claims({}, {}, {})
        self._answers: dict[Address, Answer] = {}
        self._news: dict[Address, Answer] = {}  # not yet stored in the database
        self._mistrusted: dict[FalseClaim, tuple[int, str]] = {}

    def apply(self, policy: Policy) -> None:
        """Apply imported, dropped and accepted certificates, and the stored facts about peers."""
        with self._lock:
            self.proves = policy.proves
            self._owners = policy.owners
            named = policy.named if self._own is None else {**policy.named, self._own: frozenset({OURSELVES})}
            self._claims = Claims(policy.accepted, named, {})
            self._answers = {**policy.answers, **self._news}
            self._learn()

    def set_budgets(self, amounts: Mapping[str, Mapping[str, int]]) -> bool:
        """Set the amounts that single owners have instead of the default budget. Return whether they are new."""
        with self._lock:
            if amounts == self.budgets.amounts:
                return False
            self.budgets.apply(amounts)
            self.version += 1
            return True

    def owner_at(self, address: Address) -> str | None:
        """Return the owner of the certificate shown at an address; None if it is not known."""
        answer = self._answers.get(address)
        return None if answer is None else answer.owner

    def objection(self, owner: str, instance: UUID) -> str | None:
        """Return why the owner of a certificate cannot be this instance; None if it can."""
        return None if owner == NOBODY else self._claims.objection(instance, owner)

    def greeted(self, owner: str, instance: UUID) -> str | None:
        """Return why the identity that a connecting peer claims is refused, or None. The claim is not stored."""
        with self._lock:
            return self._judged(owner, instance) if self.proves else None

    def objection_to(self, address: Address | None, proved: Proved, instance: UUID) -> str | None:
        """Return why a peer's claim to be an instance is refused, or None. `address`: the one that we connected to."""
        if proved.is_vouched and proved.instance not in (None, instance):
            return self.contradicted(proved.owner, instance)
        if address is None:
            return self.greeted(proved.owner, instance)
        return self.answered(address, proved.owner, instance)

    def contradicted(self, owner: str, instance: UUID) -> str:
        """Record a claim that contradicts the domain's certificate. Returns the reason to refuse it."""
        why = "the certificate is that of another instance"
        self.mistrust(FalseClaim(owner, INSTANCE, str(instance)), why)
        return why

    def answered(self, address: Address, owner: str, instance: UUID) -> str | None:
        """Record the owner at an address that we connected to. Returns why its claim is refused, or None."""
        if not self.proves:
            return None
        with self._lock:
            before = self._answers.get(address)
            if before is not None and before.owner != owner and before.owner in self._owners:
                why = f"{before.owner} has answered at {address} before"
                self._mistrust(FalseClaim(owner, ADDRESS, str(address)), why)
                return why
            answer = Answer(owner, instance)
            may_be = self._claims.is_open(instance) or self.objection(owner, instance) is None
            if may_be and answer != before:
                self._keep(address, answer)
            return self._judged(owner, instance)

    def _judged(self, owner: str, instance: UUID) -> str | None:
        why = self.objection(owner, instance)
        if why is not None:
            self._mistrust(FalseClaim(owner, INSTANCE, str(instance)), why)
        return why

    def _keep(self, address: Address, answer: Answer) -> None:
        self._answers.pop(address, None)
        self._answers[address] = answer
        if len(self._answers) > MAX_ADDRESSES:
            del self._answers[next(iter(self._answers))]
        if answer.owner != NOBODY:
            self._news[address] = answer
        self._learn()

    def _learn(self) -> None:
        """Learn the owners of the instances that we connected to."""
        learned: dict[UUID, frozenset[str]] = {}
        for owner, instance in self._answers.values():
            if owner != NOBODY:
                learned[instance] = learned.get(instance, frozenset()) | {owner}
        self._claims = self._claims._replace(learned=learned)
        self.version += 1

    def mistrust(self, claim: FalseClaim, detail: str) -> None:
        """Count a false claim of a peer."""
        with self._lock:
            self._mistrust(claim, detail)

    def _mistrust(self, claim: FalseClaim, detail: str) -> None:
        if claim not in self._mistrusted and len(self._mistrusted) >= MAX_CLAIMS:
            claim = FalseClaim(OTHERS, claim.claim)
        before, _ = self._mistrusted.get(claim, (0, ""))
        self._mistrusted[claim] = before + 1, detail

    def take_answers(self) -> dict[Address, Answer]:
        """Return the answers since the last call."""
        with self._lock:
            news, self._news = self._news, {}
            return news

    def take_mistrusted(self) -> dict[FalseClaim, tuple[int, str]]:
        """Return the false claims since the last call: how often each was made, and its last text."""
        with self._lock:
            claims, self._mistrusted = self._mistrusted, {}
            return claims
