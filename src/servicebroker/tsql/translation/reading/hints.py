"""Table hints: those that lock rows, keys or tables, and those that are ignored."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.store import locks
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import (
    ExtraStatement,
    Writer,
    not_supported,
    quote_string,
    typed_text,
    write_value,
)

ROW_LOCK_HINTS = frozenset({"UPDLOCK", "XLOCK"})
KEY_LOCK_HINTS = frozenset({"HOLDLOCK", "SERIALIZABLE"})
TABLE_LOCK_HINTS = frozenset({"TABLOCKX", "TABLOCK"})
IGNORED_HINTS = frozenset(
    {"NOLOCK", "READUNCOMMITTED", "READCOMMITTED", "READCOMMITTEDLOCK", "ROWLOCK", "PAGLOCK", "FORCESEEK", "FORCESCAN"}
    | {
        "NOEXPAND",
        "INDEX",
        "KEEPIDENTITY",
        "KEEPDEFAULTS",
        "FASTFIRSTROW",
        "REPEATABLEREAD",
        "SPATIAL_WINDOW_MAX_CELLS",
    }
)


class Hints(NamedTuple):
    """The combined meaning of a table's hints."""

    locks_rows: bool = False
    skips_locked: bool = False
    locks_key: bool = False
    waits: bool = True
    table_lock_mode: str = ""  # mode of LOCK TABLE, "" for none


def read_hints(table: exp.Expression) -> Hints:
    """Return the meaning of a table's hints.

    Raises:
        TsqlError: 321 the word is not a hint.
    """
    words: set[str] = set()
    for hint in table.args.get("hints") or []:
        if not isinstance(hint, exp.WithTableHint):
            raise not_supported("This hint")
        words |= {word.name.upper() for word in hint.expressions}
    return combine_hints(words)


def combine_hints(words: set[str]) -> Hints:
    """Return the meaning of hints given by name. Raises as `read_hints`."""
    for word in sorted(
        words - ROW_LOCK_HINTS - KEY_LOCK_HINTS - TABLE_LOCK_HINTS - IGNORED_HINTS - {"READPAST", "NOWAIT"}
    ):
        if word == "SNAPSHOT":
            raise not_supported("The hint SNAPSHOT", "Use SET TRANSACTION ISOLATION LEVEL SNAPSHOT.")
        raise TsqlError(321, f'"{word[:60]}" is not a recognized table hints option.', severity=15)
    whole = (
        "EXCLUSIVE" if "TABLOCKX" in words or {"TABLOCK", "XLOCK"} <= words else "SHARE" if "TABLOCK" in words else ""
    )
    return Hints(
        locks_rows=bool(words & ROW_LOCK_HINTS) or "REPEATABLEREAD" in words,
        skips_locked="READPAST" in words,
        locks_key=bool(words & KEY_LOCK_HINTS),
        waits="NOWAIT" not in words,
        table_lock_mode=whole,
    )


def hint_on_common_table() -> TsqlError:
    """Build the error for a hint after a common table expression."""
    return not_supported("A hint on a common table expression", "Put it inside, after the table.")


def add_locks(writer: Writer, hints: Hints, table: str, alias: str, where: exp.Expression | None) -> None:
    """Add the locks that must be taken before the statement's snapshot.

    HOLDLOCK locks a key even if no row has it yet. So two transactions that search one key with HOLDLOCK run one after
    the other. The key consists of the columns compared by = and their values.
    """
    if hints.table_lock_mode:
        writer.statements_before.append(ExtraStatement(f"LOCK TABLE {table} IN {hints.table_lock_mode} MODE", ()))
    if not hints.locks_key:
        return
    pairs = sorted(_equalities(writer, where, alias))
    key = ", ".join([quote_string(table), *(part for name, value in pairs for part in (quote_string(name), value))])
    outer, writer.parameters = writer.parameters, []
    try:
        pairs = sorted(_equalities(writer, where, alias))
        key = ", ".join(
            [quote_string(table), *(part for name, value in pairs for part in (quote_string(name), f"{value}::text"))]
        )
        sql = f"SELECT pg_advisory_xact_lock({locks.TSQL_KEY}, hashtext(concat_ws('|', {key})))"
        writer.statements_before.append(ExtraStatement(sql, tuple(writer.parameters)))
    finally:
        writer.parameters = outer


def _equalities(writer: Writer, where: exp.Expression | None, alias: str) -> list[tuple[str, str]]:
    """Return the columns that the condition compares by = with a value independent of rows."""
    condition = where.this if isinstance(where, exp.Where) else where
    pairs = []
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition] if condition is not None else []:
        inner = part.unnest() if isinstance(part, exp.Paren) else part
        if not isinstance(inner, exp.EQ):
            continue
        for column, value in ((inner.this, inner.expression), (inner.expression, inner.this)):
            if isinstance(column, exp.Column) and column.table.lower() in ("", alias) and _is_fixed(value):
                pairs.append((column.name.lower(), typed_text(write_value(writer, value))))
                break
    return pairs


def _is_fixed(node: exp.Expression) -> bool:
    return not any(isinstance(inner, exp.Column | exp.Query) for inner in node.walk())
