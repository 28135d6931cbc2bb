"""CREATE, ALTER and DROP of a broker database's objects, as methods: message types, queues, services and so on."""

from __future__ import annotations

import warnings
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ParamSpec, TypeAlias, TypeVar
from uuid import UUID

from servicebroker import operations
from servicebroker.api.aio import certificates, master_keys
from servicebroker.api.aio.lock_retry import LOCK_TIMEOUTS_MS, RISING_LOCK_TIMEOUTS_MS
from servicebroker.api.aio.wrappers import operation_method
from servicebroker.engine.catalog import alter, database_options
from servicebroker.engine.catalog.catalog import Catalog
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.catalog.definitions import INTERPRETERS
from servicebroker.engine.catalog.read_only import set_read_only, set_read_write
from servicebroker.engine.delivery import transmission
from servicebroker.engine.security import authorization as rights
from servicebroker.model.arguments import Termination, may_exist
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import User
from servicebroker.model.wording import short_repr
from servicebroker.operations.operation import Definition, Operation
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.aio.instance import AsyncInstance

T = TypeVar("T")
P = ParamSpec("P")


class AsyncDefinitions(ABC):
    """CREATE, ALTER and DROP of a database's objects, users and roles; GRANT, DENY, REVOKE; ALTER AUTHORIZATION.

    A keyword such as `service` or `queue` names the object of a permission. Without one, the object is the database.
    """

    instance: AsyncInstance
    database_id: int
    name: str
    user: User
    catalog: Catalog
    _opened_master_key: tuple[bytes, bytes] | None = None  # (encrypted by its password, in clear) after OPEN MASTER KEY

    @abstractmethod
    async def _run_in_transaction(self, steps: Steps[T]) -> T:
        """Run the steps of DDL."""

    @abstractmethod
    async def _retry_locked(self, steps: Callable[[], Steps[T]], timeouts_ms: Sequence[int] = LOCK_TIMEOUTS_MS) -> T:
        """Run the steps of DDL, and retry while locks of readers or senders block them.

        Steps that run `lock_delivery`, whose lock each new conversation takes, use `RISING_LOCK_TIMEOUTS_MS`.
        """

    @abstractmethod
    async def _do(self, steps: Steps[T]) -> T:
        """Run steps, each as a transaction."""

    def _steps(self, operation: Definition[Any]) -> Steps[Any]:
        """Return the steps of a definition. Each attempt needs new ones."""
        definer = Definer(self.user, self.catalog, self.instance.clock)
        return INTERPRETERS[type(operation)](definer, operation)

    async def _run_definition(self, operation: Operation[T]) -> T:
        """Run a definition. If its object exists and `exist_ok` is set, do nothing."""
        kind: Any = type(operation)
        run: Runner | None = _RUNNERS.get(kind, _run_in_transaction if kind in INTERPRETERS else None)
        if run is None or not isinstance(operation, Definition):
            raise BrokerError(402, "operation", short_repr(operation), "a value of servicebroker.operations")
        with may_exist(operation.exist_ok):
            result: T = await run(self, operation)
            return result

    alter = operation_method(operations.AlterDatabase)

    create_message_type = operation_method(operations.CreateMessageType)

    alter_message_type = operation_method(operations.AlterMessageType)

    drop_message_type = operation_method(operations.DropMessageType)

    create_xml_schema_collection = operation_method(operations.CreateXmlSchemaCollection)

    alter_xml_schema_collection = operation_method(operations.AlterXmlSchemaCollection)

    drop_xml_schema_collection = operation_method(operations.DropXmlSchemaCollection)

    create_contract = operation_method(operations.CreateContract)

    drop_contract = operation_method(operations.DropContract)

    create_queue = operation_method(operations.CreateQueue)

    alter_queue = operation_method(operations.AlterQueue)

    drop_queue = operation_method(operations.DropQueue)

    create_service = operation_method(operations.CreateService)

    alter_service = operation_method(operations.AlterService)

    drop_service = operation_method(operations.DropService)

    create_broker_priority = operation_method(operations.CreateBrokerPriority)

    alter_broker_priority = operation_method(operations.AlterBrokerPriority)

    drop_broker_priority = operation_method(operations.DropBrokerPriority)

    create_remote_service_binding = operation_method(operations.CreateRemoteServiceBinding)

    alter_remote_service_binding = operation_method(operations.AlterRemoteServiceBinding)

    drop_remote_service_binding = operation_method(operations.DropRemoteServiceBinding)

    create_route = operation_method(operations.CreateRoute)

    alter_route = operation_method(operations.AlterRoute)

    drop_route = operation_method(operations.DropRoute)

    create_event_notification = operation_method(operations.CreateEventNotification)

    drop_event_notification = operation_method(operations.DropEventNotification)

    create_user = operation_method(operations.CreateUser)

    drop_user = operation_method(operations.DropUser)

    create_role = operation_method(operations.CreateRole)

    drop_role = operation_method(operations.DropRole)

    add_role_member = operation_method(operations.AddRoleMember)

    drop_role_member = operation_method(operations.DropRoleMember)

    grant = operation_method(operations.Grant)

    deny = operation_method(operations.Deny)

    revoke = operation_method(operations.Revoke)

    alter_authorization = operation_method(operations.AlterAuthorization)

    create_certificate = operation_method(operations.CreateCertificate)

    alter_certificate = operation_method(operations.AlterCertificate)

    drop_certificate = operation_method(operations.DropCertificate)

    backup_certificate = operation_method(operations.BackupCertificate)

    create_master_key = operation_method(operations.CreateMasterKey)

    open_master_key = operation_method(operations.OpenMasterKey)

    close_master_key = operation_method(operations.CloseMasterKey)

    alter_master_key = operation_method(operations.AlterMasterKey)

    add_master_key_password = operation_method(operations.AddMasterKeyPassword)

    drop_master_key_password = operation_method(operations.DropMasterKeyPassword)

    regenerate_master_key = operation_method(operations.RegenerateMasterKey)

    drop_master_key = operation_method(operations.DropMasterKey)

    @abstractmethod
    async def _define_exclusively(
        self, steps: Callable[[], Steps[T]], statement: str, termination: Termination, in_use: BrokerError
    ) -> T:
        """Run steps of DDL with exclusive use of the database. The permission is checked before sessions are ended."""

    async def _deliver_remaining(self, handles: list[UUID]) -> None:
        """Deliver conversations that sessions had locked while the others were delivered, each in a transaction."""
        for handle in handles:
            await self._run_in_transaction(
                transmission.deliver_conversation(self.catalog, handle, self.instance.clock())
            )

    async def _remove_dropped_queues(self) -> None:
        """Run the second half of DROP QUEUE, also for queues of processes that died after the first half."""
        for queue_id in await self._run_in_transaction(alter.find_dropped_queues()):
            await self._run_in_transaction(alter.remove_dropped_queue(queue_id))


