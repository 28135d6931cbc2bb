"""Environment variables in a pipeline file: `${NAME}` in a text stands for the variable's value, which is never shown.

Errors, logs and the state of a run go through `masked`, which puts `${NAME}` back in place of each value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servicebroker.pipeline.definition import DefinitionError

MIN_MASKED_CHARACTERS = 4  # a shorter value would be found in ordinary words and numbers
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\$\{|\$\{")
_names_by_value: dict[str, str] = {}  # of the files that this process has read


def resolved(content: Any, environment: Mapping[str, str], *place: str | int) -> Any:
    """Return the content of a file with values in place of `${NAME}`, in texts at any depth. `$${` stands for `${`.

    Raises:
        DefinitionError: a variable is not set, or `${` begins no name.
    """
    if isinstance(content, dict):
        return {key: resolved(value, environment, *place, key) for key, value in content.items()}
    if isinstance(content, list):
        return [resolved(value, environment, *place, number) for number, value in enumerate(content)]
    if not isinstance(content, str) or "${" not in content:
        return content

    def value_of(reference: re.Match[str]) -> str:
        if reference[0] == "$${":
            return "${"
        name = reference[1]
        if name is None:
            raise DefinitionError("'${' begins no ${NAME}: write $${ for the characters themselves", *place)
        if name not in environment:
            raise DefinitionError(f"the environment has no variable '{name}'", *place)
        if len(environment[name]) >= MIN_MASKED_CHARACTERS:
            _names_by_value[environment[name]] = name
        return environment[name]

    return _REFERENCE.sub(value_of, content)


class Placeholders(dict[str, str]):
    """An environment in which each variable is set: one that is not has its own reference as its value."""

    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return f"${{{name}}}"


def masked(text: str) -> str:
    """Return a text for people, with `${NAME}` in place of values that came from the environment."""
    for value in sorted(_names_by_value, key=len, reverse=True):
        text = text.replace(value, f"${{{_names_by_value[value]}}}")
    return text
