"""CREATE, ALTER and DROP MESSAGE TYPE (docs/reference/rules.md#message-types)."""

from __future__ import annotations

from servicebroker.engine.catalog.alter import renew_versions
from servicebroker.engine.catalog.catalog import created, find_user_object
from servicebroker.engine.catalog.schemas import find_for_validation
from servicebroker.engine.security import authorization as rights
from servicebroker.engine.security.principals import find_owner
from servicebroker.model import names
from servicebroker.model.arguments import may_exist, validation_letter
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import Kind, User
from servicebroker.store.statements import Statement, Steps


def create_message_type(
    user: User,
    name: str,
    validation: str = "NONE",
    *,
    schema_collection: str | None = None,
    authorization: str | None = None,
    exist_ok: bool = False,
) -> Steps[None]:
    """CREATE MESSAGE TYPE; `validation` is NONE, EMPTY, WELL_FORMED_XML, or VALID_XML with a schema collection.

    `authorization` is the owner, a user or a role; without it the user that this object works as. With `exist_ok`
    one of that name stays as it is.

    Raises:
        BrokerError: 2714 name taken, 402 unknown validation, 15151 no such collection or owner, 262.
    """
    yield from rights.authorize(user, "CREATE MESSAGE TYPE")
    owner = yield from find_owner(user, authorization)
    names.checked("message type", name)
    letter = validation_letter(validation, schema_collection)
    collection_id = yield from find_for_validation(user, schema_collection)
    rows = yield Statement(
        "message_types.create_message_type",
        "insert into servicebroker.message_types (database_id, name, validation, xml_collection_id, owner_id) "
        "values ($1, $2, $3, $4, $5) on conflict do nothing returning message_type_id",
        (user.database_id, name, letter, collection_id, owner),
    )
    with may_exist(exist_ok):
        created(rows, name)


def alter_message_type(user: User, name: str, validation: str, *, schema_collection: str | None = None) -> Steps[None]:
    """ALTER MESSAGE TYPE VALIDATION; messages that are in a queue already stay as they are.

    Raises:
        BrokerError: 15151 no such message type or collection, 9663 built-in, 402 unknown validation.
    """
    yield from rights.authorize(user, "ALTER MESSAGE TYPE", rights.message_types([name]))
    letter = validation_letter(validation, schema_collection)
    collection_id = yield from find_for_validation(user, schema_collection)
    database_id = user.database_id
    type_id = yield from find_user_object("alter", "message type", database_id, name)
    yield Statement(
        "message_types.alter_message_type",
        "update servicebroker.message_types set validation = $3, xml_collection_id = $4 "
        "where database_id = $1 and message_type_id = $2",
        (database_id, type_id, letter, collection_id),
    )
    yield renew_versions(database_id)


def drop_message_type(user: User, name: str) -> Steps[None]:
    """DROP MESSAGE TYPE.

    Raises:
        BrokerError: 3716 a contract uses it, 15151 no such message type, 9663 built-in.
    """
    yield from rights.authorize(user, "DROP MESSAGE TYPE", rights.message_types([name]))
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
