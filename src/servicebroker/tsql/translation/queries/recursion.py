"""Rules for the members of a recursive common table expression."""

from __future__ import annotations

from collections.abc import Iterator

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.reading.syntax_tree import CALL_PREFIX

_EXACT_NODES = (exp.Add, exp.Column, exp.Identifier, exp.Literal, exp.National, exp.Cast, exp.Convert, exp.Paren)
_TYPE_NODES = (exp.DataType, exp.DataTypeParam)
_AGGREGATE_CALLS = frozenset({"stdev", "stdevp", "var", "varp", "checksum_agg"})


def check_recursion(node: exp.Expression, name: str) -> None:
    """Check a common table expression that refers to itself.

    Raises:
        TsqlError: 246, 247, 252, 253, 460, 461, 462, 465 or 467.
    """
    if not any(_self_references(node, name)):
        return
    members = [*_members(node)]
    if len(members) < 2:
        raise TsqlError(
            252, f"Recursive common table expression '{name}' does not contain a top-level UNION ALL operator."
        )
    recursive = [any(_self_references(member, name)) for member in members]
    if recursive[0]:
        raise TsqlError(246, f'No anchor member was specified for recursive query "{name}".')
    if False in recursive[recursive.index(True) :]:
        raise TsqlError(247, f'An anchor member was found in the recursive part of recursive query "{name}".')
    for member, is_recursive in zip(members, recursive, strict=True):
        if is_recursive:
            _check_member(member, name)


def _members(node: exp.Expression) -> Iterator[exp.Expression]:
    """Yield the queries that top-level UNION ALL operators combine."""
    inner = node.unnest()
    assert isinstance(inner, exp.Expression)
    if isinstance(inner, exp.Union) and not inner.args.get("distinct"):
        yield from _members(inner.this)
        yield from _members(inner.expression)
    else:
        yield inner


def _self_references(node: exp.Expression, name: str) -> Iterator[exp.Table]:
    for table in node.find_all(exp.Table):
        identifier = table.this
        is_plain = isinstance(identifier, exp.Identifier) and not table.args.get("db")
        is_plain = is_plain and not identifier.args.get("temporary") and not identifier.args.get("global_")
        if is_plain and identifier.name.lower() == name.lower():
            yield table


def _check_member(member: exp.Expression, name: str) -> None:
    references = [*_self_references(member, name)]
    if any(reference.find_ancestor(exp.Select) is not member for reference in references):
        raise TsqlError(465, "Recursive references are not allowed in subqueries.")
    if len(references) > 1:
        raise TsqlError(
            253, f"Recursive member of a common table expression '{name}' has multiple recursive references."
        )
    part = f"the recursive part of a recursive common table expression '{name}'."
    if member.args.get("distinct"):
        raise TsqlError(460, f"DISTINCT operator is not allowed in {part}")
    if member.args.get("limit") or member.args.get("offset"):
        raise TsqlError(461, f"The TOP or OFFSET operator is not allowed in {part}")
    if any(join.args.get("side") for join in member.args.get("joins") or []):
        raise TsqlError(462, f"Outer join is not allowed in {part}")
    if member.args.get("group") or member.args.get("having") or _has_aggregate(member):
        raise TsqlError(467, f"GROUP BY, HAVING, or aggregate functions are not allowed in {part}")


def _has_aggregate(member: exp.Expression) -> bool:
    """Check for an aggregate without OVER in the select list."""
    for item in member.expressions:
        for inner in item.walk(prune=lambda node: isinstance(node, exp.Window | exp.Query)):
            is_call = isinstance(inner, exp.Anonymous) and inner.name.lower().removeprefix(CALL_PREFIX)
            if isinstance(inner, exp.AggFunc) or is_call in _AGGREGATE_CALLS:
                return True
    return False


def has_exact_type(node: exp.Expression) -> bool:
    """Check whether the length of a string expression is that of SQL Server: no function is called in it."""
    inner = node.this if isinstance(node, exp.Alias) else node
    return all(isinstance(part, _EXACT_NODES + _TYPE_NODES) for part in inner.walk())
