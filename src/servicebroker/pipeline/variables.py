"""Replaces `${NAME}` in a pipeline file by the value of an environment variable, and hides such values in output.

Errors, logs and the state of a run go through `mask_values`, which replaces each value by `${NAME}` again.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from servicebroker.overriding import override
from servicebroker.pipeline.definition import DefinitionError

MIN_MASKED_CHARACTERS = 4  # shorter values occur in ordinary words and numbers
_REFERENCE = re.compile(r"\$\{([A-Za-z_][A-Za-z0-9_]*)\}|\$\$\{|\$\{")
_names_by_value: dict[str, str] = {}  # variables in all files that this process has read


def substitute_variables(content: Any, environment: Mapping[str, str], *position: str | int) -> Any:
    """Return the content of a file, with each `${NAME}` in a string replaced by its value. `$${` stands for `${`.

    Raises:
        DefinitionError: a variable is not set, or no name follows `${`.
    """
    if isinstance(content, dict):
        return {key: substitute_variables(value, environment, *position, key) for key, value in content.items()}
    if isinstance(content, list):
        return [substitute_variables(value, environment, *position, number) for number, value in enumerate(content)]
    if not isinstance(content, str) or "${" not in content:
        return content

    def value_of(reference: re.Match[str]) -> str:
        if reference[0] == "$${":
            return "${"
        name = reference[1]
        if name is None:
            raise DefinitionError("'${' begins no ${NAME}: write $${ for the characters themselves", *position)
        if name not in environment:
            raise DefinitionError(f"the environment has no variable '{name}'", *position)
        if len(environment[name]) >= MIN_MASKED_CHARACTERS:
            _names_by_value[environment[name]] = name
        return environment[name]

    return _REFERENCE.sub(value_of, content)


class Placeholders(dict[str, str]):
    """An environment in which every variable is set. The value of an unknown variable NAME is `${NAME}`."""

    @override
    def __contains__(self, name: object) -> bool:
        return True

    def __missing__(self, name: str) -> str:
        return f"${{{name}}}"


def mask_values(text: str) -> str:
    """Return a text for output, with values from the environment replaced by `${NAME}`."""
    for value in sorted(_names_by_value, key=len, reverse=True):
        text = text.replace(value, f"${{{_names_by_value[value]}}}")
    return text
