"""The cache of the paths of new conversations, as found for an earlier one.

The first conversation looks up service, contract, permissions, routes and target, each with its own statement. With
these facts the next ones begin and send in one statement of `engine/conversation/enqueue.py`. There `store/verbs.sql`
checks that all of them still hold, under locks that keep them so until COMMIT. A path inside the instance has both
sides: `begin_and_send`, `hold_way`. A path to another instance ends in the transmission queue: `BEGIN_AND_TRANSMIT`,
`hold_departure`.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, NamedTuple
from uuid import UUID

from servicebroker.model.arguments import CURRENT_DATABASE

if TYPE_CHECKING:
    from servicebroker.engine.catalog.catalog import Usages

_MAX_PATHS = 10_000


class OwnSide(NamedTuple):
    """The initiator's side: service and contract of the own database, as BEGIN DIALOG found them.

    `catalog_version` is that of the service's queue, under which the principal was allowed to begin dialogs.
    """

    service_id: int
    contract_id: int
    queue_id: int
    catalog_version: int
    broker: str


class TargetSide(NamedTuple):
    """The target's side: the destination of the routes for conversations of an own side.

    `near` and `far` are the usages of both contracts. `far`, and the permission to send, hold for `catalog_version`,
    that of the target's queue.
    """

    routes_version: int
    database_id: int
    service_id: int
    contract_id: int
    queue_id: int
    catalog_version: int
    broker: str
    near: Usages
    far: Usages


class RemoteSide(NamedTuple):
    """The target's side in another instance, as far as SEND has to know it. `broker` is what BEGIN DIALOG names.

    `near` are the usages of the own contract. Under `routes_version` every route leads away from this instance.
    """

    routes_version: int
    broker: str | None
    near: Usages


class DeparturePath(NamedTuple):
    """The own side of new conversations whose target is in another instance, with the name of the target's service."""

    to_service: str
    database_id: int
    own: OwnSide
    target: RemoteSide

    @property
    def parameters(self) -> tuple[object, ...]:
        """The first parameters of the statement that begins conversations."""
        own, target = self.own, self.target
        return (
            *(self.database_id, own.service_id, own.contract_id, own.queue_id, own.catalog_version),
            *(target.routes_version, own.broker, self.to_service, target.broker),
        )


class DeliveryPath(NamedTuple):
    """Both sides of new conversations, with the names of their services."""

    from_service: str
    to_service: str
    database_id: int
    own: OwnSide
    target: TargetSide

    @property
    def parameters(self) -> tuple[object, ...]:
        """The first parameters of the statements that begin conversations."""
        own, target = self.own, self.target
        return (
            *(self.database_id, own.service_id, own.contract_id, own.queue_id, own.catalog_version),
            *(target.routes_version, own.broker, self.to_service),
            *(target.database_id, target.service_id, target.contract_id, target.queue_id, target.catalog_version),
            *(target.broker, self.from_service),
        )


class RestrictedPathKey(NamedTuple):
    """The names that a restricted role gives when it begins a conversation."""

    from_service: str
    to_service: str
    contract: str
    broker: str | None


@dataclass
class RestrictedPaths:
    """Conversations that a restricted role was allowed before, and so probably again: the server's function decides."""

    _types: dict[RestrictedPathKey, set[str]] = field(default_factory=dict)  # the types of first messages
    _begun: OrderedDict[UUID, RestrictedPathKey] = field(default_factory=OrderedDict)

    def note_begun(self, handle: UUID, key: RestrictedPathKey) -> None:
        """Note a conversation that has begun."""
        self._begun[handle] = key
        if len(self._begun) > _MAX_PATHS:
            self._begun.popitem(last=False)

    def note_sent(self, handle: UUID, message_type: str) -> None:
        """Note a sent message, perhaps on a conversation that began here."""
        key = self._begun.get(handle)
        if key is not None:
            if len(self._types) >= _MAX_PATHS:
                self._types = {}
            self._types.setdefault(key, set()).add(message_type)

    def find(self, key: RestrictedPathKey) -> set[str] | None:
        """Return the message types sent on such conversations; None if none was."""
        return self._types.get(key)

    def forget(self, key: RestrictedPathKey) -> None:
        """Forget the key, because such a conversation was refused."""
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
        """Return both sides if they are cached; `broker` is the one that BEGIN DIALOG names."""
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
        """Return the own side alone, None if it is not cached or an argument is no string."""
        is_name = isinstance(from_service, str) and isinstance(contract, str)
        return self._own_sides.get((database_id, from_service, contract)) if is_name else None

    def remember_own_side(self, database_id: int, from_service: str, contract: str, own: OwnSide) -> None:
        """Cache the own side that BEGIN DIALOG found."""
        if len(self._own_sides) >= _MAX_PATHS:
            self._own_sides = {}
        self._own_sides[database_id, from_service, contract] = own

    def remember_target(
        self, service_id: int, contract_id: int, to_service: str, broker: str | None, target: TargetSide | RemoteSide
    ) -> None:
        """Cache the target of a conversation's first message, for this own side and the broker that it names."""
        if len(self._targets) >= _MAX_PATHS:
            self._targets = {}
        self._targets[service_id, contract_id, to_service, broker] = target

    def note_begun(self, handle: UUID, path: DeliveryPath) -> None:
        """Keep the path of a conversation that has begun and not sent."""
        self._begun[handle] = path
        if len(self._begun) > _MAX_PATHS:
            self._begun.popitem(last=False)

    def take_begun(self, handle: UUID) -> DeliveryPath | None:
        """Remove and return the path of a conversation that has begun and not sent."""
        return self._begun.pop(handle, None)

    def forget(self, path: DeliveryPath | DeparturePath) -> None:
        """Forget both sides: the statement found that one of them has changed."""
        self._own_sides = {key: own for key, own in self._own_sides.items() if own is not path.own}
        self._targets = {key: target for key, target in self._targets.items() if target is not path.target}
