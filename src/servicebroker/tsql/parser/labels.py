"""Whether each GOTO has its label, in the same block or in one around it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Block, Goto, If, Label, Statement, TryCatch, While


def check_labels(body: tuple[Statement, ...]) -> None:
    """Look at the statements of a batch, a procedure or a trigger.

    Raises:
        TsqlError: 132 a label that is there twice, 133 GOTO without its label, 40515 GOTO into a block.
    """
    known: set[str] = set()
    for label in _find_labels(body):
        if label.name in known:
            raise TsqlError(
                132, f"The label '{label.name}' has already been declared. Label names must be unique within a query "
                "batch or stored procedure.", severity=15, line=label.line,
            )  # fmt: skip
        known.add(label.name)
    _check_gotos(body, known, frozenset())


def _check_gotos(body: Iterable[Statement], known: set[str], around: frozenset[str]) -> None:
    statements = tuple(body)
    seen = around | {one.name for one in statements if isinstance(one, Label)}
    for one in statements:
        if isinstance(one, Goto) and one.label not in seen:
            if one.label in known:
                raise unsupported("GOTO into a block", "Put the label where the block begins, or use WHILE.", one.line)
            raise TsqlError(
                133, f"A GOTO statement references the label '{one.label}' but the label has not been declared.",
                severity=15, line=one.line,
            )  # fmt: skip
        for inner in _nested_blocks(one):
            _check_gotos(inner, known, seen)


def _find_labels(body: Iterable[Statement]) -> Iterator[Label]:
    for one in body:
        if isinstance(one, Label):
            yield one
        for inner in _nested_blocks(one):
            yield from _find_labels(inner)


def _nested_blocks(statement: Statement) -> tuple[tuple[Statement, ...], ...]:
    """The statements inside a statement, block by block."""
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