def _warn(warning: BrokerError | None) -> None:
    if warning is not None:
        warnings.warn(str(warning), stacklevel=5)  # at the caller of the method


# ---------------------------------------------------------------- how definitions run

Runner: TypeAlias = Callable[[Any, Any], Awaitable[Any]]  # (database, operation) -> the operation's result


async def _run_in_transaction(definitions: AsyncDefinitions, operation: Definition[Any]) -> Any:
    """Run a definition in one transaction, under the lock of the catalog."""
    return await definitions._run_in_transaction(definitions._steps(operation))


async def _retry_locked(definitions: AsyncDefinitions, operation: Definition[Any]) -> None:
    """Run a definition, and retry while locks of readers or senders block it."""
    await definitions._retry_locked(lambda: definitions._steps(operation))


async def _delivering(definitions: AsyncDefinitions, operation: Definition[Any]) -> None:
    """Run a definition that delivers waiting messages, then deliver conversations that senders had locked."""
    await definitions._deliver_remaining(
        await definitions._retry_locked(lambda: definitions._steps(operation), RISING_LOCK_TIMEOUTS_MS)
    )


async def _create_queue(definitions: AsyncDefinitions, operation: operations.CreateQueue) -> None:
    _warn(await definitions._run_in_transaction(definitions._steps(operation)))


