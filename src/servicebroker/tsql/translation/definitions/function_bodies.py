"""Bodies of user-defined functions: the query of an inline function, otherwise control flow in plpgsql."""

from __future__ import annotations

from collections import ChainMap
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from servicebroker.model import names
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
    Goto,
    If,
    Label,
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
from servicebroker.tsql.translation.queries.results import Query
from servicebroker.tsql.translation.queries.selects import translate_query
from servicebroker.tsql.translation.reading.syntax_tree import parse_slice, slice_text
from servicebroker.tsql.translation.text_writer import NeedsParents, Writer, quote_identifier
from servicebroker.tsql.translation.values.expressions import CONDITION_TYPE
from servicebroker.tsql.translator import translate, translate_expression
from servicebroker.tsql.types import BIGINT, INT, SqlType, parse_type, postgres_type


def read_signature(function: Function, scope: Scope) -> UserFunction:
    """Return the signature of a function. The columns of a table-valued one come from its query later.

    Raises:
        TsqlError: see `translate`, for defaults of parameters; 2715 unknown type.
    """
    types = tuple(parse_type(parameter.type) for parameter in function.parameters)
    defaults = []
    for parameter, sql_type in zip(function.parameters, types, strict=True):
        text = None
        if parameter.default is not None:
            text = f"({_write_value(parameter.default.text, sql_type, replace(scope, variables={}, is_body=True))})"
        defaults.append(text)
    returns = None if function.returns is None else parse_type(function.returns)
    return UserFunction(types, tuple(defaults), returns)


def body_scope(function: Function, signature: UserFunction, scope: Scope) -> Scope:
    """Return the scope of a function's body."""
    parameters = (parameter.name for parameter in function.parameters)
    variables = dict(zip(parameters, signature.parameters, strict=True))
    module = names.bracketed(function.name.schema or "dbo", function.name.object)
    return replace(scope, variables=variables, tables={}, is_body=True, module=module)


def parameter_list(function: Function, signature: UserFunction) -> str:
    """Return the parameters in PostgreSQL."""
    pairs = zip(function.parameters, signature.parameters, strict=True)
    return ", ".join(f"{quoted(parameter.name)} {postgres_type(sql_type)}" for parameter, sql_type in pairs)


def check_body(function: Function, scope: Scope) -> None:
    """Check that the body of a function can be translated, without reading the catalog.

    Raises:
        TsqlError: see `translate_inline` and `write_body`.
    """
    signature = read_signature(function, scope)
    if function.query:
        translate(function.query, body_scope(function, signature, scope))
    else:
        write_body(function, "checked", signature, body_scope(function, signature, scope))


# ---------------------------------------------------------------- inline table-valued


def _translate_query_of(function: Function, writer: Writer) -> Query:
    query = parse_slice(take_namespaces(writer, slice_text(function.query)))
    return translate_query(writer, query, outermost=False)


def translate_inline(function: Function, scope: Scope) -> tuple[str, tuple[Column, ...]]:
    """Translate the query of an inline function, and return it with its columns.

    Raises:
        TsqlError: see `translate`; 4514 a column without a name, 40515 a column of unknown type.
    """
    writer = Writer(scope, has_parent_steps=".." in function.query)
    try:
        translated = _translate_query_of(function, writer)
    except NeedsParents:
        writer = Writer(scope, has_parent_steps=True)
        translated = _translate_query_of(function, writer)
    if writer.statements_before:
        raise _lock_hint_error()
    if scope.recorded_uses is not None:
        scope.recorded_uses.update(writer.uses)
    if translated.outputs is None or any(output.type is None for output in translated.outputs):
        _check_tables(writer)
    if translated.outputs is None:
        raise TsqlError(40515, "SELECT * over a table that is not there yet is not supported in a function.")
    columns = []
    for place, output in enumerate(translated.outputs, 1):
        if not output.name:
            raise TsqlError(4514, f"CREATE FUNCTION failed because a column name is not specified for column {place}.")
        if output.type is None or output.type.name == "xml_node":
            raise TsqlError(
                40515, f"The column {output.name}, whose type is not known, is not supported in a function. "
                "Write CAST(... AS type) around it."
            )  # fmt: skip
        columns.append(Column(output.name, output.type))
    return translated.text, tuple(columns)


def _check_tables(writer: Writer) -> None:
    """Check that unknown types are not due to a missing table.

    Raises:
        TsqlError: 208 the table does not exist.
    """
    for (kind, table), columns in writer.scope_answers.items():
        if kind == "columns" and not columns and table in writer.table_uses:
            raise TsqlError(208, f"Invalid object name '{writer.table_uses[table].name}'.")


def returns_table_sql(columns: Sequence[Column]) -> str:
    """Return the columns of PostgreSQL's RETURNS TABLE."""
    return ", ".join(f"{quote_identifier(column.name)} {postgres_type(column.type)}" for column in columns)


# ---------------------------------------------------------------- of several statements


