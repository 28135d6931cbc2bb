"""EXEC ... WITH RESULT SETS: converts the result sets of a call to the columns that the caller defines."""

from __future__ import annotations

from typing import Any

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.evaluation import infer_type
from servicebroker.tsql.interpreter.machine import RUNNERS, CallAborted, Machine, runs
from servicebroker.tsql.results import ResultSet, ScriptOutput
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import ResultColumn, ResultSets
from servicebroker.tsql.types import SqlType

_FAILURE = "EXECUTE statement failed because its WITH RESULT SETS clause specified"


@runs(ResultSets)
def _with_result_sets(machine: Machine, statement: ResultSets) -> None:
    """Run an EXEC and convert its result sets.

    Raises:
        TsqlError: 11535 or 11536 the number of result sets differs, 11537 the number of columns differs, 11538 a type
            or 11553 a NULL does not fit.
    """
    wanted = [[(column, machine.resolve_type(column.type)) for column in columns] for columns in statement.sets]
    listener = machine.listener
    sent = 0

    def convert_and_emit(output: ScriptOutput) -> None:
        nonlocal sent
        if isinstance(output, ResultSet):
            try:
                if sent == len(wanted):
                    raise TsqlError(
                        11535, f"{_FAILURE} {len(wanted)} result set(s), but the statement tried to send more result "
                        "sets than this."
                    )  # fmt: skip
                sent += 1
                output = _convert_result_set(output, wanted[sent - 1], sent)
            except TsqlError as error:
                raise CallAborted(convert_and_emit, error) from None
        listener(output)

    machine.listener = convert_and_emit
    machine.result_sets_depth += 1
    try:
        RUNNERS[type(statement.source)](machine, statement.source)  # not `step`, which would emit its errors twice
    except CallAborted as call:
        if call.listener is not convert_and_emit:  # raised for an EXEC around this one
            raise
        raise call.error from None
    finally:
        machine.listener = listener
        machine.result_sets_depth -= 1
    if sent < len(wanted):
        raise TsqlError(
            11536,
            f"{_FAILURE} {len(wanted)} result set(s), but the statement only sent {sent} result set(s) at run time.",
        )


def _convert_result_set(result: ResultSet, columns: list[tuple[ResultColumn, SqlType]], number: int) -> ResultSet:
    """Return a result set with the names and types that the caller defines.

    Raises:
        TsqlError: 11537, 11538 or 11553.
    """
    if len(result.columns) != len(columns):
        raise TsqlError(
            11537, f"{_FAILURE} {len(columns)} column(s) for result set number {number}, but the statement sent "
            f"{len(result.columns)} column(s) at run time.",
        )  # fmt: skip
    rows = [
        tuple(
            _convert_value(value, *pair, column_number, number)
            for column_number, (value, pair) in enumerate(zip(row, columns, strict=True), 1)
        )
        for row in result.rows
    ]
    return ResultSet(tuple(column.name for column, _ in columns), rows, tuple(type_ for _, type_ in columns))


def _convert_value(value: object, column: ResultColumn, type_: SqlType, column_number: int, set_number: int) -> Any:
    """Convert a value to the type of its column.

    Raises:
        TsqlError: 11538 there is no conversion, 11553 the value is NULL, which the column refuses; or as `convert`.
    """
    where = f"for column #{column_number} in result set #{set_number}, and the corresponding"
    if value is None:
        if not column.is_nullable:
            raise TsqlError(11553, f"{_FAILURE} a non-nullable type {where} value sent at run time was null.")
        return None
    source = infer_type(value)
    try:
        return convert(value, source, type_)
    except TsqlError as error:
        if error.number != 206:
            raise
        raise TsqlError(
            11538, f"{_FAILURE} type '{type_}' {where} type sent at run time was '{source}'; there is no conversion "
            "between the two types."
        ) from None  # fmt: skip
