"""The table of definitions: for each operation (CREATE, ALTER, DROP ...) the function that runs it."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

from servicebroker import operations
from servicebroker.engine.activation.clause import set_activation
from servicebroker.engine.catalog import (
    alter,
    bindings,
    catalog,
    event_notifications,
    message_types,
    priorities,
    routes,
    schemas,
    services,
)
from servicebroker.engine.catalog.catalog import Queue
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.delivery.transmission import deliver_to_service
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security import grants, principals
from servicebroker.engine.security.principals import find_owner
from servicebroker.engine.security.user_certificates import drop_certificate
from servicebroker.model.errors import BrokerError
from servicebroker.operations.operation import Definition
from servicebroker.store.statements import Steps


def _create_contract(definer: Definer, operation: operations.CreateContract) -> Steps[None]:
    yield from rights.authorize(definer.user, operation.permission, rights.message_types(operation.sent_by))
    owner = yield from find_owner(definer.user, operation.authorization)
    yield from catalog.create_contract(definer.database_id, operation, owner)


def _create_queue(definer: Definer, operation: operations.CreateQueue) -> Steps[BrokerError | None]:
    """CREATE QUEUE. Returns the warning about its activation, if any."""
    user, activation = definer.user, operation.activation
    yield from rights.authorize(user, operation.permission)
    operation.check()
    yield from catalog.create_queue(user.database_id, operation, user.principal_id)
    if activation is None:
        return None
    is_on = activation.status is None or activation.status
    return (yield from set_activation(user, operation.name, activation._replace(status=is_on)))


def _alter_queue(definer: Definer, operation: operations.AlterQueue) -> Steps[tuple[list[UUID], BrokerError | None]]:
    """ALTER QUEUE. Returns the conversations to deliver afterwards, and the warning about its activation, if any."""
    user, warning = definer.user, None
    yield from rights.authorize(user, operation.permission, rights.queue(operation.name))
    operation.check()
    if operation.activation is not None:
        warning = yield from set_activation(user, operation.name, operation.activation)
    return (yield from alter.alter_queue(definer, operation)), warning


def _drop_queue(definer: Definer, operation: operations.DropQueue) -> Steps[Queue]:
    """DROP QUEUE. Returns the dropped queue: the caller runs `remove_dropped_queue` to drop its tables."""
    name = operation.name
    yield from rights.authorize(definer.user, operation.permission, rights.queue(name))
    yield from event_notifications.drop_notifications_on(definer.database_id, name, definer.clock())
    return (yield from alter.drop_queue(definer.database_id, name))


def _create_service(definer: Definer, operation: operations.CreateService) -> Steps[None]:
    needed = rights.queue(operation.queue), rights.contracts(operation.contracts)
    yield from rights.authorize(definer.user, operation.permission, *needed)
    owner = yield from find_owner(definer.user, operation.authorization)
    queue = yield from catalog.find_queue_uncached("find", definer.database_id, operation.queue)
    yield from catalog.create_service(definer.database_id, operation, queue.queue_id, owner)
    yield from deliver_to_service(definer.catalog, operation.name, definer.clock())


INTERPRETERS: Mapping[type[Definition[Any]], Callable[[Definer, Any], Steps[Any]]] = {
    operations.CreateMessageType: message_types.create_message_type,
    operations.AlterMessageType: message_types.alter_message_type,
    operations.DropMessageType: message_types.drop_message_type,
    operations.CreateXmlSchemaCollection: schemas.create_xml_schema_collection,
    operations.AlterXmlSchemaCollection: schemas.alter_xml_schema_collection,
    operations.DropXmlSchemaCollection: schemas.drop_xml_schema_collection,
    operations.CreateContract: _create_contract,
    operations.DropContract: alter.drop_contract,
    operations.CreateQueue: _create_queue,
    operations.AlterQueue: _alter_queue,
    operations.DropQueue: _drop_queue,
    operations.CreateService: _create_service,
    operations.AlterService: services.alter_service,
    operations.DropService: services.drop_service,
    operations.CreateBrokerPriority: priorities.create_broker_priority,
    operations.AlterBrokerPriority: priorities.alter_broker_priority,
    operations.DropBrokerPriority: priorities.drop_broker_priority,
    operations.CreateRemoteServiceBinding: bindings.create_remote_service_binding,
    operations.AlterRemoteServiceBinding: bindings.alter_remote_service_binding,
    operations.DropRemoteServiceBinding: bindings.drop_remote_service_binding,
    operations.CreateRoute: routes.create_route,
    operations.AlterRoute: routes.alter_route,
    operations.DropRoute: routes.drop_route,
    operations.CreateEventNotification: event_notifications.create_event_notification,
    operations.DropEventNotification: event_notifications.drop_event_notification,
    operations.CreateUser: principals.create_user,
    operations.DropUser: principals.drop_user,
    operations.CreateRole: principals.create_role,
    operations.DropRole: principals.drop_role,
    operations.AddRoleMember: principals.add_role_member,
    operations.DropRoleMember: principals.drop_role_member,
    operations.Grant: grants.grant,
    operations.Deny: grants.deny,
    operations.Revoke: grants.revoke,
    operations.AlterAuthorization: grants.alter_authorization,
    operations.DropCertificate: drop_certificate,
}
