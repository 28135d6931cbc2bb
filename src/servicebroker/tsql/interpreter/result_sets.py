"""EXEC ... WITH RESULT SETS: the columns of what a procedure returns, as whoever calls it wants them."""

from __future__ import annotations

from typing import Any

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import type_of
from servicebroker.tsql.interpreter.machine import RUNNERS, CallEnd, Machine, runs
from servicebroker.tsql.results import ResultSet, Said
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import ResultColumn, ResultSets
from servicebroker.tsql.types import SqlType

_FAILED = "EXECUTE statement failed because its WITH RESULT SETS clause specified"


@runs(ResultSets)
def _with_result_sets(machine: Machine, statement: ResultSets) -> None:
    """Raises: TsqlError: 11535, 11536 another number of them, 11537 of columns, 11538, 11553 what is no such value."""
    wanted = [[(column, machine.type_named(column.type)) for column in each] for each in statement.sets]
    listener = machine.listener
    told = 0

    def shape(said: Said) -> None:
        nonlocal told
        if isinstance(said, ResultSet):
            try:
                if told == len(wanted):
                    raise TsqlError(
                        11535, f"{_FAILED} {len(wanted)} result set(s), but the statement tried to send more result "
                        "sets than this."
                    )  # fmt: skip
                told += 1
                said = _shaped(said, wanted[told - 1], told)
            except TsqlError as refused:
                raise CallEnd(shape, refused) from None
        listener(said)

    machine.listener = shape
    machine.shaping += 1
    try:
        RUNNERS[type(statement.source)](machine, statement.source)  # its errors are told once, around this
    except CallEnd as ended:
        if ended.by is not shape:  # an EXEC around this one
            raise
        raise ended.error from None
    finally:
        machine.listener = listener
        machine.shaping -= 1
    if told < len(wanted):
        raise TsqlError(
            11536,
            f"{_FAILED} {len(wanted)} result set(s), but the statement only sent {told} result set(s) at run time.",
        )


def _shaped(found: ResultSet, wanted: list[tuple[ResultColumn, SqlType]], place: int) -> ResultSet:
    if len(found.columns) != len(wanted):
        raise TsqlError(
            11537, f"{_FAILED} {len(wanted)} column(s) for result set number {place}, but the statement sent "
            f"{len(found.columns)} column(s) at run time.",
        )  # fmt: skip
    rows = [
        tuple(
            _value(value, *pair, column, place) for column, (value, pair) in enumerate(zip(row, wanted, strict=True), 1)
        )
        for row in found.rows
    ]
    return ResultSet(tuple(column.name for column, _ in wanted), rows)


def _value(value: object, column: ResultColumn, of: SqlType, number: int, place: int) -> Any:
    where = f"for column #{number} in result set #{place}, and the corresponding"
    if value is None:
        if not column.is_nullable:
            raise TsqlError(11553, f"{_FAILED} a non-nullable type {where} value sent at run time was null.")
        return None
    source = type_of(value)
    try:
        return convert(value, source, of)
    except TsqlError as refused:
        if refused.number != 206:
            raise
        raise TsqlError(
            11538, f"{_FAILED} type '{of}' {where} type sent at run time was '{source}'; there is no conversion "
            "between the two types."
        ) from None  # fmt: skip
