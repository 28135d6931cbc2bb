# Made from aio/definitions.py by tools/make_sync.py: change that file, then run `make sync`.
"""CREATE, ALTER and DROP of a broker database's own objects as methods: what conversations are made of."""

from __future__ import annotations

import functools
import inspect
import warnings
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, TypeVar, get_args, get_type_hints
from uuid import UUID

from servicebroker.api.giving_way import MOMENTS, RISING
from servicebroker.engine.activation.clause import Activation, set_activation
from servicebroker.engine.catalog import alter, bindings, catalog, message_types, priorities, schemas, services
from servicebroker.engine.catalog.catalog import Catalog, Queue
from servicebroker.engine.catalog.event_notifications import drop_notifications_on
from servicebroker.engine.delivery import transmission
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security import principals
from servicebroker.model.arguments import check_switch, may_exist, read_once
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import User
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.instance import Instance

T = TypeVar("T")
P = ParamSpec("P")


def defined(steps: Callable[Concatenate[User, P], Steps[object]]) -> Callable[Concatenate[Any, P], None]:
    """The method that runs these steps of DDL for the user that its object works as.

    What it takes and what it does is said where the steps are.
    """

    def method(definer: Any, /, *given: P.args, **named: P.kwargs) -> None:
        signature.bind(definer, *given, **named)
        definer._alone(steps(definer.user, *given, **named))

    _user, *theirs = _parameters(steps)
    signature = _describe(method, steps, theirs)
    return method


def administered(steps: Callable[P, Steps[object]]) -> Callable[Concatenate[Any, P], None]:
    """The same for what concerns the whole instance: its object is that, and administrators alone may."""

    def method(instance: Any, /, *given: P.args, **named: P.kwargs) -> None:
        instance._administer(steps(*given, **named))

    _describe(method, steps, _parameters(steps))
    return method


def _describe(
    method: Callable[..., object], steps: Callable[..., object], parameters: Iterable[inspect.Parameter]
) -> inspect.Signature:
    """Give the method the words of its steps, for `help`, and these parameters. Return its signature."""
    itself = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
    functools.update_wrapper(method, steps)
    signature = inspect.signature(steps).replace(parameters=[itself, *parameters], return_annotation=None)
    method.__signature__ = signature  # type: ignore[attr-defined]
    return signature


def _parameters(steps: Callable[..., object]) -> Iterator[inspect.Parameter]:
    """The parameters of the steps; each key of an unpacked TypedDict is one, which may be left out."""
    for parameter in inspect.signature(steps).parameters.values():
        if parameter.kind is not inspect.Parameter.VAR_KEYWORD:
            yield parameter
            continue
        (keys,) = get_args(get_type_hints(steps)[parameter.name])
        for name, hint in keys.__annotations__.items():
            yield inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint.__forward_arg__)


