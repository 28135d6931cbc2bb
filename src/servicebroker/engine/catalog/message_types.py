"""CREATE, ALTER and DROP MESSAGE TYPE (docs/reference/rules.md#message-types)."""

from __future__ import annotations

from servicebroker.engine.catalog.alter import renew_versions
from servicebroker.engine.catalog.catalog import find_user_object, inserted_id
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.catalog.schemas import find_for_validation
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security.principals import find_owner
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import Kind
from servicebroker.operations.message_types import AlterMessageType, CreateMessageType, DropMessageType
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Steps

SQL = SqlFile(__file__)


def create_message_type(definer: Definer, operation: CreateMessageType) -> Steps[None]:
    """Insert the message type."""
    user, name = definer.user, operation.name
    yield from rights.authorize(user, operation.permission)
    owner = yield from find_owner(user, operation.authorization)
    names.checked("message type", name)
    letter = operation.validation_code()
    collection_id = yield from find_for_validation(user, operation.schema_collection)
    rows = yield SQL("create_message_type", (user.database_id, name, letter, collection_id, owner))
    inserted_id(rows, name)


def alter_message_type(definer: Definer, operation: AlterMessageType) -> Steps[None]:
    """Change the validation of the message type."""
    user, name = definer.user, operation.name
    yield from rights.authorize(user, operation.permission, rights.message_types([name]))
    letter = operation.validation_code()
    collection_id = yield from find_for_validation(user, operation.schema_collection)
    database_id = user.database_id
    type_id = yield from find_user_object("alter", "message type", database_id, name)
    yield SQL("alter_message_type", (database_id, type_id, letter, collection_id))
    yield renew_versions(database_id)


def drop_message_type(definer: Definer, operation: DropMessageType) -> Steps[None]:
    """Delete a message type that no contract uses."""
    user, name = definer.user, operation.name
    yield from rights.authorize(user, operation.permission, rights.message_types([name]))
    database_id = user.database_id
    type_id = yield from find_user_object("drop", "message type", database_id, name)
    used = yield SQL("drop_message_type.find_types_used", (database_id, type_id))
    if used:
        raise BrokerError(3716, "message type", name, "service contracts")
    yield rights.forget_permissions(database_id, Kind.MESSAGE_TYPE, type_id)
    yield SQL("drop_message_type.delete_message_types", (database_id, type_id))
