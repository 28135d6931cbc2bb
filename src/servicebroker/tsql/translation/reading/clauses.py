"""INSERT, UPDATE and DELETE, split at their keywords, since sqlglot does not parse all of their clauses."""

from __future__ import annotations

from typing import NamedTuple

from sqlglot import exp

from servicebroker.tsql.statement_errors import syntax_error
from servicebroker.tsql.translation.queries.selects import Top
from servicebroker.tsql.translation.reading.hints import Hints, read_hints
from servicebroker.tsql.translation.reading.parts import read_table, read_value
from servicebroker.tsql.translation.reading.syntax_tree import Slice, parse_slice
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.rows.inserts import translate_insert
from servicebroker.tsql.translation.rows.merges import translate_merge
from servicebroker.tsql.translation.rows.outputs import Outputs, read_outputs
from servicebroker.tsql.translation.rows.updates import Change, write_change
from servicebroker.tsql.translation.text_writer import Writer

_CLAUSES = ("SET", "OUTPUT", "FROM", "WHERE", "OPTION")


class Clauses(NamedTuple):
    """The clauses of a statement, by keyword and without it."""

    common: Slice
    keyword: str
    head: Slice
    parts: dict[str, Slice]


def translate_change(writer: Writer, piece: Slice) -> Translation:
    """Translate a statement that changes rows."""
    start = 0
    if piece.words[0] == "WITH":
        start_of_change = piece.find("INSERT", "UPDATE", "DELETE", "MERGE", after=1)
        start = start_of_change if start_of_change is not None else 0
    common, rest = piece.part(0, start), piece.part(start, len(piece.words))
    keyword = rest.words[0]
    if keyword == "INSERT":
        return translate_insert(writer, common, rest)
    if keyword == "MERGE":
        return translate_merge(writer, common, rest)
    clauses = _clauses(common, rest)
    top, target = split_top(clauses.head)
    if top is None and writer.scope.row_limit:  # TOP overrides SET ROWCOUNT
        top = Top(exp.Literal.number(writer.scope.row_limit), is_percent=False)
    if keyword == "DELETE" and target.words[:1] == ["FROM"]:
        target = target.part(1, len(target.words))
    if not target.words:
        raise syntax_error(keyword, rest.line())
    table, hints = read_target(target)
    parts = clauses.parts
    outputs: Outputs | None = read_outputs(parts["OUTPUT"]) if "OUTPUT" in parts else None
    return write_change(
        writer,
        Change(keyword, common, table, hints, top, parts.get("SET"), outputs, _read_rows(clauses)),
    )


def _clauses(common: Slice, rest: Slice) -> Clauses:
    """Split an UPDATE or DELETE into its clauses.

    Raises:
        TsqlError: 102 a clause is repeated, out of order, or missing.
    """
    keyword = rest.words[0]
    starts: list[tuple[int, str]] = []
    first = 2 if rest.words[1:2] == ["FROM"] else 1
    for index in rest.outside(first):
        word = rest.words[index]
        if word not in _CLAUSES or (word == "FROM" and _is_target(rest, index, starts)):
            continue
        if word == "OUTPUT" and starts and starts[-1][1] == "OUTPUT" and "INTO" in rest.words[starts[-1][0] : index]:
            continue  # the second clause, after OUTPUT ... INTO
        if starts and _CLAUSES.index(word) <= _CLAUSES.index(starts[-1][1]):  # repeated or out of order
            raise syntax_error(word, rest.line(index))
        starts.append((index, word))
    ends = [index for index, _ in starts[1:]] + [len(rest.words)]
    parts = {word: rest.part(index + 1, end) for (index, word), end in zip(starts, ends, strict=False)}
    head = rest.part(1, starts[0][0] if starts else len(rest.words))
    if keyword == "UPDATE" and "SET" not in parts:
        behind_name = next(
            (index for index in range(2, len(rest.words)) if "." not in rest.words[index - 1 : index + 1]), 1
        )
        raise syntax_error(rest.tokens.text(rest.first + behind_name), rest.line(behind_name))
    if keyword == "DELETE" and "SET" in parts:
        raise syntax_error("SET", rest.line())
    return Clauses(common, keyword, head, parts)


def _is_target(rest: Slice, index: int, starts: list[tuple[int, str]]) -> bool:
    """Check whether this FROM of DELETE TOP (n) FROM stands before the table whose rows are deleted."""
    return rest.words[0] == "DELETE" and not starts and rest.words[1] == "TOP" and rest.words[index - 1] in (")", "PERCENT") and (
        rest.closing(2) == index - 1 - (rest.words[index - 1] == "PERCENT")
    )  # fmt: skip


def _read_rows(clauses: Clauses) -> exp.Select | None:
    """Parse FROM, WHERE and OPTION as SELECT *. Return None without FROM and WHERE."""
    text = "SELECT *"
    pieces = [(word, clauses.parts[word]) for word in ("FROM", "WHERE", "OPTION") if word in clauses.parts]
    if not pieces:
        return None
    first = pieces[0][1].first - 1
    last = pieces[-1][1].last
    node = parse_slice(Slice(pieces[0][1].tokens, first, last), text)
    if not isinstance(node, exp.Select):
        raise syntax_error(pieces[0][0], pieces[0][1].line())
    return node


def split_top(head: Slice) -> tuple[Top | None, Slice]:
    """Return TOP, if it comes first, and the rest."""
    if head.words[:1] != ["TOP"]:
        return None, head
    end = head.closing(1) + 1 if head.words[1:2] == ["("] else 2
    is_percent = head.words[end : end + 1] == ["PERCENT"]
    return Top(read_value(head.part(1, end)), is_percent), head.part(end + is_percent, len(head.words))


def read_target(target: Slice) -> tuple[exp.Table, Hints]:
    """Return the table to change and its hints."""
    table = read_table(target)
    if table.args.get("alias"):
        raise syntax_error(target.text[:40], target.line())
    return table, read_hints(table)
