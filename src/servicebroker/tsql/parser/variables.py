"""Check that variables are declared before their use, in the order of the text."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from servicebroker.tsql.function_table import GLOBALS
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.tokens import VARIABLE, Tokens

_TABLE_KEYWORDS = frozenset({"FROM", "JOIN", "INTO", "UPDATE", "INSERT", "DELETE", "MERGE", "USING"})


def check_variables(
    tokens: Tokens, declared: Mapping[str, int], arguments: Collection[int], parameters: Collection[str]
) -> None:
    """Check the variables of a batch.

    `declared` maps each variable to the index of its declaration. At the indexes `arguments`, EXEC names a parameter,
    which is not a variable.

    Raises:
        TsqlError: 137, 1087 a variable is not declared.
    """
    for index, token_kind in enumerate(tokens.kinds):
        if token_kind != VARIABLE or index in arguments:
            continue
        written = tokens.text(index)
        name = written.lower()
        if name in GLOBALS or name in parameters or declared.get(name, index + 1) <= index:
            continue
        number, kind = (1087, "table") if _is_table(tokens, index) else (137, "scalar")
        text = f'Must declare the {kind} variable "{written}".'
        raise TsqlError(number, text, severity=15, line=tokens.line(index))


def _is_table(tokens: Tokens, index: int) -> bool:
    """Check whether the variable is used as a table, and not as a cursor, value or cookie."""
    before = tokens.words[max(index - 8, 0) : index]
    return bool(before) and before[-1] in _TABLE_KEYWORDS and "FETCH" not in before and before[-2:-1] != ["COOKIE"]