class Definitions(ABC):
    """Message types, schema collections, contracts, queues, services, broker priorities, remote service bindings."""

    instance: Instance
    database_id: int
    user: User
    catalog: Catalog

    @abstractmethod
    def _alone(self, steps: Steps[T]) -> T:
        """Run the steps of DDL."""

    @abstractmethod
    def _giving_way(self, steps: Callable[[], Steps[T]], moments: Sequence[int] = MOMENTS) -> T:
        """Run the steps of DDL that others may be in the way of, as often as it takes.

        `moments` are `RISING` for what takes the lock of `lock_delivery`, against those who begin to send.
        """

    @abstractmethod
    def _do(self, steps: Steps[T]) -> T:
        """Run steps that are a transaction each."""

    create_message_type = defined(message_types.create_message_type)

    alter_message_type = defined(message_types.alter_message_type)

    drop_message_type = defined(message_types.drop_message_type)

    create_xml_schema_collection = defined(schemas.create_xml_schema_collection)

    alter_xml_schema_collection = defined(schemas.alter_xml_schema_collection)

    drop_xml_schema_collection = defined(schemas.drop_xml_schema_collection)

    def create_contract(
        self,
        name: str,
        sent_by: Mapping[str, str] | Iterable[tuple[str, str]],
        *,
        authorization: str | None = None,
        exist_ok: bool = False,
    ) -> None:
        """CREATE CONTRACT; `sent_by` maps each message type to INITIATOR, TARGET or ANY.

        Raises:
            BrokerError: 8403, 8492, 15151 unknown message type or owner, 2714 name taken, 262.
        """
        given = read_once(sent_by)

        def steps() -> Steps[None]:
            owner = yield from principals.find_owner(self.user, authorization)
            yield from catalog.create_contract(self.database_id, name, given, owner)

        with may_exist(exist_ok):
            self._define(steps(), "CREATE CONTRACT", rights.message_types(given))

    def create_queue(
        self,
        name: str,
        *,
        status: bool = True,
        retention: bool = False,
        poison_message_handling: bool = True,
        activation: Activation | None = None,
        filegroup: str = "DEFAULT",
        exist_ok: bool = False,
    ) -> None:
        """CREATE QUEUE; readable by SELECT as `<database>_<schema>.<queue>` in lower case.

        Args:
            name: `queue` or `schema.queue`.
            status: False makes it OFF.
            retention: what its services receive and send stays visible there until the conversation ends.
            poison_message_handling: False lets no number of rollbacks switch it off.
            activation: the procedure that reads it; on unless its `status` says otherwise.
            filegroup: PRIMARY, which is DEFAULT.
            exist_ok: whether one of that name may be there, which stays as it is.

        Raises:
            BrokerError: 2714 name taken, 9609, 15151 name with # or another filegroup, 402, 262, and for the activation
                9609, 9611, 9613, 9614, 9742, 15517.
        """

        def steps() -> Steps[BrokerError | None]:
            yield from catalog.create_queue(
                self.database_id,
                name,
                status=status,
                retention=retention,
                poison_message_handling=poison_message_handling,
                filegroup=filegroup,
                owner=self.user.principal_id,
            )
            if not isinstance(activation, Activation | None):
                raise BrokerError(402, "ACTIVATION", repr(activation), "an Activation")
            if activation is None:
                return None
            is_on = activation.status is None or activation.status
            return (yield from set_activation(self.user, name, activation._replace(status=is_on)))

        with may_exist(exist_ok):
            _warn(self._define(steps(), "CREATE QUEUE"))

    def create_service(
        self,
        name: str,
        queue: str,
        contracts: Iterable[str] = (),
        *,
        authorization: str | None = None,
        exist_ok: bool = False,
    ) -> None:
        """CREATE SERVICE on a queue, as a target of `contracts`. Messages that wait for it are delivered.

        Raises:
            BrokerError: 8404, 15151 unknown queue, contract or owner, 2714 name taken, 262.
        """
        given = read_once(contracts)

        def steps() -> Steps[None]:
            owner = yield from principals.find_owner(self.user, authorization)
            found = yield from catalog.find_queue_now("find", self.database_id, queue)
            yield from catalog.create_service(self.database_id, name, found.queue_id, given, owner)
            yield from transmission.deliver_to_service(self.catalog, name, self.instance.clock())

        def authorized() -> Steps[None]:
            return rights.authorized(steps(), self.user, "CREATE SERVICE", rights.queue(queue), rights.contracts(given))

        with may_exist(exist_ok):
            self._giving_way(authorized, RISING)

    def drop_contract(self, name: str) -> None:
        """DROP CONTRACT; open conversations on it get the Error -8487, on both sides.

        Raises:
            BrokerError: 3716 a service or a priority uses it, 15151 no such contract, 9663 built-in.
        """

        def steps() -> Steps[None]:
            dropping = alter.drop_contract(self.database_id, name)
            return rights.authorized(dropping, self.user, "DROP CONTRACT", rights.contracts([name]))

        self._giving_way(steps)

    def alter_queue(
        self,
        name: str,
        *,
        status: bool | None = None,
        retention: bool | None = None,
        poison_message_handling: bool | None = None,
        activation: Activation | Literal["DROP"] | None = None,
        rebuild: bool = False,
        reorganize: bool = False,
        move_to: str | None = None,
    ) -> None:
        """ALTER QUEUE WITH STATUS = ON (True) or OFF (False) and the other options; REBUILD; REORGANIZE; MOVE TO.

        OFF: RECEIVE raises 9617, and what is sent waits in the transmission queue. ON delivers that in order.
        Retention keeps what is received and sent from now on visible until the conversation ends; off again, what is
        kept stays until then.
        With poison message handling, five rollbacks in a row of transactions that received switch the queue off.
        Of an activation, what is given changes; "DROP" takes it away.
        REBUILD gives the unused space of the queue's tables back, of what is kept too; readers and senders wait
        meanwhile. REORGANIZE gives back what lies at their end, and nobody waits. MOVE TO knows only the filegroup
        PRIMARY, or DEFAULT.

        Raises:
            BrokerError: 15151 no such queue or filegroup, 402, and for the activation 9609, 9611, 9613, 9614, 9742,
                15517.
        """
        check_switch("REBUILD", rebuild)
        check_switch("REORGANIZE", reorganize)
        said: list[BrokerError | None] = []

        def steps() -> Steps[list[UUID]]:
            if activation is not None:
                said[:] = [(yield from set_activation(self.user, name, activation))]
            return (
                yield from alter.alter_queue(
                    self.catalog,
                    self.database_id,
                    name,
                    status=status,
                    retention=retention,
                    poison_message_handling=poison_message_handling,
                    move_to=move_to,
                    now=self.instance.clock(),
                )
            )

        self._deliver(steps, "ALTER QUEUE", rights.queue(name))
        for warning in said:
            _warn(warning)
        for table in alter.TABLES if rebuild else ():
            self._define(alter.rebuild_queue(self.database_id, name, table), "ALTER QUEUE", rights.queue(name))
        if reorganize:
            queue = self._do(alter.find_user_queue("alter", self.database_id, name))
            self._do(alter.reorganize_queue(queue.queue_id))

    def drop_queue(self, name: str) -> None:
        """DROP QUEUE; readers that wait there get 15151. Returns when no open transaction has its table in use.

        Raises:
            BrokerError: 3716 a service uses it, 15151 no such queue.
        """

        def steps() -> Steps[Queue]:
            yield from drop_notifications_on(self.database_id, name, self.instance.clock())
            return (yield from alter.drop_queue(self.database_id, name))

        dropped = self._define(steps(), "DROP QUEUE", rights.queue(name))
        self.catalog.forget_queue(dropped.queue_id)
        self._remove_dropped_queues()

    def alter_service(
        self,
        name: str,
        *,
        queue: str | None = None,
        add_contracts: Iterable[str] = (),
        drop_contracts: Iterable[str] = (),
    ) -> None:
        """ALTER SERVICE ON QUEUE (ADD CONTRACT, DROP CONTRACT). Its messages move to the other queue with it.

        Conversations on a dropped contract go on; readers that wait at its queue get 8468.

        Raises:
            BrokerError: 15151 unknown service, queue or contract, 8493 nothing would change, 8404.
        """
        to_add, to_drop = read_once(add_contracts), read_once(drop_contracts)
        needed = [rights.service(name), rights.contracts(to_add), *([] if queue is None else [rights.queue(queue)])]

        def steps() -> Steps[None]:
            altering = services.alter_service(
                self.database_id, name, queue=queue, add_contracts=to_add, drop_contracts=to_drop
            )
            return rights.authorized(altering, self.user, "ALTER SERVICE", *needed)

        self._giving_way(steps)

        def delivering() -> Steps[list[UUID]]:
            return transmission.deliver_free(self.catalog, self.instance.clock())

        self._deliver_left(self._giving_way(delivering, RISING))

    def drop_service(self, name: str) -> None:
        """DROP SERVICE with its messages and conversations; their peers get the Error -8470.

        Raises:
            BrokerError: 15151 no such service, 3716 a conversation priority names it.
        """

        def steps() -> Steps[None]:
            dropping = services.drop_service(self.database_id, name)
            return rights.authorized(dropping, self.user, "DROP SERVICE", rights.service(name))

        self._giving_way(steps)

    create_broker_priority = defined(priorities.create_broker_priority)

    alter_broker_priority = defined(priorities.alter_broker_priority)

    drop_broker_priority = defined(priorities.drop_broker_priority)

    create_remote_service_binding = defined(bindings.create_remote_service_binding)

    alter_remote_service_binding = defined(bindings.alter_remote_service_binding)

    drop_remote_service_binding = defined(bindings.drop_remote_service_binding)

    def _deliver(self, steps: Callable[[], Steps[list[UUID]]], statement: str, *objects: rights.Lookup) -> None:
        """Do what delivers waiting messages, then the conversations that somebody was sending on."""
        self._deliver_left(self._giving_way(lambda: rights.authorized(steps(), self.user, statement, *objects), RISING))

    def _deliver_left(self, handles: list[UUID]) -> None:
        for handle in handles:
            remembered, now = self.catalog, self.instance.clock()
            self._alone(transmission.deliver_conversation(remembered, handle, now))

    def _define(self, steps: Steps[T], statement: str, *objects: rights.Lookup) -> T:
        """DDL that is authorized by what `NEEDS` says of the statement."""
        return self._alone(rights.authorized(steps, self.user, statement, *objects))

    def _remove_dropped_queues(self) -> None:
        """The second half of DROP QUEUE, also for a process that died between the two."""
        for queue_id in self._alone(alter.dropped_queues()):
            self._alone(alter.remove_dropped_queue(queue_id))


def _warn(said: BrokerError | None) -> None:
    if said is not None:
        warnings.warn(str(said), stacklevel=3)
