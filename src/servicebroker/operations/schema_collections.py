"""CREATE, ALTER and DROP XML SCHEMA COLLECTION."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TypeAlias

from servicebroker.model.arguments import read_once
from servicebroker.operations.operation import Definition

Schemas: TypeAlias = str | bytes | Iterable[str | bytes]


@dataclass(frozen=True, slots=True)
class CreateXmlSchemaCollection(Definition[None]):
    """CREATE XML SCHEMA COLLECTION.

    Args:
        name: `collection` or `schema.collection`, case-insensitive.
        documents: the text of one or more XML schemas, which may import each other only.

    Raises:
        BrokerError: 2378 not an XML schema, or it does not compile; 2714 the name is taken, 9609 too many parts in the
            name, 15151 an invalid name, 262 no permission.
    """

    name: str
    documents: Schemas = field(repr=False)

    def __post_init__(self) -> None:
        """Read an iterator once: the operation may be run again."""
        object.__setattr__(self, "documents", read_once(self.documents))


@dataclass(frozen=True, slots=True)
class AlterXmlSchemaCollection(Definition[None]):
    """ALTER XML SCHEMA COLLECTION ADD: validate messages that are delivered afterwards with the new schemas, too.

    Args:
        name: as for `create_xml_schema_collection`.
        add: the text of one or more XML schemas.

    Raises:
        BrokerError: 15151 no such collection, 2378 the schemas together do not compile.
    """

    name: str
    add: Schemas = field(repr=False)

    def __post_init__(self) -> None:
        """Read an iterator once: the operation may be run again."""
        object.__setattr__(self, "add", read_once(self.add))


@dataclass(frozen=True, slots=True)
class DropXmlSchemaCollection(Definition[None]):
    """DROP XML SCHEMA COLLECTION.

    Args:
        name: as for `create_xml_schema_collection`.

    Raises:
        BrokerError: 3716 a message type uses it, 15151 no such collection.
    """

    name: str
