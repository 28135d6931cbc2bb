"""The bodies of user-defined functions: of an inline one its query, of a scalar one its control flow, in plpgsql."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from servicebroker.store.queue import quoted
from servicebroker.tsql.errors import TsqlError, unsupported
from servicebroker.tsql.relational import translate, translate_expression
from servicebroker.tsql.scope import Column, Scope, UserFunction
from servicebroker.tsql.syntax import (
    Block,
    Break,
    Continue,
    DeclareTable,
    DeclareVariable,
    Function,
    If,
    Relational,
    Return,
    SelectVariables,
    SetVariable,
    Statement,
    While,
)
from servicebroker.tsql.translation.expressions import CONDITION
from servicebroker.tsql.translation.reading import parsed, read
from servicebroker.tsql.translation.selects import query
from servicebroker.tsql.translation.writer import Writer, identifier
from servicebroker.tsql.translation.xml_namespaces import without_namespaces
from servicebroker.tsql.types import SqlType, parse_type, postgres_type


def signature(function: Function, scope: Scope) -> UserFunction:
    """What calls of a function need to know; the columns of a table-valued one follow from its query.

    Raises:
        TsqlError: as `translate`, of the defaults of parameters; 2715 for types.
    """
    types = tuple(parse_type(parameter.type) for parameter in function.parameters)
    defaults = []
    for parameter, of in zip(function.parameters, types, strict=True):
        text = None
        if parameter.default is not None:
            text = f"({_value(parameter.default.text, of, replace(scope, variables={}, is_body=True))})"
        defaults.append(text)
    returns = None if function.returns is None else parse_type(function.returns)
    return UserFunction(types, tuple(defaults), returns)


def body_scope(function: Function, known: UserFunction, scope: Scope) -> Scope:
    """What the body of a function sees."""
    names = (parameter.name for parameter in function.parameters)
    return replace(scope, variables=dict(zip(names, known.parameters, strict=True)), tables={}, is_body=True)


def parameter_list(function: Function, known: UserFunction) -> str:
    """The parameters in PostgreSQL."""
    pairs = zip(function.parameters, known.parameters, strict=True)
    return ", ".join(f"{quoted(parameter.name)} {postgres_type(of)}" for parameter, of in pairs)


def check_body(function: Function, scope: Scope) -> None:
    """Look whether the body of a function can be written, without knowing the tables that it reads.

    Raises:
        TsqlError: as `inline` and `scalar`.
    """
    known = signature(function, scope)
    if function.returns is not None:
        scalar(function, known, body_scope(function, known, scope))
    else:
        translate(function.query, body_scope(function, known, scope))


# ---------------------------------------------------------------- inline table-valued


def inline(function: Function, scope: Scope) -> tuple[str, tuple[Column, ...]]:
    """The query of an inline function in PostgreSQL, and its columns.

    Raises:
        TsqlError: as `translate`; 4514 a column without a name, 40515 one whose type is not known.
    """
    writer = Writer(scope)
    done = query(writer, parsed(without_namespaces(writer, read(function.query))), outermost=False)
    if writer.locks:
        raise TsqlError(
            40515, "A hint that locks keys is not supported in a function. Write it in the query around it."
        )
    if done.outputs is None:
        raise TsqlError(40515, "SELECT * over a table that is not there yet is not supported in a function.")
    columns = []
    for place, output in enumerate(done.outputs, 1):
        if not output.name:
            raise TsqlError(4514, f"CREATE FUNCTION failed because a column name is not specified for column {place}.")
        if output.type is None or output.type.name == "xml_node":
            raise TsqlError(
                40515, f"The column {output.name}, whose type is not known, is not supported in a function. "
                "Write CAST(... AS type) around it."
            )  # fmt: skip
        columns.append(Column(output.name, output.type))
    return done.text, tuple(columns)


def table_of(columns: Sequence[Column]) -> str:
    """RETURNS TABLE of PostgreSQL."""
    return ", ".join(f"{identifier(column.name)} {postgres_type(column.type)}" for column in columns)


# ---------------------------------------------------------------- scalar


def scalar(function: Function, known: UserFunction, scope: Scope) -> str:
    """The body of a scalar function in plpgsql.

    Raises:
        TsqlError: as `translate`; 443 for what has an effect, 444 for a SELECT that returns rows.
    """
    assert known.returns is not None
    body = _Body(scope, known.returns)
    lines = list(body.all(function.body))
    declared = "".join(f"    {quoted(name)} {postgres_type(of)};\n" for name, of in body.declared.items())
    return f"#variable_conflict use_column\ndeclare\n    found_row record;\n{declared}begin\n{chr(10).join(lines)}\nend"


class _Body:
    def __init__(self, scope: Scope, returns: SqlType) -> None:
        self.variables = dict(scope.variables)
        self.scope = replace(scope, variables=self.variables)
        self.returns = returns
        self.declared: dict[str, SqlType] = {}

    def all(self, statements: Sequence[Statement]) -> Iterator[str]:
        for statement in statements:
            try:
                yield from self.one(statement)
            except TsqlError as error:
                raise error.at(statement.line, "") from None

    def one(self, statement: Statement) -> Iterator[str]:
        writer = _WRITERS.get(type(statement))
        if writer is None:
            title = type(statement).__name__.upper()
            raise TsqlError(443, f"Invalid use of a side-effecting operator '{title}' within a function.")
        yield from writer(self, statement)

    def block(self, statement: Block) -> Iterator[str]:
        yield from self.all(statement.body)

    def if_(self, statement: If) -> Iterator[str]:
        yield f"if {self.condition(statement.condition.text)} then"
        yield from self.all([statement.then])
        if statement.otherwise is not None:
            yield "else"
            yield from self.all([statement.otherwise])
        yield "end if;"

    def while_(self, statement: While) -> Iterator[str]:
        yield f"while {self.condition(statement.condition.text)} loop"
        yield from self.all([statement.body])
        yield "end loop;"

    def break_(self, statement: Break) -> Iterator[str]:
        yield "exit;"

    def continue_(self, statement: Continue) -> Iterator[str]:
        yield "continue;"

    def return_(self, statement: Return) -> Iterator[str]:
        text = "NULL" if statement.value is None else _value(statement.value.text, self.returns, self.scope)
        yield f"return ({text});"

    def declare(self, statement: DeclareVariable) -> Iterator[str]:
        of = parse_type(statement.type)
        self.variables[statement.name] = self.declared[statement.name] = of
        if statement.value is not None:
            yield f"{quoted(statement.name)} := ({_value(statement.value.text, of, self.scope)});"

    def declare_table(self, statement: DeclareTable) -> Iterator[str]:
        raise unsupported("A table variable in a function", "Use a common table expression, or write a procedure.", 0)

    def set_(self, statement: SetVariable) -> Iterator[str]:
        if statement.name not in self.variables:
            raise TsqlError(137, f'Must declare the scalar variable "{statement.name}".', severity=15)
        text = statement.value.text
        if statement.operator:
            text = f"{statement.name} {statement.operator} ({text})"
        yield f"{quoted(statement.name)} := ({_value(text, self.variables[statement.name], self.scope)});"

    def select(self, statement: SelectVariables) -> Iterator[str]:
        for assignment in statement.assignments:
            yield from self.set_(assignment)

    def relational(self, statement: Relational) -> Iterator[str]:
        """SELECT @a = ... FROM: the last row counts, and without a row the variables keep what they have."""
        if statement.verb not in ("SELECT", "WITH"):
            raise TsqlError(443, f"Invalid use of a side-effecting operator '{statement.verb}' within a function.")
        done = translate(statement.text, self.scope)
        if done.kind != "assign":
            raise TsqlError(444, "Select statements included within a function cannot return data to a client.")
        columns = [f"c{number}" for number in range(len(done.assignments))]
        yield f"for found_row in select * from ({done.sql}) as r({', '.join(columns)}) loop"
        for name, column in zip(done.assignments, columns, strict=True):
            yield f"{quoted(name)} := found_row.{column};"
        yield "end loop;"

    def condition(self, text: str) -> str:
        done = translate_expression(text, self.scope)
        if done.types != (CONDITION,):
            raise TsqlError(
                4145, "An expression of non-boolean type specified in a context where a condition is expected.",
                severity=15,
            )  # fmt: skip
        return f"({done.sql})"


_WRITERS: dict[type[Statement], Callable[[_Body, Any], Iterator[str]]] = {
    Block: _Body.block,
    If: _Body.if_,
    While: _Body.while_,
    Break: _Body.break_,
    Continue: _Body.continue_,
    Return: _Body.return_,
    DeclareVariable: _Body.declare,
    DeclareTable: _Body.declare_table,
    SetVariable: _Body.set_,
    SelectVariables: _Body.select,
    Relational: _Body.relational,
}


def _value(text: str, of: SqlType, scope: Scope) -> str:
    """An expression as a value of a type."""
    return translate_expression(f"CAST(({text}\n) AS {of})", scope).sql
