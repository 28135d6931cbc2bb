"""The bodies of user-defined functions: of an inline one its query, of the others their control flow, in plpgsql."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from servicebroker.store.queue import quoted
from servicebroker.tsql.scope import Column, Scope, UserFunction
from servicebroker.tsql.statement_errors import TsqlError, condition_expected, unsupported
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
from servicebroker.tsql.translation.definitions.table_variables import (
    TableVariable,
    define_table_variable,
    entry_lines,
    exit_lines,
)
from servicebroker.tsql.translation.documents.xml_namespaces import take_namespaces
from servicebroker.tsql.translation.queries.selects import translate_query
from servicebroker.tsql.translation.reading.syntax_tree import parse_slice, slice_text
from servicebroker.tsql.translation.text_writer import Writer, quote_identifier
from servicebroker.tsql.translation.values.expressions import CONDITION_TYPE
from servicebroker.tsql.translator import translate, translate_expression
from servicebroker.tsql.types import SqlType, parse_type, postgres_type


def read_signature(function: Function, scope: Scope) -> UserFunction:
    """What calls of a function need to know; the columns of a table-valued one follow from its query.

    Raises:
        TsqlError: as `translate`, of the defaults of parameters; 2715 for types.
    """
    types = tuple(parse_type(parameter.type) for parameter in function.parameters)
    defaults = []
    for parameter, of in zip(function.parameters, types, strict=True):
        text = None
        if parameter.default is not None:
            text = f"({_write_value(parameter.default.text, of, replace(scope, variables={}, is_body=True))})"
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
        TsqlError: as `translate_inline` and `write_body`.
    """
    known = read_signature(function, scope)
    if function.query:
        translate(function.query, body_scope(function, known, scope))
    else:
        write_body(function, "checked", known, body_scope(function, known, scope))


# ---------------------------------------------------------------- inline table-valued


def translate_inline(function: Function, scope: Scope) -> tuple[str, tuple[Column, ...]]:
    """The query of an inline function in PostgreSQL, and its columns.

    Raises:
        TsqlError: as `translate`; 4514 a column without a name, 40515 one whose type is not known.
    """
    writer = Writer(scope, has_parent_steps=".." in function.query)
    done = translate_query(writer, parse_slice(take_namespaces(writer, slice_text(function.query))), outermost=False)
    if writer.locks:
        raise _lock_hint_error()
    if scope.recorded_uses is not None:
        scope.recorded_uses.update(writer.uses)
    if done.outputs is None or any(output.type is None for output in done.outputs):
        _check_tables(writer)
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


def _check_tables(writer: Writer) -> None:
    """Raises: TsqlError: 208 the types are not known since a table is not there."""
    for (kind, table), columns in writer.scope_answers.items():
        if kind == "columns" and not columns and table in writer.table_uses:
            raise TsqlError(208, f"Invalid object name '{writer.table_uses[table].name}'.")


def returns_table_sql(columns: Sequence[Column]) -> str:
    """RETURNS TABLE of PostgreSQL."""
    return ", ".join(f"{quote_identifier(column.name)} {postgres_type(column.type)}" for column in columns)


# ---------------------------------------------------------------- of several statements


class FunctionBody(NamedTuple):
    """A body in plpgsql. A table-valued function has `columns`; one `has_tables` that fills table variables."""

    text: str
    columns: tuple[Column, ...]
    has_tables: bool


def write_body(function: Function, name: str, known: UserFunction, scope: Scope) -> FunctionBody:
    """The body of a scalar function, or of one that returns a table that it fills; `name` is PostgreSQL's.

    Raises:
        TsqlError: as `translate`; 443 for what has an effect, 444 for a SELECT that returns rows.
    """
    body = _BodyWriter(scope, name, known.returns)
    columns = body.declare_returned(function.table) if function.table is not None else ()
    lines = "\n".join(body.all(function.body))
    declared = "".join(f"    {quoted(name)} {postgres_type(of)};\n" for name, of in body.declared.items())
    if known.returns is not None:
        declared += f"    returned {postgres_type(known.returns)};\n"
    text = "\n".join([
        f"#variable_conflict use_column\ndeclare\n    found_row record;\n{declared}begin",
        *entry_lines(name, body.made),
        f"<<body>>\nbegin\n{lines}\nend;",
        *exit_lines(name, body.made),
        "return returned;" if function.table is None else body.tables[function.table.name].returned(),
        "end",
    ])  # fmt: skip
    return FunctionBody(text, columns, bool(body.tables))


