"""Faults in Python code: operators of cosmic-ray, and two of our own for dropped statements and conditions.

An operator yields the positions of a node at which it can change it, and changes it (`cosmic_ray.operators.operator`).
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Any

import parso
from cosmic_ray.ast import ast_nodes, get_ast
from cosmic_ray.mutating import mutate_code
from cosmic_ray.operators.provider import OperatorProvider

from servicebroker_lab.mutation.candidates import Candidate

Position = tuple[int, int]  # line from 1 and column from 0
Span = tuple[Position, Position]

# Calls that only tell: no test should have to read every line of a log.
_LOG_CALL = re.compile(r"_?(?:log|logger|logging)\.|warnings\.warn|say\(", re.IGNORECASE)
_SKIPPED_DECORATOR = re.compile(r"lru_cache|dataclass")  # sizes of caches and layouts of classes change no result


class DropStatement:
    """Replaces a statement that acts by `pass`: a call, a `raise`, a `yield`, `x += 1`."""

    ACTING = frozenset({"atom_expr", "await_expr", "yield_expr", "raise_stmt", "del_stmt"})

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """Yield the position of the statement, if the node is one that acts."""
        if node.type != "simple_stmt":
            return
        statement = node.children[0]
        is_augmented = statement.type == "expr_stmt" and re.fullmatch(r"\W+=", statement.children[1].get_code().strip())
        is_call = statement.type in self.ACTING and not _LOG_CALL.match(statement.get_code().strip())
        if is_call or is_augmented:
            yield statement.start_pos, statement.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the node with `pass` in place of the statement."""
        first = node.children[0]
        node.children[0] = parso.python.tree.Keyword("pass", first.start_pos, first.get_first_leaf().prefix)
        return node


class DropOperand:
    """Drops one operand of `and` or `or`."""

    def mutation_positions(self, node: Any) -> Iterator[Span]:
        """Yield the position of each operand."""
        if node.type in {"and_test", "or_test"}:
            for operand in node.children[::2]:
                yield operand.start_pos, operand.end_pos

    def mutate(self, node: Any, index: int) -> Any:
        """Return the node without that operand and the word beside it."""
        place = 2 * index
        del node.children[max(0, place - 1) : place + (2 if place == 0 else 1)]
        return node


_COSMIC_RAY = OperatorProvider()


def _of_cosmic_ray(*names: str) -> dict[str, Any]:
    return {name: _COSMIC_RAY[name]() for name in names}


def _replace(kind: str, *pairs: str) -> dict[str, Any]:
    return _of_cosmic_ray(*(f"Replace{kind}Operator_{pair}" for pair in pairs))


FAMILIES: dict[str, dict[str, Any]] = {
    "comparison": _replace("Comparison", "Eq_NotEq", "NotEq_Eq", "Is_IsNot", "IsNot_Is", "Lt_Gt", "Gt_Lt"),
    "boundary": _replace("Comparison", "Lt_LtE", "LtE_Lt", "Gt_GtE", "GtE_Gt"),
    "condition": {
        **_of_cosmic_ray("AddNot", "ReplaceAndWithOr", "ReplaceOrWithAnd", "ReplaceUnaryOperator_Delete_Not"),
        "DropOperand": DropOperand(),
    },
    "constant": _of_cosmic_ray("ReplaceTrueWithFalse", "ReplaceFalseWithTrue", "NumberReplacer"),
    "arithmetic": _replace("Binary", "Add_Sub", "Sub_Add", "Mul_FloorDiv", "FloorDiv_Mul", "Mod_Mul", "BitAnd_BitOr"),
    "flow": _of_cosmic_ray(
        "ReplaceBreakWithContinue", "ReplaceContinueWithBreak", "ZeroIterationForLoop", "ExceptionReplacer"
    ),
    "statement": {"DropStatement": DropStatement()},
}
OPERATORS = {name: operator for operators in FAMILIES.values() for name, operator in operators.items()}


def candidates(text: str) -> Iterator[Candidate]:
    """Yield every fault that can be planted in a Python file, but in annotations and logs."""
    nodes = list(ast_nodes(get_ast(text)))
    skipped = list(_spans_without_effect(text))
    for family, operators in FAMILIES.items():
        for name, operator in operators.items():
            positions = (position for node in nodes for position in operator.mutation_positions(node))
            for occurrence, (start, _) in enumerate(positions):
                if not any(first <= start < last for first, last in skipped):
                    yield Candidate(family, name, occurrence, start[0])


def plant(text: str, candidate: Candidate) -> str | None:
    """Return the text with the fault; None if the result is not a program, or is the same one."""
    try:
        changed: str | None = mutate_code(text, OPERATORS[candidate.operator], candidate.occurrence)
        is_other = changed is not None and ast.dump(ast.parse(changed)) != ast.dump(ast.parse(text))
    except (SyntaxError, AttributeError):  # ExceptionReplacer of cosmic-ray 8.7 fails on `except (module.Error, ...)`
        return None
    return changed if is_other else None


def _spans_without_effect(text: str) -> Iterator[Span]:
    """Yield the spans in which a fault has no effect: annotations, imports for types, decorators of layout."""
    for node in ast.walk(ast.parse(text)):
        parts: list[ast.AST | None] = []
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            parts = [node.returns]
        elif isinstance(node, ast.arg | ast.AnnAssign):
            parts = [node.annotation]
        elif isinstance(node, ast.If) and ast.unparse(node.test).endswith("TYPE_CHECKING"):
            parts = [node]
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            parts += [
                decorator for decorator in node.decorator_list if _SKIPPED_DECORATOR.search(ast.unparse(decorator))
            ]
        for part in parts:
            if isinstance(part, ast.expr | ast.stmt) and part.end_lineno is not None:
                yield (part.lineno, part.col_offset), (part.end_lineno, part.end_col_offset or 0)


def function_lines(text: str) -> set[int]:
    """Return the lines that run when a function is called; the others run when the module is imported."""
    lines: set[int] = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            lines.update(range(node.body[0].lineno, (node.end_lineno or node.lineno) + 1))
    return lines
