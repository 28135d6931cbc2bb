"""CREATE, ALTER and DROP MESSAGE TYPE (docs/reference/rules.md#message-types)."""

from __future__ import annotations

from servicebroker.engine.catalog.alter import renew_versions
from servicebroker.engine.catalog.catalog import created, find_user_object
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.catalog.schemas import find_for_validation
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security.principals import find_owner
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import Kind
from servicebroker.operations.message_types import AlterMessageType, CreateMessageType, DropMessageType
from servicebroker.store.statements import Statement, Steps


def create_message_type(definer: Definer, operation: CreateMessageType) -> Steps[None]:
    """Insert the message type."""
    user, name = definer.user, operation.name
    yield from rights.authorize(user, operation.permission)
    owner = yield from find_owner(user, operation.authorization)
    names.checked("message type", name)
    letter = operation.letter()
    collection_id = yield from find_for_validation(user, operation.schema_collection)
    rows = yield Statement(
        "message_types.create_message_type",
        "insert into servicebroker.message_types (database_id, name, validation, xml_collection_id, owner_id) "
        "values ($1, $2, $3, $4, $5) on conflict do nothing returning message_type_id",
        (user.database_id, name, letter, collection_id, owner),
    )
    created(rows, name)


def alter_message_type(definer: Definer, operation: AlterMessageType) -> Steps[None]:
    """Change the validation."""
    user, name = definer.user, operation.name
    yield from rights.authorize(user, operation.permission, rights.message_types([name]))
    letter = operation.letter()
    collection_id = yield from find_for_validation(user, operation.schema_collection)
    database_id = user.database_id
    type_id = yield from find_user_object("alter", "message type", database_id, name)
    yield Statement(
        "message_types.alter_message_type",
        "update servicebroker.message_types set validation = $3, xml_collection_id = $4 "
        "where database_id = $1 and message_type_id = $2",
        (database_id, type_id, letter, collection_id),
    )
    yield renew_versions(database_id)


def drop_message_type(definer: Definer, operation: DropMessageType) -> Steps[None]:
    """Delete a message type that no contract uses."""
    user, name = definer.user, operation.name
    yield from rights.authorize(user, operation.permission, rights.message_types([name]))
    database_id = user.database_id
    type_id = yield from find_user_object("drop", "message type", database_id, name)
    used = yield Statement(
        "message_types.drop_message_type.find_types_used",
        "select from servicebroker.service_contract_message_usages where database_id = $1 and message_type_id = $2",
        (database_id, type_id),
    )
    if used:
        raise BrokerError(3716, "message type", name, "service contracts")
    yield rights.forget_permissions(database_id, Kind.MESSAGE_TYPE, type_id)
    yield Statement(
        "message_types.drop_message_type.delete_message_types",
        "delete from servicebroker.message_types where database_id = $1 and message_type_id = $2",
        (database_id, type_id),
    )