class FunctionBody(NamedTuple):
    """A body in plpgsql.

    A table-valued function has `columns`. `has_tables` is True for a function with table variables.
    """

    text: str
    columns: tuple[Column, ...]
    has_tables: bool


def write_body(function: Function, name: str, signature: UserFunction, scope: Scope) -> FunctionBody:
    """Write the body of a scalar or multi-statement table-valued function. `name` is the PostgreSQL name.

    Raises:
        TsqlError: see `translate`; 443 a statement with side effects, 444 a SELECT that returns rows.
    """
    body = _BodyWriter(scope, name, signature.returns)
    columns = body.declare_returned(function.table) if function.table is not None else ()
    body.count_for(function.text)
    lines = "\n".join(body.all(function.body))
    declared = "".join(f"    {quoted(name)} {postgres_type(sql_type)};\n" for name, sql_type in body.declared.items())
    if signature.returns is not None:
        declared += f"    returned {postgres_type(signature.returns)};\n"
    text = "\n".join([
        f"#variable_conflict use_column\ndeclare\n    found_row record;\n{declared}begin",
        *entry_lines(name, body.table_variables),
        *(f"{quoted(counter)} := 0;" for counter in body.counters),
        f"<<body>>\nbegin\n{lines}\nend;",
        *exit_lines(name, body.table_variables),
        "return returned;" if function.table is None else body.tables[function.table.name].returned(),
        "end",
    ])  # fmt: skip
    return FunctionBody(text, columns, bool(body.tables))


# functions of the session with a value of its own in each body
_COUNTERS = {"@@rowcount": INT, "rowcount_big": BIGINT, "@@error": INT}