class _BodyWriter:
    def __init__(self, scope: Scope, name: str, returns: SqlType | None) -> None:
        self.variables = dict(scope.variables)
        self.tables: dict[str, TableVariable] = {}
        self.names: dict[str, str] = {}
        self.columns: dict[str, tuple[Column, ...]] = {}
        columns = ChainMap(self.columns, scope.columns)  # type: ignore[arg-type] # it is only read
        self.scope = replace(scope, variables=self.variables, tables=self.names, columns=columns)
        self.name, self.returns = name, returns
        self.declared: dict[str, SqlType] = {}

    @property
    def made(self) -> list[TableVariable]:
        return list(self.tables.values())

    def declare_returned(self, statement: DeclareTable) -> tuple[Column, ...]:
        list(self.declare_table(statement))
        return self.tables[statement.name].columns

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
        if self.returns is not None:
            text = "NULL" if statement.value is None else _write_value(statement.value.text, self.returns, self.scope)
            yield f"returned := ({text});"
        elif statement.value is not None:
            raise TsqlError(178, "A RETURN statement with a return value cannot be used in this context.", severity=15)
        yield "exit body;"

    def declare(self, statement: DeclareVariable) -> Iterator[str]:
        of = parse_type(statement.type)
        self.variables[statement.name] = self.declared[statement.name] = of
        if statement.value is not None:
            yield f"{quoted(statement.name)} := ({_write_value(statement.value.text, of, self.scope)});"

    def declare_table(self, statement: DeclareTable) -> Iterator[str]:
        if statement.name in self.names or statement.name in self.variables:
            raise TsqlError(134, f"The variable name '{statement.name}' has already been declared.", severity=15)
        found = self.tables[statement.name] = define_table_variable(self.scope, self.name, statement)
        self.names[statement.name], self.columns[found.table] = found.table, found.columns
        yield from ()

    def set_(self, statement: SetVariable) -> Iterator[str]:
        if statement.name not in self.variables:
            raise TsqlError(137, f'Must declare the scalar variable "{statement.name}".', severity=15)
        value = _write_value(statement.value.text, self.variables[statement.name], self.scope)
        yield f"{quoted(statement.name)} := ({value});"

    def select(self, statement: SelectVariables) -> Iterator[str]:
        for assignment in statement.assignments:
            yield from self.set_(assignment)

    def relational(self, statement: Relational) -> Iterator[str]:
        """A change of a table variable, or SELECT @a = ... FROM: the last row counts, and none changes nothing."""
        if statement.verb not in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"):
            raise TsqlError(443, f"Invalid use of a side-effecting operator '{statement.verb}' within a function.")
        done = translate(statement.text, self.scope)
        if done.before:
            raise _lock_hint_error()
        if done.kind == "count":
            yield f"for found_row in {done.sql} loop end loop;" if done.identity is not None else f"{done.sql};"
            return
        if done.kind == "assign" and statement.verb == "UPDATE":
            raise unsupported("UPDATE ... SET @variable in a function", "Read the value with SELECT.", statement.line)
        if done.kind != "assign":
            raise TsqlError(444, "Select statements included within a function cannot return data to a client.")
        columns = [f"c{number}" for number in range(len(done.assignments))]
        yield f"for found_row in select * from ({done.sql}) as r({', '.join(columns)}) loop"
        for name, column in zip(done.assignments, columns, strict=True):
            yield f"{quoted(name)} := found_row.{column};"
        yield "end loop;"

    def condition(self, text: str) -> str:
        done = translate_expression(text, self.scope)
        if done.types != (CONDITION_TYPE,):
            raise condition_expected()
        return f"({done.sql})"


_WRITERS: dict[type[Statement], Callable[[_BodyWriter, Any], Iterator[str]]] = {
    Block: _BodyWriter.block,
    If: _BodyWriter.if_,
    While: _BodyWriter.while_,
    Break: _BodyWriter.break_,
    Continue: _BodyWriter.continue_,
    Return: _BodyWriter.return_,
    DeclareVariable: _BodyWriter.declare,
    DeclareTable: _BodyWriter.declare_table,
    SetVariable: _BodyWriter.set_,
    SelectVariables: _BodyWriter.select,
    Relational: _BodyWriter.relational,
}


def _lock_hint_error() -> TsqlError:
    return TsqlError(40515, "A hint that locks keys is not supported in a function. Write it in the query around it.")


def _write_value(text: str, of: SqlType, scope: Scope) -> str:
    """An expression as a value of a type."""
    return translate_expression(f"CAST(({text}\n) AS {of})", scope).sql
