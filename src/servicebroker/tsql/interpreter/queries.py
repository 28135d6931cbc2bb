"""Relational statements and expressions: translated, run on the session's connection, and what comes of them."""

from __future__ import annotations

import functools
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from typing import Any

import psycopg

from servicebroker.engine.security.tsql_objects import ENTER, Use, authorize_queues, authorize_uses, forget
from servicebroker.model.names import postgres_name
from servicebroker.store.direct import Result, run_command
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.conversion import convert, out_of_variant
from servicebroker.tsql.interpreter.cursors import follow
from servicebroker.tsql.interpreter.definitions import triggers
from servicebroker.tsql.interpreter.definitions.ddl_events import tell_of_uses
from servicebroker.tsql.interpreter.evaluation import type_of
from servicebroker.tsql.interpreter.frame import Frame
from servicebroker.tsql.interpreter.implicit_transactions import begin_to_look
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.procedures.session_functions import session_context
from servicebroker.tsql.interpreter.remembered import Columns, Synonyms, UserFunctions, UserTypes
from servicebroker.tsql.interpreter.set_options import HOLDING
from servicebroker.tsql.interpreter.simple import Value
from servicebroker.tsql.interpreter.statement_runner import run_definition, run_statement
from servicebroker.tsql.interpreter.violations import violation
from servicebroker.tsql.relational import TEMPORARY, Translated, tables_of, translate, translate_expression
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.scope import CONTEXT, CONTEXT_INFO, LOGIN, ORIGINAL_LOGIN, USER, Column, Scope
from servicebroker.tsql.statement_errors import TsqlError, no_condition, unsupported
from servicebroker.tsql.syntax import Name, Relational
from servicebroker.tsql.translation.definitions.defined_names import database_of_definition
from servicebroker.tsql.translation.reading.text_to_tree import LONG
from servicebroker.tsql.translation.rows.current_rows import CURRENT_OF
from servicebroker.tsql.translation.text_writer import Lock, Writer, identifier, schema_of, string
from servicebroker.tsql.translation.values.expressions import CONDITION
from servicebroker.tsql.types import NVARCHAR, VARIANT

# statements whose INTO names a table that is there
_FILLS = re.compile(r"\A\s*(?:with\b.*?\b)?(?:insert|merge|update|delete)\b", re.IGNORECASE | re.DOTALL)
_CHANGES = re.compile(r"\A\s*(?:insert|update|delete|merge|with)\b", re.IGNORECASE)
_ASKS = re.compile(r"\b(?:insert|update|merge|into|transmission_queue)\b", re.IGNORECASE)
_SYS = re.compile(r"\b(?:sys|information_schema)\s*\.|\bsys\w+\b|_id\s*\(|_name\s*\(|property\s*\(", re.IGNORECASE)
_VIEW = re.compile(r"(?:FROM|JOIN) (?:sys|tsql)\.\w+ AS ")  # of the catalog, also behind a synonym
_PARAMETERS = 20_000  # of one statement; PostgreSQL takes 65,535
_DEFINING = ("CREATE ", "ALTER ")  # how statements begin whose own name says where they run
_SHAPE = ("UndefinedTable", "UndefinedColumn", "DatatypeMismatch", "FeatureNotSupported")
_STALE = "cached plan must not change result type"