class _BodyWriter:
    """Writes the statements of a body, and keeps its variables and table variables."""

    def __init__(self, scope: Scope, name: str, returns: SqlType | None) -> None:
        self.variables = dict(scope.variables)
        self.tables: dict[str, TableVariable] = {}
        self.names: dict[str, str] = {}
        self.columns: dict[str, tuple[Column, ...]] = {}
        columns = ChainMap(self.columns, scope.columns)  # type: ignore[arg-type] # the map is only read
        self.scope = replace(scope, variables=self.variables, tables=self.names, columns=columns)
        self.name, self.returns = name, returns
        self.declared: dict[str, SqlType] = {}
        self.counters: list[str] = []  # the functions of `_COUNTERS` that the body calls
        self.targets: dict[str, tuple[int, int]] = {}  # the number of its block and its place there, by label
        self.blocks = self.loops = 0
        self.open_loops: list[int] = []

    def count_for(self, text: str) -> None:
        """Declare a variable for each of @@ROWCOUNT and the like that occurs in the text of the function."""
        self.counters = [name for name in _COUNTERS if name in text.lower()]
        for name in self.counters:
            self.variables[name] = self.declared[name] = _COUNTERS[name]

    def counted(self, rows: str) -> Iterator[str]:
        """Write the number of rows of a statement into the variables for @@ROWCOUNT. @@ERROR stays 0."""
        for name in self.counters:
            if name != "@@error":
                yield f"{quoted(name)} := {rows};"

    @property
    def table_variables(self) -> list[TableVariable]:
        return list(self.tables.values())

    def declare_returned(self, statement: DeclareTable) -> tuple[Column, ...]:
        list(self.declare_table(statement))
        return self.tables[statement.name].columns

    def all(self, statements: Sequence[Statement]) -> Iterator[str]:
        if any(isinstance(statement, Label) for statement in statements):
            yield from self.labelled(statements)
            return
        for statement in statements:
            yield from self.placed(statement)

    def placed(self, statement: Statement) -> Iterator[str]:
        try:
            yield from self.one(statement)
        except TsqlError as error:
            raise error.at(statement.line, "") from None

    def labelled(self, statements: Sequence[Statement]) -> Iterator[str]:
        """Write a block with labels as a loop, which GOTO repeats. Parts before the target of a jump are skipped."""
        self.blocks += 1
        block, target = self.blocks, quoted(f"goto_{self.blocks}")
        self.declared[f"goto_{block}"] = INT
        labels = [statement.name for statement in statements if isinstance(statement, Label)]
        self.targets.update((name, (block, place)) for place, name in enumerate(labels, 1))
        yield f"{target} := 0;\n<<labels_{block}>>\nloop\nif {target} <= 0 then"
        for statement in statements:
            if isinstance(statement, Label):
                yield f"end if;\nif {target} <= {self.targets[statement.name][1]} then"
            else:
                yield from self.placed(statement)
        yield f"end if;\nexit labels_{block};\nend loop;"

    def goto(self, statement: Goto) -> Iterator[str]:
        block, place = self.targets[statement.label]
        yield f"{quoted(f'goto_{block}')} := {place};\ncontinue labels_{block};"

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
        yield from self.counted("0")
        yield from self.all([statement.then])
        if statement.otherwise is not None or self.counters:
            yield "else"
            yield from self.counted("0")
        if statement.otherwise is not None:
            yield from self.all([statement.otherwise])
        yield "end if;"

    def while_(self, statement: While) -> Iterator[str]:
        self.loops += 1
        self.open_loops.append(self.loops)
        yield f"<<while_{self.open_loops[-1]}>>\nwhile {self.condition(statement.condition.text)} loop"
        yield from self.counted("0")
        yield from self.all([statement.body])
        yield "end loop;"
        self.open_loops.pop()

    def break_(self, statement: Break) -> Iterator[str]:
        yield f"exit while_{self.open_loops[-1]};"

    def continue_(self, statement: Continue) -> Iterator[str]:
        yield f"continue while_{self.open_loops[-1]};"

    def return_(self, statement: Return) -> Iterator[str]:
        if self.returns is not None:
            text = "NULL" if statement.value is None else _write_value(statement.value.text, self.returns, self.scope)
            yield f"returned := ({text});"
        elif statement.value is not None:
            raise TsqlError(178, "A RETURN statement with a return value cannot be used in this context.", severity=15)
        yield "exit body;"

    def declare(self, statement: DeclareVariable) -> Iterator[str]:
        sql_type = parse_type(statement.type)
        self.variables[statement.name] = self.declared[statement.name] = sql_type
        if statement.value is not None:
            yield f"{quoted(statement.name)} := ({_write_value(statement.value.text, sql_type, self.scope)});"
            yield from self.counted("1")

    def declare_table(self, statement: DeclareTable) -> Iterator[str]:
        if statement.name in self.names or statement.name in self.variables:
            raise TsqlError(134, f"The variable name '{statement.name}' has already been declared.", severity=15)
        variable = self.tables[statement.name] = define_table_variable(self.scope, self.name, statement)
        self.names[statement.name], self.columns[variable.table] = variable.table, variable.columns
        yield from ()

    def set_(self, statement: SetVariable) -> Iterator[str]:
        if statement.name not in self.variables:
            raise TsqlError(137, f'Must declare the scalar variable "{statement.name}".', severity=15)
        value = _write_value(statement.value.text, self.variables[statement.name], self.scope)
        yield f"{quoted(statement.name)} := ({value});"
        yield from self.counted("1")

    def select(self, statement: SelectVariables) -> Iterator[str]:
        for assignment in statement.assignments:
            yield from self.set_(assignment)

    def relational(self, statement: Relational) -> Iterator[str]:
        """Write a change of a table variable, or SELECT @a = ... FROM, which takes the last row."""
        if statement.keyword not in ("SELECT", "WITH", "INSERT", "UPDATE", "DELETE", "MERGE"):
            raise TsqlError(443, f"Invalid use of a side-effecting operator '{statement.keyword}' within a function.")
        translation = translate(statement.text, self.scope)
        if translation.before:
            raise _lock_hint_error()
        if translation.kind == "count":
            if translation.identity is not None:
                yield from self.counted("0")
                yield f"for found_row in {translation.sql} loop"
                yield from (f"{quoted(name)} := {quoted(name)} + 1;" for name in self.counters if name != "@@error")
                yield "end loop;"
            else:
                yield f"{translation.sql};"
                yield from (
                    f"get diagnostics {quoted(name)} = row_count;" for name in self.counters if name != "@@error"
                )
            return
        if translation.kind == "assign" and statement.keyword == "UPDATE":
            raise unsupported("UPDATE ... SET @variable in a function", "Read the value with SELECT.", statement.line)
        if translation.kind != "assign":
            raise TsqlError(444, "Select statements included within a function cannot return data to a client.")
        columns = [f"c{number}" for number in range(len(translation.assignments))]
        yield from self.counted("0")
        yield f"for found_row in select * from ({translation.sql}) as r({', '.join(columns)}) loop"
        for name, column in zip(translation.assignments, columns, strict=True):
            yield f"{quoted(name)} := found_row.{column};"
        yield from (f"{quoted(name)} := {quoted(name)} + 1;" for name in self.counters if name != "@@error")
        yield "end loop;"

    def condition(self, text: str) -> str:
        translation = translate_expression(text, self.scope)
        if translation.types != (CONDITION_TYPE,):
            raise condition_expected()
        return f"({translation.sql})"


_WRITERS: dict[type[Statement], Callable[[_BodyWriter, Any], Iterator[str]]] = {
    Block: _BodyWriter.block,
    If: _BodyWriter.if_,
    While: _BodyWriter.while_,
    Break: _BodyWriter.break_,
    Continue: _BodyWriter.continue_,
    Goto: _BodyWriter.goto,
    Return: _BodyWriter.return_,
    DeclareVariable: _BodyWriter.declare,
    DeclareTable: _BodyWriter.declare_table,
    SetVariable: _BodyWriter.set_,
    SelectVariables: _BodyWriter.select,
    Relational: _BodyWriter.relational,
}


def _lock_hint_error() -> TsqlError:
    return TsqlError(40515, "A hint that locks keys is not supported in a function. Write it in the query around it.")


def _write_value(text: str, sql_type: SqlType, scope: Scope) -> str:
    """Write an expression converted to a type."""
    return translate_expression(f"CAST(({text}\n) AS {sql_type})", scope).sql
