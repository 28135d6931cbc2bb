"""The cache of delivery paths: for a pair of services and a contract, where new conversations begin and lead to.

The first conversation looks up service, contract, permissions, routes and target, each with its own statement. Later
conversations use the cached results: one statement of `engine/conversation/enqueue.py` begins and sends. It calls a
function of `store/verbs.sql`, which checks that all cached values are still true and locks them until COMMIT.

| path | has | statement | function |
|---|---|---|---|
| `DeliveryPath`, inside the instance | both sides | `begin_and_send` | `hold_way` |
| `DeparturePath`, to another instance | the own side | `BEGIN_AND_TRANSMIT` | `hold_departure` |
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from servicebroker.model.arguments import CURRENT_DATABASE

if TYPE_CHECKING:
    from servicebroker.engine.catalog.catalog import Usages

_MAX_PATHS = 10_000  # entries in each cache below


class OwnSide(NamedTuple):
    """The initiator's side of a path: service, contract and queue in its database.

    `catalog_version` is that of the queue when the principal's permission to begin dialogs was checked. `broker` is the
    broker identifier of the database.
    """

    service_id: int
    contract_id: int
    queue_id: int
    catalog_version: int
    broker: str


class TargetSide(NamedTuple):
    """The target's side of a path inside the instance: the service to which the routes lead.

    `own_usages` and `peer_usages` are the contract in the databases of the initiator and the target. `peer_usages` and
    the permission to send are valid while the target's queue has this `catalog_version`.
    """

    routes_version: int
    database_id: int
    service_id: int
    contract_id: int
    queue_id: int
    catalog_version: int
    broker: str
    own_usages: Usages
    peer_usages: Usages


class RemoteSide(NamedTuple):
    """The target's side of a path to another instance.

    `broker` is the broker identifier that BEGIN DIALOG names. `own_usages` is the contract in the initiator's database.
    While the routes have this `routes_version`, they all lead to other instances.
    """

    routes_version: int
    broker: str | None
    own_usages: Usages


class DeparturePath(NamedTuple):
    """A path to another instance."""

    to_service: str
    database_id: int
    own: OwnSide
    target: RemoteSide

    @property
    def parameters(self) -> tuple[object, ...]:
        """The path's values, the first parameters of the statement that begins conversations."""
        own, target = self.own, self.target
        return (
            *(self.database_id, own.service_id, own.contract_id, own.queue_id, own.catalog_version),
            *(target.routes_version, own.broker, self.to_service, target.broker),
        )


class DeliveryPath(NamedTuple):
    """A path inside the instance."""

    from_service: str
    to_service: str
    database_id: int
    own: OwnSide
    target: TargetSide

    @property
    def parameters(self) -> tuple[object, ...]:
        """The path's values, the first parameters of the statements that begin conversations."""
        own, target = self.own, self.target
        return (
            *(self.database_id, own.service_id, own.contract_id, own.queue_id, own.catalog_version),
            *(target.routes_version, own.broker, self.to_service),
            *(target.database_id, target.service_id, target.contract_id, target.queue_id, target.catalog_version),
            *(target.broker, self.from_service),
        )


class RestrictedPathKey(NamedTuple):
    """The names that a restricted role passes to BEGIN DIALOG."""

    from_service: str
    to_service: str
    contract: str
    broker: str | None


@dataclass
class RestrictedPaths:
    """Names with which a restricted role has begun conversations and sent messages of which types.

    Such a conversation is deferred, because it will probably be allowed again. The function on the server decides.
    """

    _types: dict[RestrictedPathKey, set[str]] = field(default_factory=dict)  # message types that were sent
    _begun: OrderedDict[UUID, RestrictedPathKey] = field(default_factory=OrderedDict)

    def record_begun(self, handle: UUID, key: RestrictedPathKey) -> None:
        """Record a conversation that has begun."""
        self._begun[handle] = key
        if len(self._begun) > _MAX_PATHS:
            self._begun.popitem(last=False)

    def record_sent(self, handle: UUID, message_type: str) -> None:
        """Record the type of a sent message, if this process has begun the conversation."""
        key = self._begun.get(handle)
        if key is not None:
            if len(self._types) >= _MAX_PATHS:
                self._types = {}
            self._types.setdefault(key, set()).add(message_type)

    def find(self, key: RestrictedPathKey) -> set[str] | None:
        """Return the message types sent on such conversations; None if none was."""
        return self._types.get(key)

    def forget(self, key: RestrictedPathKey) -> None:
        """Forget the key, after such a conversation was refused."""
        self._types.pop(key, None)


@dataclass
class DeliveryPaths:
    """The cached delivery paths of one principal."""

    _own_sides: dict[tuple[int, str, str], OwnSide] = field(default_factory=dict)
    _targets: dict[tuple[int, int, str, str | None], TargetSide | RemoteSide] = field(default_factory=dict)
    _begun: OrderedDict[UUID, DeliveryPath] = field(default_factory=OrderedDict)

    def find(
        self, database_id: int, from_service: str, to_service: str, contract: str, broker: str | None
    ) -> DeliveryPath | DeparturePath | None:
        """Return the path, None if it is not cached. `broker` is the broker identifier that BEGIN DIALOG names."""
        own = self.find_own_side(database_id, from_service, contract)
        if own is None:
            return None
        if broker == CURRENT_DATABASE:
            broker = own.broker
        target = self._targets.get((own.service_id, own.contract_id, to_service, broker))
        if isinstance(target, RemoteSide):
            return DeparturePath(to_service, database_id, own, target)
        return None if target is None else DeliveryPath(from_service, to_service, database_id, own, target)

    def find_own_side(self, database_id: int, from_service: str, contract: str) -> OwnSide | None:
        """Return the initiator's side alone, None if it is not cached or an argument is not a string."""
        is_name = isinstance(from_service, str) and isinstance(contract, str)
        return self._own_sides.get((database_id, from_service, contract)) if is_name else None

    def remember_own_side(self, database_id: int, from_service: str, contract: str, own: OwnSide) -> None:
        """Cache the initiator's side that BEGIN DIALOG found."""
        if len(self._own_sides) >= _MAX_PATHS:
            self._own_sides = {}
        self._own_sides[database_id, from_service, contract] = own

    def remember_target(
        self, service_id: int, contract_id: int, to_service: str, broker: str | None, target: TargetSide | RemoteSide
    ) -> None:
        """Cache the target of a conversation's first message, by the initiator's side, the target's name and broker."""
        if len(self._targets) >= _MAX_PATHS:
            self._targets = {}
        self._targets[service_id, contract_id, to_service, broker] = target

    def record_begun(self, handle: UUID, path: DeliveryPath) -> None:
        """Record the path of a conversation that has begun and sent nothing so far."""
        self._begun[handle] = path
        if len(self._begun) > _MAX_PATHS:
            self._begun.popitem(last=False)

    def take_begun(self, handle: UUID) -> DeliveryPath | None:
        """Remove and return the path of a conversation that has begun and sent nothing so far; None if not recorded."""
        return self._begun.pop(handle, None)

    def forget(self, path: DeliveryPath | DeparturePath) -> None:
        """Forget both sides of a path, after its statement found that one of them has changed."""
        self._own_sides = {key: own for key, own in self._own_sides.items() if own is not path.own}
        self._targets = {key: target for key, target in self._targets.items() if target is not path.target}
