"""What T-SQL demands and sqlglot lets pass: trees of which a part is missing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlglot import exp


def lack(tree: exp.Expression) -> str | None:
    """What stands beside the first missing part of a tree; None when the tree is whole."""
    for node in tree.walk():
        if not isinstance(node, exp.Expression) or any(node.error_messages()):
            return type(node).__name__.upper()
        has_all = _DEMANDS.get(type(node))
        if has_all is not None and not has_all(node):
            return node.name or type(node).__name__.upper()
    return None


def _any_of(*names: str) -> Callable[[Any], bool]:
    return lambda node: any(node.args.get(name) for name in names)


def _is_number(node: Any) -> bool:
    """Digits on both sides of a dot that stands alone become one literal with two dots."""
    return bool(node.is_string) or node.this.count(".") < 2


_DEMANDS: dict[type[exp.Expression], Callable[[Any], bool]] = {
    exp.Literal: _is_number,
    exp.GroupConcat: _any_of("separator"),
    exp.In: _any_of("expressions", "query"),
}