async def _alter_queue(definitions: AsyncDefinitions, operation: operations.AlterQueue) -> None:
    """Run ALTER QUEUE in several transactions: with both tables locked, REBUILD could deadlock with a user of one."""
    remaining, warning = await definitions._retry_locked(lambda: definitions._steps(operation), RISING_LOCK_TIMEOUTS_MS)
    await definitions._deliver_remaining(remaining)
    _warn(warning)
    definer = Definer(definitions.user, definitions.catalog, definitions.instance.clock)
    for table in alter.TABLES if operation.rebuild else ():
        await definitions._run_in_transaction(alter.rebuild_queue(definer, operation, table))
    if operation.reorganize:
        queue = await definitions._do(alter.find_user_queue("alter", definer.database_id, operation.name))
        await definitions._do(alter.reorganize_queue(queue.queue_id))


async def _drop_queue(definitions: AsyncDefinitions, operation: operations.DropQueue) -> None:
    dropped = await definitions._run_in_transaction(definitions._steps(operation))
    definitions.catalog.forget_queue(dropped.queue_id)
    await definitions._remove_dropped_queues()


async def _create_service(definitions: AsyncDefinitions, operation: operations.CreateService) -> None:
    await definitions._retry_locked(lambda: definitions._steps(operation), RISING_LOCK_TIMEOUTS_MS)


async def _alter_service(definitions: AsyncDefinitions, operation: operations.AlterService) -> None:
    """Run ALTER SERVICE, then deliver messages that waited for the service's previous queue."""
    await definitions._retry_locked(lambda: definitions._steps(operation))

    def delivering() -> Steps[list[UUID]]:
        return transmission.deliver_free(definitions.catalog, definitions.instance.clock())

    await definitions._deliver_remaining(await definitions._retry_locked(delivering, RISING_LOCK_TIMEOUTS_MS))


async def _alter_database(definitions: AsyncDefinitions, operation: operations.AlterDatabase) -> None:
    """Run the options of ALTER DATABASE in order. Some of them need exclusive use of the database."""
    termination, in_use = operation.termination(), BrokerError(5070, definitions.name)
    user, number, permission = definitions.user, definitions.database_id, operation.permission

    def enabling() -> Steps[list[UUID]]:
        return database_options.enable_broker(definitions.catalog, number, definitions.instance.clock())

    async def shared(steps: Steps[None]) -> None:
        await definitions._run_in_transaction(rights.run_authorized(steps, user, permission))

    async def alone(steps: Callable[[], Steps[T]]) -> T:
        return await definitions._define_exclusively(steps, permission, termination, in_use)

    if operation.read_only is False and await alone(lambda: set_read_write(number, definitions.name)):
        await definitions._deliver_remaining(await alone(enabling))
    if operation.disable_broker:
        await shared(database_options.disable_broker(number))
    if operation.new_broker:
        await alone(lambda: database_options.new_broker(number))
    if operation.error_broker_conversations:
        await shared(database_options.error_broker_conversations(number))
    if operation.enable_broker:
        await definitions._deliver_remaining(await alone(enabling))
    elif operation.new_broker or operation.error_broker_conversations:
        remaining = await definitions._retry_locked(
            lambda: rights.run_authorized(enabling(), user, permission), RISING_LOCK_TIMEOUTS_MS
        )
        await definitions._deliver_remaining(remaining)
    if operation.honor_broker_priority is not None:
        await shared(database_options.honor_broker_priority(number, operation.honor_broker_priority))
    if operation.trustworthy is not None:
        await shared(database_options.set_trustworthy(number, operation.trustworthy))
    if operation.read_only:
        await alone(lambda: set_read_only(number, definitions.name))


# Definitions that retry after lock timeouts, or need several transactions or files. Others: `_run_in_transaction`.
_RUNNERS: Mapping[type[Definition[Any]], Runner] = {
    operations.DropContract: _retry_locked,
    operations.CreateQueue: _create_queue,
    operations.AlterQueue: _alter_queue,
    operations.DropQueue: _drop_queue,
    operations.CreateService: _create_service,
    operations.AlterService: _alter_service,
    operations.DropService: _retry_locked,
    operations.CreateRoute: _delivering,
    operations.AlterRoute: _delivering,
    operations.DropRoute: _delivering,
    operations.AlterDatabase: _alter_database,
    **certificates.RUNNERS,
    **master_keys.RUNNERS,
}
