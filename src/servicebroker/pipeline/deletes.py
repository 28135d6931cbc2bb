"""Messages that delete the row of their key in a table with a key.

A rule says which of its messages delete (`DeleteRule`). A task recognizes them and reads their key (`DeleteDecoder`).
Each delete becomes a row of the tombstone table, with the key and the message's position. A batch is first committed
there, then in the table (`sinks/keyed_rows.py`). So an older message that comes later finds the tombstone.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from servicebroker.overriding import override
from servicebroker.pipeline.decoding import Column, Decoder, Undecodable

DELETE_CONDITIONS = ("always", "empty", "field")
TOMBSTONES_SUFFIX = "_tombstones"  # a table's name with this suffix is the table of its deleted keys
KEY_ORIGIN = ("_queue", "_conversation_handle")  # columns of a key that are not in the body of a message


@dataclass(frozen=True)
class DeleteRule:
    """The messages of a rule that delete the row of their key.

    Attributes:
        when: one of `DELETE_CONDITIONS`: every message, a message without a body, or one whose field at `path` has one
            of `values`.
        path: path of the field in the body, as in `Column.source`.
        values: values of the field, as text. Numbers and booleans are written as in JSON.
        key: path of a key column in such a body, by column name. Other key columns are read as in a row.
    """

    when: str
    path: str | tuple[str, ...] = ""
    values: tuple[str, ...] = ()
    key: dict[str, str] = field(default_factory=dict)

    @property
    def condition(self) -> Column:
        """The field that decides, as a column."""
        return Column("condition", "string", is_optional=True, source=self.path, coerces=True)

    @override
    def __str__(self) -> str:
        if self.when != "field":
            return "every message" if self.when == "always" else "a message without a body"
        return f"{self.condition.path} = {' or '.join(self.values)}"


@dataclass(frozen=True)
class DeleteDecoder:
    """Recognizes the messages that delete, and decodes their key.

    Attributes:
        columns: the key columns that are in the body.
        key: decoder of these columns; None if there are none.
        condition: decoder of the field that decides; None if no field does.
    """

    rule: DeleteRule
    columns: tuple[Column, ...]
    key: Decoder | None
    condition: Decoder | None

    def matches(self, body: bytes | None, decode: Callable[[Decoder], list[Any]]) -> bool:
        """Return whether a message deletes a row. `decode` applies a decoder to its body."""
        if self.condition is None:
            return self.rule.when == "always" or not body
        try:
            (value,) = decode(self.condition)
        except Undecodable:  # the decoder of rows names the reason
            return False
        return value in self.rule.values

    def decode(self, decode: Callable[[Decoder], list[Any]]) -> list[Any]:
        """Return the values of `columns`.

        Raises:
            Undecodable: the body has no key.
        """
        return [] if self.key is None else decode(self.key)
