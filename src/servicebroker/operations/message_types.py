"""CREATE, ALTER and DROP MESSAGE TYPE."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from servicebroker.model.arguments import validation_letter
from servicebroker.operations.operation import Definition, ExactlyNamed


@dataclass(frozen=True, slots=True)
class CreateMessageType(Definition[None]):
    """CREATE MESSAGE TYPE.

    Args:
        name: the name of the message type, compared byte by byte.
        validation: the validation of bodies: NONE, EMPTY, WELL_FORMED_XML, or VALID_XML with a schema collection.
        schema_collection: the XML schema collection for VALID_XML.
        authorization: the owner, a user or a role. Default: the current user.
        exist_ok: do nothing if a message type of that name exists.

    Raises:
        BrokerError: 2714 the name is taken, 402 unknown validation, 15151 no such collection or owner, 262 no
            permission to create one.
    """

    name: str
    validation: str = "NONE"
    _: KW_ONLY
    schema_collection: str | None = None
    authorization: str | None = None
    exist_ok: bool = False

    def validation_code(self) -> str:
        """Return the one-letter code that the catalog stores for the validation.

        Raises:
            BrokerError: 402 an unknown validation, or a schema collection that does not fit it.
        """
        return validation_letter(self.validation, self.schema_collection)


@dataclass(frozen=True, slots=True)
class AlterMessageType(Definition[None]):
    """ALTER MESSAGE TYPE VALIDATION, for new messages. Messages in queues are not validated again.

    Args:
        name: the name of the message type, compared byte by byte.
        validation: as for `create_message_type`.
        schema_collection: as for `create_message_type`.

    Raises:
        BrokerError: 15151 no such message type or collection, 9663 it is built in, 402 unknown validation.
    """

    name: str
    validation: str
    _: KW_ONLY
    schema_collection: str | None = None

    def validation_code(self) -> str:
        """Return the one-letter code that the catalog stores for the validation.

        Raises:
            BrokerError: 402 an unknown validation, or a schema collection that does not fit it.
        """
        return validation_letter(self.validation, self.schema_collection)


@dataclass(frozen=True, slots=True)
class DropMessageType(ExactlyNamed, Definition[None]):
    """DROP MESSAGE TYPE.

    Raises:
        BrokerError: 3716 a contract uses it, 15151 no such message type, 9663 it is built in.
    """
