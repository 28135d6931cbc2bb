"""Names of collations. Strings are compared by their characters. COLLATE with a _CI collation ignores case."""

from __future__ import annotations

import re

from servicebroker.tsql.statement_errors import TsqlError

_COLLATION = re.compile(
    r"\w+_(?:C[IS]_A[IS](?:_KS|_WS|_VSS|_SC|_UTF8)*|BIN2?(?:_UTF8)?)|(?:DATABASE|CATALOG)_DEFAULT", re.IGNORECASE
)


def check_collation(name: str) -> None:
    """Check that a collation has such a name.

    Raises:
        TsqlError: 448.
    """
    if not _COLLATION.fullmatch(name):
        raise TsqlError(448, f"Invalid collation '{name}'.")
