"""SQL Server's errors for queries and changes of rows that PostgreSQL refuses.

`_RULES` is the table: SQLSTATE and PostgreSQL's message on one side, number, severity and text on the other side. The
first rule that fits counts. Definitions have theirs in `definition_errors.py`, all others in `postgres_errors.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from servicebroker.tsql.statement_errors import ASSIGNED_TWICE, TsqlError


class _Rule(NamedTuple):
    """An error of PostgreSQL, and that of SQL Server. {0} is the match's first group in the statement's spelling."""

    sqlstate: str
    message: str
    number: int
    severity: int
    text: str


_NOT_GROUPED = "because it is not contained in either an aggregate function or the GROUP BY clause."
_RULES = (
    _Rule(
        "42601",
        "each .* query must have the same number of columns",
        205,
        16,
        "All queries combined using a UNION, INTERSECT or EXCEPT operator must have an equal number of expressions in "
        "their target lists.",
    ),
    _Rule(
        "42601",
        "subquery must return only one column|subquery has too many columns",
        116,
        16,
        "Only one expression can be specified in the select list when the subquery is not introduced with EXISTS.",
    ),
    _Rule("42601", 'multiple assignments to same column "(.+)"', 264, 16, ASSIGNED_TWICE),
    _Rule("42701", 'column "(.+)" specified more than once', 264, 16, ASSIGNED_TWICE),
    _Rule(
        "42P10",
        "ORDER BY position (.+) is not in select list",
        108,
        16,
        "The ORDER BY position number {0} is out of range of the number of items in the select list.",
    ),
    _Rule(
        "42P10",
        "for SELECT DISTINCT",
        145,
        15,
        "ORDER BY items must appear in the select list if SELECT DISTINCT is specified.",
    ),
    _Rule(
        "42803",
        "aggregate functions are not allowed in WHERE",
        147,
        15,
        "An aggregate may not appear in the WHERE clause unless it is in a subquery contained in a HAVING clause or a "
        "select list, and the column being aggregated is an outer reference.",
    ),
    _Rule(
        "42803",
        "aggregate functions are not allowed in JOIN",
        149,
        15,
        "An aggregate may not appear in the ON clause unless it is in a subquery contained in a HAVING clause or "
        "select list, and the column being aggregated is an outer reference.",
    ),
    _Rule(
        "42803",
        "aggregate functions are not allowed in UPDATE",
        157,
        15,
        "An aggregate may not appear in the set list of an UPDATE statement.",
    ),
    _Rule(
        "42803",
        "aggregate functions are not allowed in GROUP BY",
        144,
        15,
        "Cannot use an aggregate or a subquery in an expression used for the group by list of a GROUP BY clause.",
    ),
    _Rule(
        "42803",
        "aggregate function calls cannot be nested",
        130,
        15,
        "Cannot perform an aggregate function on an expression containing an aggregate or a subquery.",
    ),
    _Rule(
        "42P20",
        "frame (?:start|end|starting)",
        4193,
        16,
        "The window frame is not valid and cannot be used with the OVER clause.",
    ),
    _Rule(
        "21000",
        "MERGE command cannot affect row a second time",
        8672,
        16,
        "The MERGE statement attempted to UPDATE or DELETE the same row more than once. This happens when a target row "
        "matches more than one source row. A MERGE statement cannot UPDATE/DELETE the same row of the target table "
        "multiple times. Refine the ON clause to ensure a target row matches at most one source row, or use the GROUP "
        "BY clause to group the source rows.",
    ),
    _Rule(
        "55000",
        'cannot (?:update|insert into) (?:column .* of )?view "(.+)"\nViews that do not select from a single table',
        4405,
        16,
        "View or function '{0}' is not updatable because the modification affects multiple base tables.",
    ),
    _Rule(
        "55000",
        'cannot delete from view "(.+)"\nViews that do not select from a single table',
        4405,
        16,
        "View or function '{0}' is not updatable because the modification affects multiple base tables.",
    ),
    _Rule(
        "(?:55000|0A000)",
        'cannot (?:update|insert into|delete from) (?:column .* of )?view "(.+)"',
        4406,
        16,
        "Update or insert of view or function '{0}' failed because it contains a derived or constant field.",
    ),
)
_NOT_GROUPED_COLUMN = re.compile(
    r'column "(.+)" must appear in the GROUP BY clause or be used in an aggregate function'
)
_CLAUSE = re.compile(r"'(?:[^']|'')*'|\b(?P<word>FROM|HAVING|ORDER\s+BY)\b", re.IGNORECASE)


def find_query_error(sqlstate: str, message: str, source: str, spell: Callable[[str, str], str]) -> TsqlError | None:
    """Return SQL Server's error for a refused query, or None if no rule fits.

    `message` is PostgreSQL's, with its detail in the next line. `spell` returns the spelling of a PostgreSQL name in
    the statement `source`.
    """
    ungrouped = _NOT_GROUPED_COLUMN.match(message) if sqlstate == "42803" else None
    if ungrouped is not None:
        table, _, column = ungrouped[1].rpartition(".")
        name = ".".join(filter(None, (spell(table, source) if table else "", spell(column, source).split(".")[-1])))
        return _not_grouped(name, column, source)
    for rule in _RULES:
        match = re.match(rule.message, message) if re.fullmatch(rule.sqlstate, sqlstate) else None
        if match is not None:
            groups = [spell(group, source) for group in match.groups()]
            return TsqlError(rule.number, rule.text.format(*groups), severity=rule.severity)
    return None


def _not_grouped(name: str, column: str, source: str) -> TsqlError:
    """Build error 8120, 8121 or 8127: the column stands in the select list, in HAVING or in ORDER BY."""
    clauses = [match for match in _CLAUSE.finditer(source) if match["word"]]
    last = {re.sub(r"\s+", " ", match["word"]).upper(): match.start() for match in clauses}
    listed = source[: next((match.start() for match in clauses if match["word"].upper() == "FROM"), len(source))]
    if not re.search(rf"(?<!\w){re.escape(column)}(?!\w)|(?<!\()\*", listed, re.IGNORECASE):
        if "HAVING" in last:
            return TsqlError(8121, f"Column '{name}' is invalid in the HAVING clause {_NOT_GROUPED}")
        if "ORDER BY" in last:
            return TsqlError(8127, f'Column "{name}" is invalid in the ORDER BY clause {_NOT_GROUPED}')
    return TsqlError(8120, f"Column '{name}' is invalid in the select list {_NOT_GROUPED}")
