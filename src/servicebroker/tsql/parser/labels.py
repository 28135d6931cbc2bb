"""Check that each GOTO has its label in the same block or an enclosing one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Block, Goto, If, Label, Statement, TryCatch, While


def check_labels(body: tuple[Statement, ...]) -> None:
    """Check labels and GOTO statements of a batch, procedure or trigger.

    Raises:
        TsqlError: 132 duplicate label, 133 GOTO without its label, 40515 GOTO into a block.
    """
    names: set[str] = set()
    for label in _find_labels(body):
        if label.name in names:
            raise TsqlError(
                132, f"The label '{label.name}' has already been declared. Label names must be unique within a query "
                "batch or stored procedure.", severity=15, line=label.line,
            )  # fmt: skip
        names.add(label.name)
    _check_gotos(body, names, frozenset())


def _check_gotos(body: Iterable[Statement], names: set[str], outer: frozenset[str]) -> None:
    statements = tuple(body)
    reachable = outer | {statement.name for statement in statements if isinstance(statement, Label)}
    for statement in statements:
        if isinstance(statement, Goto) and statement.label not in reachable:
            if statement.label in names:
                raise unsupported(
                    "GOTO into a block", "Put the label where the block begins, or use WHILE.", statement.line
                )
            raise TsqlError(
                133, f"A GOTO statement references the label '{statement.label}' but the label has not been declared.",
                severity=15, line=statement.line,
            )  # fmt: skip
        for inner in _nested_blocks(statement):
            _check_gotos(inner, names, reachable)


def _find_labels(body: Iterable[Statement]) -> Iterator[Label]:
    for statement in body:
        if isinstance(statement, Label):
            yield statement
        for inner in _nested_blocks(statement):
            yield from _find_labels(inner)


def _nested_blocks(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """Return the statements inside a statement, block by block."""
    match statement:
        case Block(body=body):
            return (body,)
        case If(then=then, otherwise=otherwise):
            return ((then,), (otherwise,)) if otherwise is not None else ((then,),)
        case While(body=inner):
            return ((inner,),)
        case TryCatch(body=body, handler=handler):
            return body, handler
    return ()
