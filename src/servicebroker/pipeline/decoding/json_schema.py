"""Validates bodies with JSON Schema."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from servicebroker.overriding import override
from servicebroker.pipeline.decoding.columns import Undecodable
from servicebroker.pipeline.decoding.json_number import JsonNumber

_MAX_MESSAGE_CHARACTERS = 300  # an error message quotes the value, which may be long


class JsonSchema:
    """A JSON Schema of draft 4 to 2020-12. `$schema` names its draft; the default is 2020-12. Nothing is fetched.

    Args:
        text: the schema.
        references: the schemas to which it refers, by the names that it uses.

    Raises:
        ValueError: the schema is invalid, or a reference is missing.
    """

    def __init__(self, text: bytes, references: Mapping[str, bytes] | None = None) -> None:
        import jsonschema_rs

        self._arguments = (text, references)
        try:
            json.loads(text)  # its error has the line and column
            resources = [(name, json.loads(schema)) for name, schema in (references or {}).items()]
            self._validator: Any = jsonschema_rs.validator_for(
                text.decode(json.detect_encoding(text)),
                registry=jsonschema_rs.Registry(resources) if resources else None,
                offline=True,
                validate_formats=False,
            )
        except jsonschema_rs.ValidationError as problem:
            position = f" at '{_path(problem.instance_path)}'" if problem.instance_path else ""
            raise ValueError(f"it is not a JSON Schema{position}: {problem.message}") from None
        except (ValueError, RecursionError) as problem:
            raise ValueError(f"it is not a JSON Schema: {problem}") from None

    @override
    def __getstate__(self) -> tuple[Any, ...]:
        return self._arguments

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc] # compiled validators cannot be pickled

    def check(self, value: Any) -> None:
        """Refuse a value that violates the schema. Numbers are compared exactly: 0.30 is a multiple of 0.1.

        Raises:
            Undecodable: the value violates the schema; the text has the path.
        """
        try:
            problem = next(self._validator.iter_errors(_with_numbers(value)), None)
        except ArithmeticError:
            raise Undecodable("invalid", "a number is too large to be compared") from None
        except UnicodeEncodeError as surrogate:
            raise Undecodable("invalid", f"a text is invalid: {surrogate.reason}") from None
        if problem is not None:
            position = f"'{_path(problem.instance_path)}'" if problem.instance_path else "the body"
            raise Undecodable("invalid", f"{position}: {_short(problem.message)}")


def _with_numbers(value: Any) -> Any:
    """Replace every `JsonNumber` in the value by a Decimal."""
    if isinstance(value, JsonNumber):
        return Decimal(value.text)
    if isinstance(value, dict):
        return {key: _with_numbers(item) for key, item in value.items()}
    return [_with_numbers(item) for item in value] if isinstance(value, list) else value


def _path(steps: list[str | int]) -> str:
    """Return a path as text: lines[2].price."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def _short(message: str) -> str:
    """Cut the middle out of a long message. It begins with the value, and ends with the violated rule."""
    half = _MAX_MESSAGE_CHARACTERS // 2
    return message if len(message) <= _MAX_MESSAGE_CHARACTERS else f"{message[:half]} ... {message[-half:]}"
