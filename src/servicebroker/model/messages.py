"""The messages of RECEIVE, and the XML body of an Error message (docs/reference/rules.md#receive)."""

from __future__ import annotations

import re
from datetime import datetime
from html import escape
from typing import TYPE_CHECKING, Any, Generic, NamedTuple
from uuid import UUID

from servicebroker.model import names
from servicebroker.model.bodies import decode_body
from servicebroker.model.errors import ERROR_NAMESPACE

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # only type checkers need the default, and they have this package

    B_co = TypeVar("B_co", default=Any, covariant=True)
else:
    from typing import TypeVar

    B_co = TypeVar("B_co", covariant=True)


class Message(NamedTuple, Generic[B_co]):
    """One row of RECEIVE, with the columns of the queue.

    A handler that asks for `Message[Order]` gets messages whose `body` is an Order.

    `message_sequence_number` counts from 0 in each direction of a conversation; `message_body` is None for
    an empty body; `message_enqueue_time` is UTC; `validation` is N, E or X.
    """

    status: int
    priority: int
    queuing_order: int
    conversation_group_id: UUID
    conversation_handle: UUID
    message_sequence_number: int
    service_name: str
    service_id: int
    service_contract_name: str
    service_contract_id: int
    message_type_name: str
    message_type_id: int
    validation: str
    message_body: bytes | None
    message_enqueue_time: datetime

    @property
    def body(self) -> B_co:
        """The body as an object of its message type's codec (`servicebroker.codec`); bytes without one.

        Raises:
            BodyError: the codec cannot read the body. `message_body` always has the bytes.
        """
        body: B_co = decode_body(self.message_type_name, self.message_body)
        return body

    @property
    def is_end_dialog(self) -> bool:
        """True if the peer has ended the conversation. Answer with END CONVERSATION."""
        return self.message_type_id == names.END_DIALOG_ID

    @property
    def is_error(self) -> bool:
        """True if the conversation failed. `read_error(message_body)` has the reason. Answer with END CONVERSATION."""
        return self.message_type_id == names.ERROR_ID

    @property
    def is_timer(self) -> bool:
        """True if the conversation timer of this endpoint fired."""
        return self.message_type_id == names.DIALOG_TIMER_ID


def error_body(code: int, description: str) -> bytes:
    """Return the body of an Error message, UTF-16 with a byte order mark.

    Characters that XML cannot represent become U+FFFD, so that every description is readable.
    """
    return (
        f'<?xml version="1.0"?><Error xmlns="{ERROR_NAMESPACE}">'
        f"<Code>{code}</Code><Description>{xml_text(description)}</Description></Error>"
    ).encode("utf-16")


def xml_text(text: str) -> str:
    """Return a text escaped for XML; characters that XML cannot represent become U+FFFD."""
    return escape("".join(c if _xml_allows(c) else "\ufffd" for c in text), quote=False)


def read_error(body: bytes | None) -> tuple[int, str]:
    """Return code and description of an Error message. Positive codes come from END CONVERSATION WITH ERROR.

    Raises:
        ValueError: the body is not an Error message.
    """
    from lxml import etree  # programs that read no XML do not load its parser

    from servicebroker.model.xml import parse

    try:
        root = parse(body or b"")
    except etree.XMLSyntaxError as problem:
        raise ValueError(f"not an Error message: {problem}") from None
    code = root.findtext(f"{{{ERROR_NAMESPACE}}}Code") or ""
    if not re.fullmatch(r"-?[0-9]{1,10}", code):
        raise ValueError("not an Error message: it has no Code")
    return int(code), root.findtext(f"{{{ERROR_NAMESPACE}}}Description") or ""


def _xml_allows(character: str) -> bool:
    code = ord(character)
    return code in (0x9, 0xA, 0xD) or 0x20 <= code <= 0xD7FF or 0xE000 <= code <= 0xFFFD or code >= 0x10000


class DelayedMessage(NamedTuple):
    """A message in the transmission queue that is delayed, or waits behind a delayed one.

    Attributes:
        conversation_handle: its conversation, on the sender's side.
        message_sequence_number: its number, which is lower by one after an earlier delayed message was cancelled.
        message_type_name: its type.
        from_service: the service that sends it.
        to_service: the service that gets it.
        bytes: the size of its body.
        enqueue_time: the time of the SEND.
        delayed_until: the time at which it is delivered, at the earliest.
    """

    conversation_handle: UUID
    message_sequence_number: int
    message_type_name: str
    from_service: str
    to_service: str
    bytes: int
    enqueue_time: datetime
    delayed_until: datetime
