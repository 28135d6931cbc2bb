"""CREATE, ALTER and DROP XML SCHEMA COLLECTION, and message type validation by one (reference 01 section 2)."""

from __future__ import annotations

from collections.abc import Iterable

from servicebroker.engine.alter import renew_versions
from servicebroker.engine.catalog import VALID_XML, VALIDATIONS, created, schema_documents
from servicebroker.model import names
from servicebroker.model.errors import BrokerError
from servicebroker.model.xml import SchemaCollection, SchemaDocument, read_schema
from servicebroker.store.statements import Statement, Steps

KIND = "XML schema collection"

Schemas = str | bytes | Iterable[str | bytes]


def create_xml_schema_collection(database_id: int, name: str, schemas: Schemas) -> Steps[int]:
    """CREATE XML SCHEMA COLLECTION name AS schemas: documents that may import each other, and nothing else.

    Raises:
        BrokerError: 2378 a document is no XML schema, has a DTD or reaches outside, or they do not fit together;
            2714 the name is taken, 9609 and 15151 its form, 402 another type.
    """
    schema, collection = names.split_name(KIND, name)
    documents = _documents(schemas)
    _check(documents)
    rows = yield Statement("select name from servicebroker.databases where database_id = $1", (database_id,))
    rows = yield Statement(
        "insert into servicebroker.xml_schema_collections (database_id, schema_name, name, postgres_schema) "
        "values ($1, $2, $3, $4) on conflict do nothing returning xml_collection_id",
        (database_id, schema, collection, names.postgres_name(rows[0][0], schema)),
    )
    collection_id = created(rows, collection)
    yield _insert(collection_id, documents, 0)
    return collection_id


def alter_xml_schema_collection(database_id: int, name: str, schemas: Schemas) -> Steps[None]:
    """ALTER XML SCHEMA COLLECTION name ADD schemas: for what is delivered from now on.

    Raises:
        BrokerError: 15151 no such collection, 2378 and 402 as CREATE.
    """
    documents = _documents(schemas)
    collection_id = yield from find_collection("alter", database_id, name)
    present = yield from schema_documents(collection_id)
    _check([*present, *documents])
    yield _insert(collection_id, documents, len(present))
    yield Statement(
        "update servicebroker.xml_schema_collections set version = nextval('servicebroker.catalog_versions'), "
        "modify_date = clock_timestamp() where xml_collection_id = $1",
        (collection_id,),
    )
    yield renew_versions(database_id)


def drop_xml_schema_collection(database_id: int, name: str) -> Steps[None]:
    """DROP XML SCHEMA COLLECTION.

    Raises:
        BrokerError: 3716 a message type uses it, 15151 no such collection.
    """
    collection_id = yield from find_collection("drop", database_id, name)
    used = yield Statement(
        "select from servicebroker.message_types where xml_collection_id = $1 limit 1", (collection_id,)
    )
    if used:
        raise BrokerError(3716, KIND, name, "message types")
    yield Statement("delete from servicebroker.xml_schema_collections where xml_collection_id = $1", (collection_id,))


def find_collection(action: str, database_id: int, name: str) -> Steps[int]:
    """The number of a collection, by name without regard to case.

    Raises:
        BrokerError: 15151 when it does not exist.
    """
    schema, collection = names.split_name(KIND, name)
    rows = yield Statement(
        "select xml_collection_id from servicebroker.xml_schema_collections "
        "where database_id = $1 and lower(schema_name) = lower($2) and lower(name) = lower($3)",
        (database_id, schema, collection),
    )
    if not rows:
        raise BrokerError(15151, action, KIND, name)
    return int(rows[0][0])


def checked_validation(database_id: int, validation: object, collection: str | None) -> Steps[tuple[str, int | None]]:
    """The letter of a VALIDATION clause, and the number of the collection that VALID_XML names.

    Raises:
        BrokerError: 402 an unknown validation, VALID_XML without a collection or a collection without it, 15151.
    """
    if not isinstance(validation, str) or validation not in VALIDATIONS:
        raise BrokerError(402, "VALIDATION", repr(validation), "one of " + ", ".join(VALIDATIONS))
    if (validation == VALID_XML) != (collection is not None):
        raise BrokerError(402, "the schema collection", repr(collection), f"named with {VALID_XML}, and only with it")
    if collection is None:
        return VALIDATIONS[validation], None
    return VALIDATIONS[validation], (yield from find_collection("find", database_id, collection))


def _insert(collection_id: int, documents: list[SchemaDocument], present: int) -> Statement:
    return Statement(
        "insert into servicebroker.xml_schemas select $1, $2 + number - 1, namespace, document "
        "from unnest($3::text[], $4::text[]) with ordinality as added (namespace, document, number)",
        (
            collection_id,
            present,
            [document.target_namespace for document in documents],
            [document.content.decode() for document in documents],
        ),
    )


def _documents(schemas: object) -> list[SchemaDocument]:
    """The documents that were given, each read by itself."""
    given = [schemas] if isinstance(schemas, str | bytes) else list(schemas) if isinstance(schemas, Iterable) else []
    if not given or not all(isinstance(text, str | bytes) for text in given):
        raise BrokerError(
            402, "the schemas", type(schemas).__name__, "str or bytes, or a list of them that is not empty"
        )
    try:
        return [read_schema(text) for text in given]
    except ValueError as problem:
        raise BrokerError(2378, hint=str(problem)) from None


def _check(documents: list[SchemaDocument]) -> None:
    try:
        SchemaCollection(documents).check()
    except ValueError as problem:
        raise BrokerError(2378, hint=str(problem)) from None
