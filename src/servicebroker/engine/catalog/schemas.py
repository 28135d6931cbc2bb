"""CREATE, ALTER and DROP XML SCHEMA COLLECTION. VALID_XML WITH SCHEMA COLLECTION validates messages by one.

The rules: docs/reference/rules.md#message-types.
"""

from __future__ import annotations

from collections.abc import Iterable

from servicebroker.engine.catalog.alter import renew_versions
from servicebroker.engine.catalog.catalog import inserted_id, schema_documents
from servicebroker.engine.catalog.definer import Definer
from servicebroker.engine.security.authorization import demand
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.security.permissions import User
from servicebroker.model.xml import SchemaCollection, SchemaDocument, read_schema
from servicebroker.operations.schema_collections import (
    AlterXmlSchemaCollection,
    CreateXmlSchemaCollection,
    DropXmlSchemaCollection,
)
from servicebroker.store.sql_files import SqlFile
from servicebroker.store.statements import Statement, Steps

SQL = SqlFile(__file__)


KIND = "XML schema collection"


def create_xml_schema_collection(definer: Definer, operation: CreateXmlSchemaCollection) -> Steps[None]:
    """Insert the collection and its schemas, after checking that they compile together."""
    user = definer.user
    schema, collection = names.split_name(KIND, operation.name)
    texts = _documents(operation.documents)
    _check(texts)
    yield from demand(user, operation.permission)
    rows = yield SQL(
        "create_xml_schema_collection",
        (user.database_id, schema, collection, names.postgres_name(user.database, schema)),
    )
    yield _insert(inserted_id(rows, collection), texts, 0)


def alter_xml_schema_collection(definer: Definer, operation: AlterXmlSchemaCollection) -> Steps[None]:
    """Add schemas, after checking that they compile together with the existing ones."""
    user = definer.user
    texts = _documents(operation.add)
    yield from demand(user, operation.permission, KIND, operation.name)
    collection_id = yield from find_collection("alter", user.database_id, operation.name)
    present = yield from schema_documents(collection_id)
    _check([*present, *texts])
    yield _insert(collection_id, texts, len(present))
    yield SQL("alter_xml_schema_collection", (collection_id,))
    yield renew_versions(user.database_id)


def drop_xml_schema_collection(definer: Definer, operation: DropXmlSchemaCollection) -> Steps[None]:
    """Delete a collection that no message type uses."""
    user, name = definer.user, operation.name
    yield from demand(user, operation.permission, KIND, name)
    collection_id = yield from find_collection("drop", user.database_id, name)
    used = yield SQL("drop_xml_schema_collection.find_message_types", (collection_id,))
    if used:
        raise BrokerError(3716, KIND, name, "message types")
    yield SQL("drop_xml_schema_collection.delete_collections", (collection_id,))


def find_collection(action: str, database_id: int, name: str) -> Steps[int]:
    """Return the id of a collection, by name without regard to case.

    Raises:
        BrokerError: 15151 it does not exist.
    """
    schema, collection = names.split_name(KIND, name)
    rows = yield SQL("find_collection", (database_id, schema, collection))
    if not rows:
        raise BrokerError(15151, action, KIND, name)
    return int(rows[0][0])


def find_for_validation(user: User, name: str | None) -> Steps[int | None]:
    """Return the id of the collection that VALID_XML WITH SCHEMA COLLECTION names; None without a name.

    Raises:
        BrokerError: 15151 it does not exist, or the user may not refer to it.
    """
    if name is None:
        return None
    yield from demand(user, "FIND XML SCHEMA COLLECTION", KIND, name)
    return (yield from find_collection("find", user.database_id, name))


def _insert(collection_id: int, documents: list[SchemaDocument], present: int) -> Statement:
    return SQL(
        "insert",
        (
            collection_id,
            present,
            [document.target_namespace for document in documents],
            [document.content.decode() for document in documents],
        ),
    )


def _documents(schemas: object) -> list[SchemaDocument]:
    """Return the argument's documents, one text or several, each parsed.

    Raises:
        BrokerError: 402 no texts, 2378 a text that is not an XML schema.
    """
    texts = [schemas] if isinstance(schemas, str | bytes) else list(schemas) if isinstance(schemas, Iterable) else []
    if not texts or not all(isinstance(text, str | bytes) for text in texts):
        raise BrokerError(
            402, "the schemas", type(schemas).__name__, "str or bytes, or a list of them that is not empty"
        )
    try:
        return [read_schema(text) for text in texts]
    except ValueError as problem:
        raise BrokerError(2378, hint=str(problem)) from None


def _check(documents: list[SchemaDocument]) -> None:
    try:
        SchemaCollection(documents).check()
    except ValueError as problem:
        raise BrokerError(2378, hint=str(problem)) from None
