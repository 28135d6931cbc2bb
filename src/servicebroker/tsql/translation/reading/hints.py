"""Table hints, each with its meaning or documented as one that changes nothing here."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.store import locks
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.text_writer import Lock, Writer, closed_text, refused, string, write_value

UPDATE = frozenset({"UPDLOCK", "XLOCK"})
KEEP = frozenset({"HOLDLOCK", "SERIALIZABLE"})
WHOLE = frozenset({"TABLOCKX", "TABLOCK"})
NOTHING = frozenset(
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
    """What a table's hints ask for."""

    locks_rows: bool = False
    skips_locked: bool = False
    keeps: bool = False
    waits: bool = True
    whole: str = ""  # the mode of LOCK TABLE


def hints_of(table: exp.Expression) -> Hints:
    """The hints of a table.

    Raises:
        TsqlError: 321 for a word that is no hint.
    """
    words: set[str] = set()
    for hint in table.args.get("hints") or []:
        if not isinstance(hint, exp.WithTableHint):
            raise refused("This hint")
        words |= {each.name.upper() for each in hint.expressions}
    return hints_from(words)


def hints_from(words: set[str]) -> Hints:
    """The meaning of hints by their names. Raises as `hints_of`."""
    for word in sorted(words - UPDATE - KEEP - WHOLE - NOTHING - {"READPAST", "NOWAIT"}):
        if word == "SNAPSHOT":
            raise refused("The hint SNAPSHOT", "Use SET TRANSACTION ISOLATION LEVEL SNAPSHOT.")
        raise TsqlError(321, f'"{word[:60]}" is not a recognized table hints option.', severity=15)
    whole = (
        "EXCLUSIVE" if "TABLOCKX" in words or {"TABLOCK", "XLOCK"} <= words else "SHARE" if "TABLOCK" in words else ""
    )
    return Hints(
        locks_rows=bool(words & UPDATE) or "REPEATABLEREAD" in words,
        skips_locked="READPAST" in words,
        keeps=bool(words & KEEP),
        waits="NOWAIT" not in words,
        whole=whole,
    )


def on_common() -> TsqlError:
    """The refusal of a hint behind a common table expression."""
    return refused("A hint for a common table expression", "Write it inside, behind the table.")


def lock_before(writer: Writer, hints: Hints, table: str, alias: str, where: exp.Expression | None) -> None:
    """What must be locked before the statement takes its snapshot.

    HOLDLOCK keeps others out of the key even when no row has it yet: two transactions that look for one key with
    HOLDLOCK come one after the other. The key is what the columns of the table are compared with by =.
    """
    if hints.whole:
        writer.locks.append(Lock(f"LOCK TABLE {table} IN {hints.whole} MODE", ()))
    if not hints.keeps:
        return
    pairs = sorted(_equalities(writer, where, alias))
    key = ", ".join([string(table), *(part for name, value in pairs for part in (string(name), value))])
    outer, writer.parameters = writer.parameters, []
    try:
        pairs = sorted(_equalities(writer, where, alias))
        key = ", ".join([string(table), *(part for name, value in pairs for part in (string(name), f"{value}::text"))])
        sql = f"SELECT pg_advisory_xact_lock({locks.TSQL_KEY}, hashtext(concat_ws('|', {key})))"
        writer.locks.append(Lock(sql, tuple(writer.parameters)))
    finally:
        writer.parameters = outer


def _equalities(writer: Writer, where: exp.Expression | None, alias: str) -> list[tuple[str, str]]:
    """The columns that must be equal to a value that no row decides."""
    condition = where.this if isinstance(where, exp.Where) else where
    found = []
    for part in condition.flatten() if isinstance(condition, exp.And) else [condition] if condition is not None else []:
        inner = part.unnest() if isinstance(part, exp.Paren) else part
        if not isinstance(inner, exp.EQ):
            continue
        for column, value in ((inner.this, inner.expression), (inner.expression, inner.this)):
            if isinstance(column, exp.Column) and column.table.lower() in ("", alias) and _is_fixed(value):
                found.append((column.name.lower(), closed_text(write_value(writer, value))))
                break
    return found


def _is_fixed(node: exp.Expression) -> bool:
    return not any(isinstance(each, exp.Column | exp.Query) for each in node.walk())
