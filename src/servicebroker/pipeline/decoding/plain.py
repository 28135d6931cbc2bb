"""Decoders for JSON, text and bytes."""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from servicebroker.pipeline.decoding.columns import (
    MAX_VALUES,
    Column,
    Projection,
    Undecodable,
    too_many_values,
    with_rescue,
)
from servicebroker.pipeline.decoding.json_number import JsonNumber
from servicebroker.pipeline.decoding.json_schema import JsonSchema


class JsonDecoder:
    """Decodes JSON in UTF-8, UTF-16 or UTF-32, with or without a byte order mark.

    A body must be an object, unless every column reads the whole body. `rescue`: name of the column for fields that no
    column reads; "" for none.
    """

    def __init__(
        self, columns: Sequence[Column], refuse_extra: bool, schema: JsonSchema | None = None, *, rescue: str = ""
    ) -> None:
        if not columns:
            raise ValueError("json needs columns")
        self.columns = with_rescue(columns, rescue)
        self._projection = Projection(columns, refuse_extra=refuse_extra, rescues=bool(rescue))
        self._accepts_any = all(column.is_whole_body for column in columns)
        self._schema = schema

    def decode(self, body: bytes | None) -> list[Any]:
        """Decode a JSON text; see `Decoder`."""
        if not body:
            raise Undecodable("empty", "the body is empty")
        try:
            text = body.decode(json.detect_encoding(body))
        except UnicodeDecodeError as problem:
            raise Undecodable("wrong encoding", str(problem)) from None
        if len(text) > MAX_VALUES and _count_values(text) > MAX_VALUES:
            raise too_many_values()
        try:
            fields = (_PARSER if _MINUS_ZERO.search(text) is None else _PARSER_OF_MINUS_ZERO).decode(text)
            if self._schema is not None:
                self._schema.check(fields)
        except RecursionError:
            raise Undecodable("too deep", "the body is nested too deeply") from None
        except ValueError as problem:
            raise Undecodable("malformed", str(problem)) from None
        if not isinstance(fields, dict) and not self._accepts_any:
            raise Undecodable("wrong type", f"the body is of type {type(fields).__name__}, not an object")
        return self._projection.values(fields)


def _count_values(text: str) -> int:
    """Return an upper bound of the number of values in JSON. Each but the first follows one of `[{:,`."""
    without_strings = _STRING.sub("", text)
    return 1 + sum(without_strings.count(mark) for mark in "[{:,")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Return an object. Repeated keys are refused: JSON parsers disagree on which of two values to use."""
    fields = dict(pairs)
    if len(fields) < len(pairs):
        ((repeated, count),) = Counter(name for name, _ in pairs).most_common(1)
        raise Undecodable("duplicate key", f"'{repeated}' occurs {count} times in one object")
    return fields


def _whole(text: str) -> int | JsonNumber:
    return JsonNumber(text) if text == "-0" else int(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


_make_parser = partial(json.JSONDecoder, object_pairs_hook=_object, parse_float=JsonNumber, parse_constant=_no_constant)
_PARSER = _make_parser()
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # an unclosed string is scanned once, to the end
_MINUS_ZERO = re.compile("-0(?![0-9.eE])")  # rare; a hook for it makes parsing of integers slow
_PARSER_OF_MINUS_ZERO = _make_parser(parse_int=_whole)


class TextDecoder:
    """Decodes text into one column, `text`. An empty body is an empty string."""

    columns = (Column("text", "string"),)

    def __init__(self, encoding: str) -> None:
        try:
            self._encoding = codecs.lookup(encoding).name
            "a".encode(self._encoding)  # codecs such as base64, which do not encode text, refuse this
        except (LookupError, UnicodeError):
            raise ValueError(f"'{encoding}' is not a text encoding of Python") from None

    def decode(self, body: bytes | None) -> list[Any]:
        """Decode a text; see `Decoder`."""
        try:
            text = (body or b"").decode(self._encoding)
            text.encode()  # raises for lone surrogates, which UTF-7 and some others allow
        except UnicodeError as problem:
            raise Undecodable("wrong encoding", str(problem)) from None
        return [text]


class BinaryDecoder:
    """Returns the body in one column, `body`. An empty body is an empty value."""

    columns = (Column("body", "binary"),)

    def decode(self, body: bytes | None) -> list[Any]:
        """Return the body; see `Decoder`."""
        return [body or b""]