class Queries:
    """What a session needs for queries; `machine` is the session."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.columns = Columns(machine)
        self.user_functions = UserFunctions(machine)
        self.user_types = UserTypes(machine)
        self.synonyms = Synonyms(machine)
        self._shown: str | None = None  # the database that the views of sys show
        self._told: dict[str, str] | None = None  # what the connection was told of the session, for defaults of columns
        self._identity_insert: str | None = None
        self._settings: set[str] = set()
        self._made = 0
        self._has_temporary = False

    def scope(self, most: int = 0) -> Scope:
        """What the text may name now; of what rows there are, it is given `most`."""
        machine = self.machine
        return Scope(
            machine.database.name,
            machine.frame.types,
            self._tables(),
            machine.functions,
            self.columns,
            self._identity_insert,
            self.user_functions,
            user_types=self.user_types,
            synonyms=self.synonyms,
            read_only={machine.frame.tables[name]: name for name in machine.frame.lent},
            most=most,
        )

    def _tables(self) -> Mapping[str, str]:
        """Table variables of this frame; temporary tables of those that called it too."""
        frames = self.machine.frames
        if len(frames) < 2:
            return self.machine.frame.tables
        outer = [_temporary(frame) for frame in reversed(frames[:-1])]
        return ChainMap(self.machine.frame.tables, *outer)

    # ------------------------------------------------------------ running

    def run(self, text: str) -> None:
        """A statement: its rows are said or assigned, its count is kept."""
        try:
            self._run_translated(text)
        except psycopg.errors.FeatureNotSupported as refused:
            if _STALE not in str(refused):
                raise
            self._run_translated(text)  # a table has other columns than when this was prepared

    def _run_translated(self, text: str) -> None:
        machine = self.machine
        made = self._shadow(text)
        try:
            self._run_in_scope(text)
        except BaseException:
            machine.frame.tables.pop(made, None)
            raise

    def _shadow(self, text: str) -> str:
        """The temporary table that is to be made here beside one of a caller's with its name, "" for none."""
        name = _temporary_of(text)
        *outer, frame = self.machine.frames or [self.machine.frame]
        if not name or name.startswith("##") or name in frame.tables or not any(name in each.tables for each in outer):
            return ""
        self._made += 1
        frame.tables[name] = f'pg_temp."{name[:40]}_{self._made}"'
        return name

    def _run_in_scope(self, text: str) -> None:
        machine = self.machine
        done = translate(text, self.scope(machine.row_limit))
        begin_to_look(machine, done)
        if done.kind != "rows":
            machine.transactions.check()
        changes = done.kind != "ddl" and _has(_CHANGES, text)
        if changes and machine.shaping and (done.kind == "rows" or done.columns):  # OUTPUT, which may be refused
            with machine.whole():
                self._run(done, text, changes=changes)
            return
        self._run(done, text, changes=changes)

    def _run(self, done: Translated, text: str, *, changes: bool) -> None:
        work, take = functools.partial(self._execute, done, text), functools.partial(self._take, done, text)
        if changes:
            self._change(text, work, take)
        else:
            take(work())

    def _change(self, text: str, work: Callable[[], Result], take: Callable[[Result], None]) -> None:
        """Run and take what may fire triggers: it and they stand or fall together."""
        machine = self.machine
        if not triggers.any_exist(machine):
            take(work())
            return
        with machine.together():
            triggers.ask(machine)
            result = work()
            changed = triggers.captured(machine)
            take(result._replace(touched=result.touched + triggers.diverted_rows(machine, changed)))
            triggers.fire(machine, text, changed)

    def _take(self, done: Translated, text: str, result: Result) -> None:
        """What comes of a statement that has run: its rows are said or assigned, its count is kept."""
        machine = self.machine
        if done.kind == "ddl":
            for use in done.uses:
                if use.statement in ("DROP TABLE", "DROP VIEW", "DROP SEQUENCE"):
                    user = machine.context.named(use.database or machine.database.name).user
                    machine.context.ask(forget(user, use.schema, use.name))
            self.columns.forget()
            self._note_temporary(text)
            self._divert_again(done)
            tell_of_uses(machine, done.uses, text)
            machine.done(0)
        elif done.kind == "assign":
            if result.rows:
                for name, value in zip(done.assignments, result.rows[-1], strict=False):
                    machine.frame.values[name] = value
            machine.done(len(result.rows))
        elif done.kind == "rows" and done.identity is None:
            machine.say(_result_set(done, result))
            machine.done(len(result.rows))
        else:
            self._changed(done, text, result)

    def _divert_again(self, done: Translated) -> None:
        """A view that was altered is a new one to PostgreSQL: its INSTEAD OF triggers stay."""
        for use in done.uses:
            if use.statement in ("ALTER VIEW", "CREATE OR ALTER VIEW") and triggers.any_exist(self.machine):
                database = use.database or self.machine.database.name
                triggers.divert(self.machine, f"{schema_of(database, use.schema)}.{quoted(postgres_name(use.name))}")

    def _changed(self, done: Translated, text: str, result: Result) -> None:
        machine = self.machine
        rows = result.rows
        if done.identity is not None:
            if rows:
                machine.identity = machine.scope_identity = rows[-1][done.identity]
            rows = [row[: done.identity] + row[done.identity + 1 :] for row in rows]
        if done.columns:
            machine.say(ResultSet(done.columns, rows))
        self._note_temporary(text)
        machine.error = 0
        machine.changed(result.touched)

    def collect(self, text: str, most: int = 0) -> ResultSet:
        """The rows of a query, or the first of them, for whoever asks inside."""
        done = translate(text, self.scope(most))
        return _result_set(done, self._execute(done, text))

    def scalar(self, text: str) -> Value:
        """The value of an expression, and its type."""
        done = translate_expression(text, self.scope())
        begin_to_look(self.machine, done)
        rows = self._execute(done, text).rows
        return Value(rows[0][0] if rows else None, done.types[0] if done.types else None)

    def condition(self, text: str) -> bool:
        """Whether a condition holds.

        Raises:
            TsqlError: 4145 it is no condition.
        """
        value, of = self.scalar(text)
        if of != CONDITION:
            raise no_condition(text)
        return value is True

    def allow(self, uses: Collection[Use], *, is_module: bool) -> None:
        """Refuse what who works may not do with the tables of a statement, and nobody with what is the broker's.

        What a module uses in its own database is dbo's as the module is, and nobody is asked for it. What a view or a
        function uses in another one is asked of who defines it, since PostgreSQL runs it for whoever reads it.
        """
        machine, context = self.machine, self.machine.context
        for name in {use.database for use in uses}:
            here = [use for use in uses if use.database == name]
            defining = [use for use in here if use.defines]
            using = [use for use in here if not use.defines]
            if context.person.is_administrator if name else context.database.user.is_dbo:
                using = []
            if not defining and not using:
                continue
            there = context.named(name) if name else context.database
            using = [use for use in using if use.statement != ENTER]
            if defining:
                machine.allow(*defining, database=there)
            if using:
                chained = is_module and not name
                context.ask((authorize_queues if chained else authorize_uses)(there.user, using))

    def _execute(self, done: Translated, text: str) -> Result:
        machine = self.machine
        if done.uses:
            is_view = done.kind == "ddl" and any(use.statement.endswith(" VIEW") for use in done.uses)
            uses = _referred(done.uses) if done.kind == "ddl" and not is_view else done.uses
            self.allow(uses, is_module=machine.frame.is_module or is_view)
        _check_server(done, machine.connection.info.server_version // 10_000)
        self._show_database(text, done)
        self._tell_who(text)
        machine.transactions.guard()
        before = self._held(done) + done.before
        cursors = [name for name in done.parameters if name.startswith(CURRENT_OF)] if _has(_CHANGES, text) else []
        alone = bool(before or done.after or cursors or done.most) and not machine.transactions.count
        try:
            if alone:
                run_command(machine.connection, b"begin")
            for lock in before:
                run_statement(machine.connection, lock.sql, self._values(lock.parameters))
            if done.kind == "ddl":
                run_definition(machine.connection, done.sql)
                result = Result(None, [], 0)
            else:
                result = run_statement(machine.connection, done.sql, self._values(done.parameters))
            _check_most(done, result)
            for name in cursors[:1]:
                follow(machine, name.removeprefix(CURRENT_OF), result.touched)
            for lock in done.after:
                run_statement(machine.connection, lock.sql, self._values(lock.parameters))
            if alone:
                run_command(machine.connection, b"commit")
        except BaseException as problem:
            if alone and not machine.connection.closed:
                machine.connection.rollback()
            machine.transactions.undo()
            if isinstance(problem, psycopg.Error) and type(problem).__name__ in _SHAPE:
                self.columns.forget()
            error = violation(machine, problem, text) if isinstance(problem, psycopg.Error) else None
            if error is not None:
                raise error from None
            raise
        return result

    def _held(self, done: Translated) -> tuple[Lock, ...]:
        """What keeps others out of the tables of a statement, under the isolation levels that promise it.

        A SELECT by itself needs nothing: it sees one state, and nothing comes after it.
        """
        machine = self.machine
        is_last = done.kind == "rows" and not machine.transactions.count
        if machine.isolation not in HOLDING or is_last or done.kind == "ddl":
            return ()
        return tuple(Lock(f"SELECT tsql.hold({string(table)})", ()) for table in done.reads)

    def _values(self, names: tuple[str, ...]) -> tuple[object, ...]:
        frame, functions = self.machine.frame, self.machine.functions
        return tuple(frame.values[name] if name in frame.types else functions[name] for name in names)

    def _show_database(self, text: str, done: Translated) -> None:
        """The views of sys show one database; it is told before the first statement that may look there."""
        name = self.machine.database.name
        if self._shown != name and (_has(_SYS, text) or _has(_VIEW, done.sql)):
            self.set("servicebroker.database", name)
            self._shown = name

    def _tell_who(self, text: str) -> None:
        """Defaults of columns, functions, and the view of the transmission queue ask who works, and in what context.

        It is told before the first statement that may ask; whoever is not dbo is told at once.
        """
        may_ask = self._told is not None or self.user_functions.any_called or not self.machine.database.user.is_dbo
        if not (may_ask or _has(_ASKS, text)):
            return
        now = _of_session(self.machine)
        before = dict.fromkeys(self._settings, None) if self._told is None else self._told
        for setting, value in now.items():
            if value != before.get(setting, ""):
                self.set(setting, value)
        self._told = now

    def set(self, option: str, value: str) -> None:
        """A setting of the connection, given back when the session ends."""
        self._settings.add(option)
        fetch(self.machine.connection, "queries.set", "select set_config($1, $2, false)", (option, value))

    def rolled_back(self) -> None:
        """What SET has set inside the transaction may be undone, and tables that it made are gone."""
        self._shown = self._told = None
        self.columns.forget()
        self.user_functions.forget()
        self.user_types.forget()
        self.synonyms.forget()

    # ------------------------------------------------------------ temporary tables

    def declare_table(self, frame: Frame, name: str, columns: str) -> None:
        """DECLARE @name TABLE: a temporary table that lives as long as the frame."""
        if name in frame.tables:
            return
        self._made += 1
        table = f'pg_temp."{name[:40]}_{self._made}"'
        self.make_table(table, columns)
        frame.tables[name], frame.declared[name] = table, columns

    def make_table(self, table: str, columns: str) -> None:
        """The table of a table variable."""
        scope = self.scope()
        scope.tables = {"#variable": table}
        done = translate(f"CREATE TABLE #variable {columns}", scope)
        self._execute(done, "")
        self._has_temporary = True

    def insert(self, table: str, columns: list[Column], row: list[Value]) -> None:
        """One row into a table of the session's, each value converted to its column's type."""
        values = tuple(
            value.value if value.value is None else convert(value.value, value.type, column.type)
            for column, value in zip(columns, row, strict=True)
        )
        places = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        names = ", ".join(identifier(column.name) for column in columns)
        run_statement(self.machine.connection, f"insert into {table} ({names}) values ({places})", values)

    def _note_temporary(self, text: str) -> None:
        name = _temporary_of(text)
        if name:
            self._has_temporary = True
            frame = self.machine.frames[0] if name.startswith("##") else self.machine.frame
            frame.tables.setdefault(name, f'pg_temp."{name}"')

    def leave(self, frame: Frame) -> None:
        """The frame ends, and its tables with it."""
        own = [table for name, table in frame.tables.items() if name not in frame.lent]
        if own and not self.machine.connection.closed:
            tables = ", ".join(own)
            self.machine.transactions.settle()
            run_command(self.machine.connection, f"drop table if exists {tables}".encode())
            self.columns.forget()

    def close(self) -> None:
        """The session ends: its connection serves others."""
        connection = self.machine.connection
        if connection.closed:
            return
        for option in self._settings:
            run_command(connection, f"reset {option}".encode())
        if self._has_temporary:
            run_command(connection, b"discard temp")

    def define_temporary(self, sql: str) -> None:
        """What goes with the session, in PostgreSQL's own words."""
        self.define(sql)
        self._has_temporary = True

    def define(self, sql: str) -> None:
        """A definition in PostgreSQL's own words."""
        machine = self.machine
        machine.transactions.check()
        machine.transactions.guard()
        try:
            run_definition(machine.connection, sql)
        except BaseException:
            machine.transactions.undo()
            raise

    def insert_rows(self, target: str, rows: list[tuple[object, ...]]) -> None:
        """INSERT target of rows that a procedure has returned: one change to triggers.

        Raises:
            TsqlError: 213 a row has more or fewer values than there are columns.
        """
        machine = self.machine
        rows = rows[: machine.row_limit or None]
        if not rows:
            machine.changed(0)
            return
        frame = machine.frame
        given: dict[str, object] = {}
        lists: list[str] = []
        for row in rows:
            names = [f"@insert${len(given) + place}" for place in range(len(row))]
            given.update(zip(names, row, strict=True))
            lists.append(f"({', '.join(names)})")
        frame.values.update(given)
        frame.types.update((name, type_of(value) or NVARCHAR) for name, value in given.items())
        most = max(1, _PARAMETERS // len(rows[0]))
        try:
            parts = [self._of_values(target, lists[n : n + most]) for n in range(0, len(lists), most)]
            self._change(
                target,
                functools.partial(self._insert, parts, target),
                functools.partial(self._changed, parts[-1], target),
            )
        finally:
            for name in given:
                del frame.types[name], frame.values[name]

    def _of_values(self, target: str, lists: list[str]) -> Translated:
        try:
            return translate(f"{target} VALUES {', '.join(lists)}", self.scope())
        except TsqlError as error:
            if error.number not in (109, 110):
                raise
            other = TsqlError(213, "Column name or number of supplied values does not match table definition.", state=7)
            other.undoes = True
            raise other from None

    def _insert(self, parts: list[Translated], target: str) -> Result:
        results = [self._execute(done, target) for done in parts]
        return results[-1]._replace(touched=sum(result.touched for result in results))

    def behind(self, name: Name) -> Name:
        """What a synonym stands for; any other name is itself.

        Raises:
            TsqlError: 470 that is a synonym too, 7202 it is of another server.
        """
        database = name.database or self.machine.database.name
        if not self.synonyms.get(database.lower()):  # most databases have none, and each EXEC and RECEIVE asks
            return name
        return Writer(self.scope()).synonym(database, name.schema or "dbo", name.own) or name

    def table_named(self, name: Name) -> str:
        """The quoted PostgreSQL name of a table.

        Raises:
            TsqlError: 8197 there is none.
        """
        scope = self.scope()
        written = ".".join("[" + part.replace("]", "]]") + "]" if part else "" for part in name.parts)
        tables = tables_of(f"SELECT * FROM {written}", scope)
        if not tables or tables[0] not in self.columns:
            raise TsqlError(8197, f"The object '{name}' does not exist or is invalid for this operation.")
        return tables[0]

    def identity_insert(self, said: str) -> None:
        """SET IDENTITY_INSERT table ON or OFF."""
        name, value = said.rsplit(" ", 1)
        scope = self.scope()
        for use in translate(f"SELECT * FROM {name}", scope).uses:
            there = self.machine.context.named(use.database or self.machine.database.name)
            self.machine.allow(use._replace(statement="SET IDENTITY_INSERT"), database=there)
        tables = tables_of(f"SELECT * FROM {name}", scope)
        self._identity_insert = tables[0] if value == "ON" and tables else None


def _referred(uses: Collection[Use]) -> list[Use]:
    """The functions and sequences that a table names in its defaults and constraints are asked for as its keys are."""
    return [use._replace(statement="REFERENCES") if use.statement in ("EXECUTE", "UPDATE") else use for use in uses]


def _temporary(frame: Frame) -> dict[str, str]:
    return {name: table for name, table in frame.tables.items() if name.startswith("#")}


def _check_server(done: Translated, version: int) -> None:
    """Raises: TsqlError: 40515 the statement needs a newer server."""
    if done.server > version:
        raise unsupported(
            f"This form of MERGE on PostgreSQL {version}",
            f"It needs PostgreSQL {done.server}. Write INSERT, UPDATE and DELETE, each with OUTPUT.",
            0,
        )


def _check_most(done: Translated, result: Result) -> None:
    """Raises: TsqlError: 40515 it has changed more rows than it may, and PostgreSQL does not stop it."""
    if 0 < done.most < result.touched and done.kind == "assign":
        raise unsupported(
            "UPDATE with a variable that goes on from row to row", "Use ROW_NUMBER or SUM with OVER (ORDER BY ...).", 0
        )
    if 0 < done.most < result.touched:
        raise unsupported(
            f"MERGE that changes more than the {done.most} rows of SET ROWCOUNT",
            "Write the TOP into the query behind USING.", 0,
        )  # fmt: skip


def _of_session(machine: Machine) -> dict[str, str]:
    """What the connection is told of the session, by the settings."""
    original = machine.context.original_login
    return {
        USER: machine.database.user.name,
        LOGIN: machine.login,
        ORIGINAL_LOGIN: "" if original == machine.login else original,
        CONTEXT: session_context(machine) if machine.session_context else "",
        CONTEXT_INFO: (machine.context_info or b"").hex(),
    }


def _result_set(done: Translated, result: Result) -> ResultSet:
    names = done.columns
    if names is None:
        names = tuple("" if name == "?column?" else name for name in result.columns or ())
    return ResultSet(names, _shown(done, result.rows))


def _shown(done: Translated, rows: list[tuple[Any, ...]]) -> list[tuple[Any, ...]]:
    """Values of sql_variant as what they are."""
    places = [place for place, of in enumerate(done.types or ()) if of == VARIANT]
    if not places:
        return rows
    shown = [list(row) for row in rows]
    for row in shown:
        for place in places:
            row[place] = None if row[place] is None else out_of_variant(row[place])[0]
    return [tuple(row) for row in shown]


def _temporary_of(text: str) -> str:
    """The temporary table that a statement makes, in lower case, "" for none."""
    found = TEMPORARY.search(text) if _has(TEMPORARY, text) and not _has(_FILLS, text) else None
    return (found[1] or found[2]).lower() if found else ""


def _has(pattern: re.Pattern[str], text: str) -> bool:
    """Whether the pattern is found; remembered of texts that may come again."""
    return _searched(pattern, text) if len(text) <= LONG else pattern.search(text) is not None


@functools.lru_cache(maxsize=2000)
def _searched(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(text) is not None


@runs(Relational)
def _relational(machine: Machine, statement: Relational) -> None:
    """Run a statement; CREATE and ALTER in the database that they name, where types, keys and defaults are found."""
    name = database_of_definition(statement.text) if statement.verb.startswith(_DEFINING) else ""
    database = machine.context.named(name) if name else machine.context.database
    with machine.context.within(database):
        machine.queries.run(statement.text)
