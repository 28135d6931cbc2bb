"""JSON, text, and bytes as they are."""

from __future__ import annotations

import codecs
import json
import re
from collections import Counter
from collections.abc import Sequence
from functools import partial
from typing import Any

from servicebroker.pipeline.decoding.columns import MAX_VALUES, Column, Number, Projection, Undecodable, too_many_values
from servicebroker.pipeline.decoding.json_schema import JsonSchema


class JsonDecoder:
    """Objects of JSON, in UTF-8, UTF-16 or UTF-32 with or without a byte order mark."""

    def __init__(self, columns: Sequence[Column], refuse_extra: bool, schema: JsonSchema | None = None) -> None:
        if not columns:
            raise ValueError("json needs columns")
        self.columns = tuple(columns)
        self._projection = Projection(columns, refuse_extra=refuse_extra)
        self._schema = schema

    def decode(self, body: bytes | None) -> list[Any]:
        """See `Decoder`."""
        if not body:
            raise Undecodable("empty", "the body is empty")
        try:
            text = body.decode(json.detect_encoding(body))
        except UnicodeDecodeError as problem:
            raise Undecodable("wrong encoding", str(problem)) from None
        if len(text) > MAX_VALUES and _count_values(text) > MAX_VALUES:
            raise too_many_values()
        try:
            found = (_READER if _MINUS_ZERO.search(text) is None else _READER_OF_MINUS_ZERO).decode(text)
            if self._schema is not None:
                self._schema.check(found)
        except RecursionError:
            raise Undecodable("too deep", "the body is nested too deeply") from None
        except ValueError as problem:
            raise Undecodable("malformed", str(problem)) from None
        if not isinstance(found, dict):
            raise Undecodable("wrong type", f"the body is no object but {type(found).__name__}")
        return self._projection.values(found)


def _count_values(text: str) -> int:
    """At most how many values a text of JSON has: each but the first stands behind a mark. Strings are left out."""
    outside = _STRING.sub("", text)
    return 1 + sum(outside.count(mark) for mark in "[{:,")


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """An object whose keys are there once: which of two values counts, each reader of JSON decides for itself."""
    found = dict(pairs)
    if len(found) < len(pairs):
        ((twice, times),) = Counter(name for name, _ in pairs).most_common(1)
        raise Undecodable("duplicate key", f"'{twice}' is there {times} times in one object")
    return found


def _whole(text: str) -> int | Number:
    return Number(text) if text == "-0" else int(text)


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


_reader = partial(json.JSONDecoder, object_pairs_hook=_object, parse_float=Number, parse_constant=_no_constant)
_READER = _reader()
_STRING = re.compile(r'"(?:[^"\\]|\\.)*+"?', re.DOTALL)  # one that is not closed goes to the end, and is passed once
_MINUS_ZERO = re.compile("-0(?![0-9.eE])")  # seldom there, and each whole number would pay for a look
_READER_OF_MINUS_ZERO = _reader(parse_int=_whole)


class TextDecoder:
    """One column, `text`; an empty body is an empty text."""

    columns = (Column("text", "string"),)

    def __init__(self, encoding: str) -> None:
        try:
            self._encoding = codecs.lookup(encoding).name
            "a".encode(self._encoding)  # refused by what encodes something else than text, as base64 does
        except (LookupError, UnicodeError):
            raise ValueError(f"'{encoding}' is no encoding of text that Python knows") from None

    def decode(self, body: bytes | None) -> list[Any]:
        """See `Decoder`."""
        try:
            text = (body or b"").decode(self._encoding)
            text.encode()  # UTF-7 and some others know lone surrogates, which are no text
        except UnicodeError as problem:
            raise Undecodable("wrong encoding", str(problem)) from None
        return [text]


class BinaryDecoder:
    """One column, `body`; an empty body is a value without bytes."""

    columns = (Column("body", "binary"),)

    def decode(self, body: bytes | None) -> list[Any]:
        """See `Decoder`."""
        return [body or b""]
