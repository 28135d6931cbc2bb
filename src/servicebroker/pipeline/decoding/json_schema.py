"""JSON Schema: whether a body is what its producer has promised, and where it is not."""

from __future__ import annotations

import json
from collections.abc import Mapping
from decimal import Decimal
from typing import Any

from servicebroker.pipeline.decoding.columns import Number, Undecodable

_LONGEST = 300  # characters of what is said: a value is part of it


class JsonSchema:
    """A schema of the drafts 4 to 2020-12, by its `$schema`; 2020-12 without one. Nothing is fetched from anywhere.

    Args:
        text: of the schema.
        references: schemas that it refers to, by the names it has for them.

    Raises:
        ValueError: it is none, or refers to what is not there.
    """

    def __init__(self, text: bytes, references: Mapping[str, bytes] | None = None) -> None:
        import jsonschema_rs

        self._given = (text, references)
        try:
            json.loads(text)  # says line and column of what is no JSON
            known = [(name, json.loads(one)) for name, one in (references or {}).items()]
            self._validator: Any = jsonschema_rs.validator_for(
                text.decode(json.detect_encoding(text)),
                registry=jsonschema_rs.Registry(known) if known else None,
                offline=True,
                validate_formats=False,
            )
        except jsonschema_rs.ValidationError as problem:
            place = f" at '{_path(problem.instance_path)}'" if problem.instance_path else ""
            raise ValueError(f"it is no JSON Schema{place}: {problem.message}") from None
        except (ValueError, RecursionError) as problem:
            raise ValueError(f"it is no JSON Schema: {problem}") from None

    def __getstate__(self) -> tuple[Any, ...]:
        return self._given

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.__init__(*state)  # type: ignore[misc] # compiled anew where it is used

    def check(self, value: Any) -> None:
        """Refuse a value that breaks the schema, numbers as they are written: 0.30 is a multiple of 0.1.

        Raises:
            Undecodable: it does; with the way to the place.
        """
        try:
            problem = next(self._validator.iter_errors(_with_numbers(value)), None)
        except ArithmeticError:
            raise Undecodable("invalid", "a number is too large to be compared") from None
        except UnicodeEncodeError as lone:
            raise Undecodable("invalid", f"a text is none: {lone.reason}") from None
        if problem is not None:
            place = f"'{_path(problem.instance_path)}'" if problem.instance_path else "the body"
            raise Undecodable("invalid", f"{place}: {_short(problem.message)}")


def _with_numbers(value: Any) -> Any:
    """The value with exact numbers in place of their texts."""
    if isinstance(value, Number):
        return Decimal(value.text)
    if isinstance(value, dict):
        return {key: _with_numbers(one) for key, one in value.items()}
    return [_with_numbers(one) for one in value] if isinstance(value, list) else value


def _path(steps: list[str | int]) -> str:
    """The way to a place: lines[2].price."""
    return "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in steps).removeprefix(".")


def _short(message: str) -> str:
    """What is said without the middle of a long value, which stands before what it breaks."""
    half = _LONGEST // 2
    return message if len(message) <= _LONGEST else f"{message[:half]} ... {message[-half:]}"
