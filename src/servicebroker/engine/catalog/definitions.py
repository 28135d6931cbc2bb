"""What runs each definition: the steps for the value of a CREATE, an ALTER or a DROP."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any
from uuid import UUID

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
from servicebroker.operations.bindings import (
    AlterRemoteServiceBinding,
    CreateRemoteServiceBinding,
    DropRemoteServiceBinding,
)
from servicebroker.operations.certificates import DropCertificate
from servicebroker.operations.contracts import CreateContract, DropContract
from servicebroker.operations.event_notifications import CreateEventNotification, DropEventNotification
from servicebroker.operations.message_types import AlterMessageType, CreateMessageType, DropMessageType
from servicebroker.operations.operation import Definition
from servicebroker.operations.permissions import AlterAuthorization, Deny, Grant, Revoke
from servicebroker.operations.principals import (
    AddRoleMember,
    CreateRole,
    CreateUser,
    DropRole,
    DropRoleMember,
    DropUser,
)
from servicebroker.operations.priorities import AlterBrokerPriority, CreateBrokerPriority, DropBrokerPriority
from servicebroker.operations.queues import AlterQueue, CreateQueue, DropQueue
from servicebroker.operations.routes import AlterRoute, CreateRoute, DropRoute
from servicebroker.operations.schema_collections import (
    AlterXmlSchemaCollection,
    CreateXmlSchemaCollection,
    DropXmlSchemaCollection,
)
from servicebroker.operations.services import AlterService, CreateService, DropService
from servicebroker.store.statements import Steps


def _create_contract(definer: Definer, operation: CreateContract) -> Steps[None]:
    yield from rights.authorize(definer.user, operation.permission, rights.message_types(operation.sent_by))
    owner = yield from find_owner(definer.user, operation.authorization)
    yield from catalog.create_contract(definer.database_id, operation, owner)


def _create_queue(definer: Definer, operation: CreateQueue) -> Steps[BrokerError | None]:
    """Returns the warning of its activation."""
    user, activation = definer.user, operation.activation
    yield from rights.authorize(user, operation.permission)
    operation.check()
    yield from catalog.create_queue(user.database_id, operation, user.principal_id)
    if activation is None:
        return None
    is_on = activation.status is None or activation.status
    return (yield from set_activation(user, operation.name, activation._replace(status=is_on)))


def _alter_queue(definer: Definer, operation: AlterQueue) -> Steps[tuple[list[UUID], BrokerError | None]]:
    """Returns the conversations that are to be delivered yet, and the warning of its activation."""
    user, warning = definer.user, None
    yield from rights.authorize(user, operation.permission, rights.queue(operation.name))
    operation.check()
    if operation.activation is not None:
        warning = yield from set_activation(user, operation.name, operation.activation)
    return (yield from alter.alter_queue(definer, operation)), warning


def _drop_queue(definer: Definer, operation: DropQueue) -> Steps[Queue]:
    """Returns what is gone, whose tables are for `remove_dropped_queue`."""
    name = operation.name
    yield from rights.authorize(definer.user, operation.permission, rights.queue(name))
    yield from event_notifications.drop_notifications_on(definer.database_id, name, definer.clock())
    return (yield from alter.drop_queue(definer.database_id, name))


def _create_service(definer: Definer, operation: CreateService) -> Steps[None]:
    needed = rights.queue(operation.queue), rights.contracts(operation.contracts)
    yield from rights.authorize(definer.user, operation.permission, *needed)
    owner = yield from find_owner(definer.user, operation.authorization)
    queue = yield from catalog.find_queue_now("find", definer.database_id, operation.queue)
    yield from catalog.create_service(definer.database_id, operation, queue.queue_id, owner)
    yield from deliver_to_service(definer.catalog, operation.name, definer.clock())


INTERPRETERS: Mapping[type[Definition[Any]], Callable[[Definer, Any], Steps[Any]]] = {
    CreateMessageType: message_types.create_message_type,
    AlterMessageType: message_types.alter_message_type,
    DropMessageType: message_types.drop_message_type,
    CreateXmlSchemaCollection: schemas.create_xml_schema_collection,
    AlterXmlSchemaCollection: schemas.alter_xml_schema_collection,
    DropXmlSchemaCollection: schemas.drop_xml_schema_collection,
    CreateContract: _create_contract,
    DropContract: alter.drop_contract,
    CreateQueue: _create_queue,
    AlterQueue: _alter_queue,
    DropQueue: _drop_queue,
    CreateService: _create_service,
    AlterService: services.alter_service,
    DropService: services.drop_service,
    CreateBrokerPriority: priorities.create_broker_priority,
    AlterBrokerPriority: priorities.alter_broker_priority,
    DropBrokerPriority: priorities.drop_broker_priority,
    CreateRemoteServiceBinding: bindings.create_remote_service_binding,
    AlterRemoteServiceBinding: bindings.alter_remote_service_binding,
    DropRemoteServiceBinding: bindings.drop_remote_service_binding,
    CreateRoute: routes.create_route,
    AlterRoute: routes.alter_route,
    DropRoute: routes.drop_route,
    CreateEventNotification: event_notifications.create_event_notification,
    DropEventNotification: event_notifications.drop_event_notification,
    CreateUser: principals.create_user,
    DropUser: principals.drop_user,
    CreateRole: principals.create_role,
    DropRole: principals.drop_role,
    AddRoleMember: principals.add_role_member,
    DropRoleMember: principals.drop_role_member,
    Grant: grants.grant,
    Deny: grants.deny,
    Revoke: grants.revoke,
    AlterAuthorization: grants.alter_authorization,
    DropCertificate: drop_certificate,
}
