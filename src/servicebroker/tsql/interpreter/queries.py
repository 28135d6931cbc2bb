"""Runs relational statements and expressions: translates, authorizes and executes them, and reports rows or counts."""

from __future__ import annotations

import functools
import re
from collections import ChainMap
from collections.abc import Callable, Collection, Mapping
from typing import Any, Literal

import psycopg

from servicebroker.engine.security.tsql_objects import ENTER, Use, authorize_queues, authorize_uses, forget
from servicebroker.model.names import bracketed, postgres_name
from servicebroker.store.direct import DescribedRows, run_command
from servicebroker.store.queue import quoted
from servicebroker.store.running import fetch
from servicebroker.tsql.conversion import convert, from_variant, read_offset
from servicebroker.tsql.date_texts import US_ENGLISH
from servicebroker.tsql.interpreter.call_frame import CallFrame
from servicebroker.tsql.interpreter.catalog_cache import Collations, Columns, Synonyms, UserFunctions, UserTypes
from servicebroker.tsql.interpreter.cursors import refresh_current_row
from servicebroker.tsql.interpreter.definitions import triggers
from servicebroker.tsql.interpreter.definitions.ddl_events import post_relation_events
from servicebroker.tsql.interpreter.evaluation import infer_type
from servicebroker.tsql.interpreter.implicit_transactions import begin_before_query
from servicebroker.tsql.interpreter.machine import Machine, runs
from servicebroker.tsql.interpreter.procedures.session_functions import (
    serialize_caught_error,
    serialize_session_context,
)
from servicebroker.tsql.interpreter.set_options import ISOLATION_NUMBERS, LOCKING_LEVELS, READ_COMMITTED
from servicebroker.tsql.interpreter.simple_expressions import Value
from servicebroker.tsql.interpreter.statement_runner import run_definition, run_statement
from servicebroker.tsql.interpreter.violations import translate_violation
from servicebroker.tsql.postgres_errors import from_postgres
from servicebroker.tsql.results import ResultSet
from servicebroker.tsql.scope import (
    CONTEXT,
    CONTEXT_INFO,
    DATE_FIRST_SETTING,
    DATE_ORDER_SETTING,
    ERROR,
    ISOLATION_SETTING,
    LOGIN,
    ORIGINAL_LOGIN,
    USER,
    Column,
    Scope,
)
from servicebroker.tsql.statement_errors import Message, TsqlError, condition_expected, unsupported
from servicebroker.tsql.syntax import Name, Relational
from servicebroker.tsql.translation.definitions.defined_names import database_of_definition
from servicebroker.tsql.translation.reading.syntax_tree import MAX_CACHED_CHARS
from servicebroker.tsql.translation.result import OutputTarget
from servicebroker.tsql.translation.rows.current_rows import CURRENT_OF_PREFIX
from servicebroker.tsql.translation.text_writer import (
    ExtraStatement,
    Writer,
    postgres_schema,
    quote_identifier,
    quote_string,
)
from servicebroker.tsql.translation.values.expressions import CONDITION_TYPE
from servicebroker.tsql.translator import TEMPORARY, Translation, tables_of, translate, translate_expression
from servicebroker.tsql.types import NVARCHAR, VARIANT, SqlType

# statements whose INTO names an existing table
_FILLS_EXISTING_TABLE = re.compile(r"\A\s*(?:with\b.*?\b)?(?:insert|merge|update|delete)\b", re.IGNORECASE | re.DOTALL)
_CHANGES_ROWS = re.compile(r"\A\s*(?:insert|update|delete|merge|with)\b", re.IGNORECASE)
_MAY_READ_SESSION = re.compile(
    r"\b(?:insert|update|merge|into|transmission_queue|(?:user|login)_token|dm_exec_(?:sessions|requests)|sysprocesses)\b",
    re.IGNORECASE,
)
_MAY_READ_CATALOG = re.compile(
    r"\b(?:sys|information_schema)\s*\.|\bsys\w+\b|_id\s*\(|_name\s*\(|property\s*\(", re.IGNORECASE
)
# Catalog views in translated SQL, where synonyms are resolved
_CATALOG_VIEW = re.compile(r"(?:FROM|JOIN) (?:sys|tsql)\.\w+ AS ")
_MAX_PARAMETERS = 20_000  # per statement; the limit of PostgreSQL is 65,535
_DEFINING_VERBS = ("CREATE ", "ALTER ")  # they run in the database of the name that they define
_COLUMN_ERRORS = ("UndefinedTable", "UndefinedColumn", "DatatypeMismatch", "FeatureNotSupported")
_LOCK_TIMEOUT = "lock_timeout"  # the setting of SET LOCK_TIMEOUT
_STRING_TOO_LONG = "22001"  # SQLSTATE
_STALE_PLAN_TEXT = "cached plan must not change result type"


class Queries:
    """The queries of one session, with the catalog caches and settings that they need."""

    def __init__(self, machine: Machine) -> None:
        self.machine = machine
        self.columns = Columns(machine)
        self.user_functions = UserFunctions(machine)
        self.user_types = UserTypes(machine)
        self.synonyms = Synonyms(machine)
        self.collations = Collations(machine)
        self._shown_database: str | None = None  # the database in which the sys views list objects
        self._sent_settings: dict[str, str] | None = None  # values by setting, as last sent to PostgreSQL
        self._identity_insert: str | None = None
        self._changed_settings: set[str] = set()
        self._table_count = 0
        self._has_temporary_objects = False

    def scope(self, row_limit: int = 0) -> Scope:
        """Return the names that a statement may use now.

        `row_limit` is the maximum number of rows that the statement returns or changes; 0 for no limit.
        """
        machine = self.machine
        return Scope(
            machine.database.name,
            machine.frame.types,
            self._visible_tables(),
            machine.functions,
            self.columns,
            self._identity_insert,
            self.user_functions,
            user_types=self.user_types,
            synonyms=self.synonyms,
            read_only={machine.frame.tables[name]: name for name in machine.frame.caller_tables},
            collations=self.collations,
            row_limit=row_limit,
            date_first=machine.dates.first,
        )

    def _visible_tables(self) -> Mapping[str, str]:
        """Return the tables of the current frame, and the temporary tables of the frames that called it."""
        frames = self.machine.frames
        if len(frames) < 2:
            return self.machine.frame.tables
        outer = [_temporary_tables(frame) for frame in reversed(frames[:-1])]
        return ChainMap(self.machine.frame.tables, *outer)

    # ------------------------------------------------------------ running

    def run(self, text: str) -> None:
        """Run a statement, emit or assign its rows, and record its row count."""
        try:
            self._run_translated(text)
        except psycopg.errors.FeatureNotSupported as error:
            if _STALE_PLAN_TEXT not in str(error):
                raise
            self._run_translated(text)  # a prepared plan is stale: the columns of the table have changed

    def _run_translated(self, text: str) -> None:
        """Run a statement. On an error, remove the name that was chosen for its temporary table."""
        machine = self.machine
        shadow = self._shadow_callers_table(text)
        try:
            self._run_in_scope(text)
        except BaseException:
            machine.frame.tables.pop(shadow, None)
            raise

    def _shadow_callers_table(self, text: str) -> str:
        """If the statement creates a temporary table whose name a caller's table has, choose another PostgreSQL name.

        Return the name in T-SQL; "" if no name was chosen.
        """
        name = _created_temporary_table(text)
        *outer, frame = self.machine.frames or [self.machine.frame]
        if (
            not name
            or name.startswith("##")
            or name in frame.tables
            or not any(name in caller.tables for caller in outer)
        ):
            return ""
        self._table_count += 1
        frame.tables[name] = f'pg_temp."{name[:40]}_{self._table_count}"'
        return name

    def _run_in_scope(self, text: str) -> None:
        """Run a statement. Under WITH RESULT SETS, which may refuse rows, a change with OUTPUT is atomic."""
        machine = self.machine
        translation = translate(text, self.scope(machine.row_limit))
        begin_before_query(machine, translation)
        if translation.kind != "rows":
            machine.transactions.check_not_doomed()
        has_changes = translation.kind != "ddl" and _matches(_CHANGES_ROWS, text)
        if has_changes and machine.result_sets_depth and (translation.kind == "rows" or translation.columns):  # OUTPUT
            with machine.atomic():
                self._run_translation(translation, text, changes=has_changes)
            return
        self._run_translation(translation, text, changes=has_changes)

    def _run_translation(self, translation: Translation, text: str, *, changes: bool) -> None:
        run_query = functools.partial(self._execute, translation, text)
        handle = functools.partial(self._handle_result, translation, text)
        if changes:
            self._run_with_triggers(text, run_query, handle, translation.output_target)
        elif handle(run_query()):
            self.machine.emit_row_count()

    def _run_with_triggers(
        self,
        text: str,
        run_query: Callable[[], DescribedRows],
        handle: Callable[[DescribedRows], bool],
        output_target: OutputTarget | None = None,
    ) -> None:
        """Run a change, handle its result, and fire its triggers. An error undoes all of them.

        The row count is emitted after the triggers, since a trigger may undo the change.

        Raises:
            TsqlError: 334 OUTPUT returns rows of a table that has a trigger for the change.
        """
        machine = self.machine
        if triggers.has_triggers(machine):
            if output_target is not None:
                triggers.check_output(machine, output_target)
            with machine.transaction_scope():
                triggers.start_capture(machine)
                result = run_query()
                captured_changes = triggers.finish_capture(machine)
                touched = result.touched + triggers.count_diverted_rows(machine, captured_changes)
                has_count = handle(result._replace(touched=touched))
                triggers.fire(machine, text, captured_changes)
        else:
            has_count = handle(run_query())
        if has_count:
            machine.emit_row_count()

    def _handle_result(self, translation: Translation, text: str, result: DescribedRows) -> bool:
        """Handle the result of a statement by its kind: emit or assign rows, or record the row count.

        Return True if the caller must emit the row count.
        """
        machine = self.machine
        if translation.kind == "ddl":
            for use in translation.uses:
                if use.statement in ("DROP TABLE", "DROP VIEW", "DROP SEQUENCE"):
                    user = machine.context.database_named(use.database or machine.database.name).user
                    machine.context.ask(forget(user, use.schema, use.name))
            self.columns.invalidate()
            self._record_temporary_table(text)
            self._restore_diversions(translation)
            post_relation_events(machine, translation.uses, text)
            for note in translation.notes:
                machine.emit(Message(note))
            machine.record_success(0)
        elif translation.kind == "assign":
            if result.rows:
                last = _unwrap(translation, result.rows[-1:], with_variants=False)[0]
                for name, value in zip(translation.assignments, last, strict=False):
                    machine.frame.values[name] = value
            machine.record_success(len(result.rows))
        elif translation.kind == "rows" and translation.identity is None:
            machine.emit(_result_set(translation, result))
            machine.record_success(len(result.rows))
        else:
            return self._record_change(translation, text, result)
        return False

    def _restore_diversions(self, translation: Translation) -> None:
        """Install INSTEAD OF triggers again on an altered view, because PostgreSQL creates a new view."""
        for use in translation.uses:
            if use.statement in ("ALTER VIEW", "CREATE OR ALTER VIEW") and triggers.has_triggers(self.machine):
                database = use.database or self.machine.database.name
                triggers.install_diversions(
                    self.machine, f"{postgres_schema(database, use.schema)}.{quoted(postgres_name(use.name))}"
                )

    def _record_change(self, translation: Translation, text: str, result: DescribedRows) -> Literal[True]:
        """Record the IDENTITY value and the row count of a change, and emit the rows of OUTPUT."""
        machine = self.machine
        rows = result.rows
        if translation.identity is not None:
            if rows:
                machine.identity = machine.scope_identity = rows[-1][translation.identity]
            rows = [row[: translation.identity] + row[translation.identity + 1 :] for row in rows]
        if translation.columns:
            machine.emit(ResultSet(translation.columns, rows, _types_of_output(translation)))
        self._record_temporary_table(text)
        machine.record_success(result.touched)
        return True

    def fetch_result(self, text: str, row_limit: int = 0) -> ResultSet:
        """Return the rows of a query, for the interpreter's own use, at most `row_limit` rows unless it is 0."""
        translation = translate(text, self.scope(row_limit))
        return _result_set(translation, self._execute(translation, text))

    def evaluate_scalar(self, text: str) -> Value:
        """Return the value and type of an expression."""
        translation = translate_expression(text, self.scope())
        begin_before_query(self.machine, translation)
        rows = _unwrap(translation, self._execute(translation, text).rows, with_variants=False)
        return Value(rows[0][0] if rows else None, translation.types[0] if translation.types else None)

    def evaluate_condition(self, text: str) -> bool:
        """Return True if a condition is true, False if it is false or unknown.

        Raises:
            TsqlError: 4145 the expression is not a condition.
        """
        value, type_ = self.evaluate_scalar(text)
        if type_ != CONDITION_TYPE:
            raise condition_expected(text)
        return value is True

    def authorize(self, uses: Collection[Use], *, is_module: bool) -> None:
        """Check that the current user may make these uses of tables and other objects.

        Ownership chaining: a module uses objects of its own database with dbo's rights, so they need no permission.
        Objects that a view or function uses in another database are checked for its author, when it is created, because
        PostgreSQL runs it for every reader.
        """
        machine, context = self.machine, self.machine.context
        for name in {use.database for use in uses}:
            own_uses = [use for use in uses if use.database == name]
            definitions = [use for use in own_uses if use.defines]
            accesses = [use for use in own_uses if not use.defines]
            if context.server_login.is_administrator if name else context.database.user.is_dbo:
                accesses = []
            if not definitions and not accesses:
                continue
            database = context.database_named(name) if name else context.database
            accesses = [use for use in accesses if use.statement != ENTER]
            if definitions:
                machine.authorize(*definitions, database=database)
            if accesses:
                is_chained = is_module and not name
                context.ask((authorize_queues if is_chained else authorize_uses)(database.user, accesses))

    def _execute(self, translation: Translation, text: str) -> DescribedRows:
        """Authorize and execute a translated statement, with the statements that must run before and after it.

        Outside a transaction, several statements run in a transaction of their own. An error undoes all of them.
        """
        machine = self.machine
        if translation.uses:
            is_view = translation.kind == "ddl" and any(use.statement.endswith(" VIEW") for use in translation.uses)
            uses = _as_references(translation.uses) if translation.kind == "ddl" and not is_view else translation.uses
            self.authorize(uses, is_module=machine.frame.is_module or is_view)
        _check_server(translation, machine.connection.info.server_version // 10_000)
        self._set_shown_database(text, translation)
        self._send_session_settings(text)
        machine.transactions.set_guard()
        preparations = self._read_locks(translation) + translation.before
        cursors = (
            [name for name in translation.parameters if name.startswith(CURRENT_OF_PREFIX)]
            if _matches(_CHANGES_ROWS, text)
            else []
        )
        is_own_transaction = (
            bool(preparations or translation.after or cursors or translation.max_rows)
            and not machine.transactions.count
        )
        try:
            if is_own_transaction:
                run_command(machine.connection, b"begin")
            for statement in preparations:
                run_statement(machine.connection, statement.sql, self._parameter_values(statement.parameters))
            if translation.kind == "ddl":
                run_definition(machine.connection, translation.sql)
                result = DescribedRows(None, [], 0)
            else:
                result = run_statement(
                    machine.connection, translation.sql, self._parameter_values(translation.parameters)
                )
            _check_row_limit(translation, result)
            for name in cursors[:1]:
                refresh_current_row(machine, name.removeprefix(CURRENT_OF_PREFIX), result.touched)
            for statement in translation.after:
                run_statement(machine.connection, statement.sql, self._parameter_values(statement.parameters))
            if is_own_transaction:
                run_command(machine.connection, b"commit")
        except BaseException as error:
            if is_own_transaction and not machine.connection.closed:
                machine.connection.rollback()
            machine.transactions.undo_statement()
            if isinstance(error, psycopg.Error) and type(error).__name__ in _COLUMN_ERRORS:
                self.columns.invalidate()
            violation_error = translate_violation(machine, error, text) if isinstance(error, psycopg.Error) else None
            if violation_error is None and getattr(error, "sqlstate", None) == _STRING_TOO_LONG:
                violation_error = self._explain_truncation(text)
            if violation_error is not None:
                raise violation_error from None
            raise
        return result

    def _explain_truncation(self, text: str) -> TsqlError | None:
        """Find the column for which a string was too long: run the failed change again with checks, and undo it.

        Return error 2628 with the column; None if the string was not written by the statement itself.
        """
        machine = self.machine
        if machine.transactions.is_lost or machine.connection.closed:
            return None
        scope = self.scope(machine.row_limit)
        scope.explains_truncation = True
        is_inside = bool(machine.transactions.count)
        try:
            translation = translate(text, scope)
            run_command(machine.connection, b"savepoint tsql_explained" if is_inside else b"begin")
        except TsqlError:  # the text of INSERT ... EXEC has no rows
            return None
        try:
            run_statement(machine.connection, translation.sql, self._parameter_values(translation.parameters))
        except psycopg.Error as error:
            return from_postgres(error, text) if error.sqlstate == "S2628" else None
        finally:
            run_command(machine.connection, b"rollback to savepoint tsql_explained" if is_inside else b"rollback")
            if is_inside:
                run_command(machine.connection, b"release savepoint tsql_explained")
        return None

    def _read_locks(self, translation: Translation) -> tuple[ExtraStatement, ...]:
        """Return statements that lock the tables to read, under REPEATABLE READ and SERIALIZABLE.

        A SELECT outside a transaction needs no lock: it reads one snapshot, and no other statement follows.
        """
        machine = self.machine
        is_last = translation.kind == "rows" and not machine.transactions.count
        if machine.isolation not in LOCKING_LEVELS or is_last or translation.kind == "ddl":
            return ()
        return tuple(
            ExtraStatement(f"SELECT tsql.hold({quote_string(table)})", ()) for table in translation.tables_read
        )

    def _parameter_values(self, names: tuple[str, ...]) -> tuple[object, ...]:
        """Return the values of the variables and session functions with these names, in order."""
        frame, functions = self.machine.frame, self.machine.functions
        return tuple(frame.values[name] if name in frame.types else functions[name] for name in names)

    def _set_shown_database(self, text: str, translation: Translation) -> None:
        """Set the database of the sys views on the connection, before the first statement that may read them."""
        name = self.machine.database.name
        if self._shown_database != name and (
            _matches(_MAY_READ_CATALOG, text) or _matches(_CATALOG_VIEW, translation.sql)
        ):
            self.set_setting("servicebroker.database", name)
            self._shown_database = name

    def _send_session_settings(self, text: str) -> None:
        """Send user, login and other session values to the connection, for column defaults, functions and views.

        They are sent before the first statement that may read them. For a user other than dbo, they are always sent.
        """
        may_read = (
            self._sent_settings is not None
            or self.user_functions.has_called_any
            or self.machine.dates != US_ENGLISH
            or self.machine.isolation != READ_COMMITTED
            or not self.machine.database.user.is_dbo
        )
        if not (may_read or _matches(_MAY_READ_SESSION, text)):
            return
        settings = _session_settings(self.machine)
        sent = dict.fromkeys(self._changed_settings, None) if self._sent_settings is None else self._sent_settings
        for setting, value in settings.items():
            if value != sent.get(setting, ""):
                self.set_setting(setting, value)
        self._sent_settings = settings

    def set_setting(self, setting: str, value: str) -> None:
        """Change a setting of the connection until the session ends."""
        self._changed_settings.add(setting)
        fetch(self.machine.connection, "queries.set_setting", "select set_config($1, $2, false)", (setting, value))

    @property
    def has_session_state(self) -> bool:
        """True if the connection holds temporary objects or settings that the session needs later."""
        return (
            self._has_temporary_objects or self._identity_insert is not None or _LOCK_TIMEOUT in self._changed_settings
        )

    def invalidate_all(self) -> None:
        """Discard cached tables, functions, types and settings, which a ROLLBACK may have changed back."""
        self._shown_database = self._sent_settings = None
        self.columns.invalidate()
        self.user_functions.invalidate()
        self.user_types.invalidate()
        self.synonyms.invalidate()
        self.collations.invalidate()

    # ------------------------------------------------------------ temporary tables

    def declare_table(self, frame: CallFrame, name: str, columns: str) -> None:
        """Run DECLARE @name TABLE: create a temporary table, which is dropped when the frame ends."""
        if name in frame.tables:
            return
        self._table_count += 1
        table = f'pg_temp."{name[:40]}_{self._table_count}"'
        self.create_table(table, columns)
        frame.tables[name], frame.table_definitions[name] = table, columns

    def create_table(self, table: str, columns: str) -> None:
        """Create the temporary table for a table variable."""
        scope = self.scope()
        scope.tables = {"#variable": table}
        translation = translate(f"CREATE TABLE #variable {columns}", scope)
        self._execute(translation, "")
        self._has_temporary_objects = True

    def insert_row(self, table: str, columns: list[Column], row: list[Value]) -> None:
        """Insert one row into a table of the session, and convert each value to the type of its column."""
        values = tuple(
            value.value if value.value is None else convert(value.value, value.type, column.type)
            for column, value in zip(columns, row, strict=True)
        )
        placeholders = ", ".join(f"${number}" for number in range(1, len(values) + 1))
        names = ", ".join(quote_identifier(column.name) for column in columns)
        run_statement(self.machine.connection, f"insert into {table} ({names}) values ({placeholders})", values)

    def _record_temporary_table(self, text: str) -> None:
        """Record the temporary table that a statement has created in its frame.

        A ## table is recorded in the outermost frame.
        """
        name = _created_temporary_table(text)
        if name:
            self._has_temporary_objects = True
            frame = self.machine.frames[0] if name.startswith("##") else self.machine.frame
            frame.tables.setdefault(name, f'pg_temp."{name}"')

    def drop_tables(self, frame: CallFrame) -> None:
        """Drop the tables of a frame that ends."""
        owned = [table for name, table in frame.tables.items() if name not in frame.caller_tables]
        if owned and not self.machine.connection.closed:
            tables = ", ".join(owned)
            self.machine.transactions.release_guard()
            run_command(self.machine.connection, f"drop table if exists {tables}".encode())
            self.columns.invalidate()

    def close(self) -> None:
        """Reset settings and drop temporary objects, before the connection returns to the pool."""
        connection = self.machine.connection
        if connection.closed:
            return
        for setting in self._changed_settings:
            run_command(connection, f"reset {setting}".encode())
        if self._has_temporary_objects:
            run_command(connection, b"discard temp")

    def define_temporary(self, sql: str) -> None:
        """Run a definition, in PostgreSQL's SQL, of an object that is dropped with the session."""
        self.define(sql)
        self._has_temporary_objects = True

    def define(self, sql: str) -> None:
        """Run a definition in PostgreSQL's SQL."""
        machine = self.machine
        machine.transactions.check_not_doomed()
        machine.transactions.set_guard()
        try:
            run_definition(machine.connection, sql)
        except BaseException:
            machine.transactions.undo_statement()
            raise

    def insert_rows(self, target: str, rows: list[tuple[object, ...]]) -> None:
        """Insert the rows that the procedure of INSERT ... EXEC returned. Triggers fire once for all rows.

        Raises:
            TsqlError: 213 a row has more or fewer values than the table has columns.
        """
        machine = self.machine
        rows = rows[: machine.row_limit or None]
        if not rows:
            machine.record_success(0)
            machine.emit_row_count()
            return
        frame = machine.frame
        parameters: dict[str, object] = {}
        lists: list[str] = []
        for row in rows:
            names = [f"@insert${len(parameters) + index}" for index in range(len(row))]
            parameters.update(zip(names, row, strict=True))
            lists.append(f"({', '.join(names)})")
        frame.values.update(parameters)
        frame.types.update((name, infer_type(value) or NVARCHAR) for name, value in parameters.items())
        rows_per_part = max(1, _MAX_PARAMETERS // len(rows[0]))
        try:
            parts = [
                self._translate_values(target, lists[start : start + rows_per_part])
                for start in range(0, len(lists), rows_per_part)
            ]
            self._run_with_triggers(
                target,
                functools.partial(self._insert_parts, parts, target),
                functools.partial(self._record_change, parts[-1], target),
            )
        finally:
            for name in parameters:
                del frame.types[name], frame.values[name]

    def _translate_values(self, target: str, value_lists: list[str]) -> Translation:
        """Translate the INSERT with the rows as VALUES. For INSERT ... EXEC, a wrong number of values is error 213."""
        try:
            return translate(f"{target} VALUES {', '.join(value_lists)}", self.scope())
        except TsqlError as error:
            if error.number not in (109, 110, 213):
                raise
            mismatch = TsqlError(
                213, "Column name or number of supplied values does not match table definition.", state=7
            )
            mismatch.undoes = True
            raise mismatch from None

    def _insert_parts(self, parts: list[Translation], target: str) -> DescribedRows:
        """Execute the parts of an INSERT, and return the last result with the row count of all parts."""
        results = [self._execute(translation, target) for translation in parts]
        return results[-1]._replace(touched=sum(result.touched for result in results))

    def resolve_synonym(self, name: Name) -> Name:
        """Return the base object of a synonym. Any other name is returned unchanged.

        Raises:
            TsqlError: 470 the synonym names another synonym, 7202 it names another server.
        """
        database = name.database or self.machine.database.name
        if not self.synonyms.get(database.lower()):  # fast path: every EXEC and RECEIVE comes here
            return name
        return Writer(self.scope()).synonym(database, name.schema or "dbo", name.object) or name

    def find_table(self, name: Name) -> str:
        """Return the quoted PostgreSQL name of a table.

        Raises:
            TsqlError: 8197 there is no such table.
        """
        scope = self.scope()
        tables = tables_of(f"SELECT * FROM {bracketed(*name.parts)}", scope)
        if not tables or tables[0] not in self.columns:
            raise TsqlError(8197, f"The object '{name}' does not exist or is invalid for this operation.")
        return tables[0]

    def set_identity_insert(self, argument: str) -> None:
        """Run SET IDENTITY_INSERT table ON or OFF."""
        name, state = argument.rsplit(" ", 1)
        scope = self.scope()
        for use in translate(f"SELECT * FROM {name}", scope).uses:
            database = self.machine.context.database_named(use.database or self.machine.database.name)
            self.machine.authorize(use._replace(statement="SET IDENTITY_INSERT"), database=database)
        tables = tables_of(f"SELECT * FROM {name}", scope)
        self._identity_insert = tables[0] if state == "ON" and tables else None


def _as_references(uses: Collection[Use]) -> list[Use]:
    """Require REFERENCES on functions and sequences in a table's defaults and constraints, as on foreign keys."""
    return [use._replace(statement="REFERENCES") if use.statement in ("EXECUTE", "UPDATE") else use for use in uses]


def _temporary_tables(frame: CallFrame) -> dict[str, str]:
    return {name: table for name, table in frame.tables.items() if name.startswith("#")}


def _check_server(translation: Translation, version: int) -> None:
    """Refuse a statement that needs a newer server.

    Raises:
        TsqlError: 40515 the server is too old.
    """
    if translation.min_server_version > version:
        raise unsupported(
            f"This form of MERGE on PostgreSQL {version}",
            f"It needs PostgreSQL {translation.min_server_version}. Write INSERT, UPDATE and DELETE, each with OUTPUT.",
            0,
        )


def _check_row_limit(translation: Translation, result: DescribedRows) -> None:
    """Refuse a statement that changed more rows than its limit, which PostgreSQL does not apply to it.

    Raises:
        TsqlError: 40515 too many rows.
    """
    if 0 < translation.max_rows < result.touched and translation.kind == "assign":
        raise unsupported(
            "UPDATE with a variable that goes on from row to row", "Use ROW_NUMBER or SUM with OVER (ORDER BY ...).", 0
        )
    if 0 < translation.max_rows < result.touched:
        raise unsupported(
            f"MERGE that changes more than the {translation.max_rows} rows of SET ROWCOUNT",
            "Write TOP into the query after USING.", 0,
        )  # fmt: skip


def _session_settings(machine: Machine) -> dict[str, str]:
    """Return the session's values by setting, for `_send_session_settings`; "" for a default."""
    original = machine.context.original_login
    return {
        USER: machine.database.user.name,
        LOGIN: machine.login,
        ORIGINAL_LOGIN: "" if original == machine.login else original,
        CONTEXT: serialize_session_context(machine) if machine.session_context else "",
        CONTEXT_INFO: (machine.context_info or b"").hex(),
        DATE_ORDER_SETTING: "" if machine.dates.order == US_ENGLISH.order else machine.dates.order,
        DATE_FIRST_SETTING: "" if machine.dates.first == US_ENGLISH.first else str(machine.dates.first),
        ISOLATION_SETTING: "" if machine.isolation == READ_COMMITTED else str(ISOLATION_NUMBERS[machine.isolation]),
        ERROR: serialize_caught_error(machine) if machine.caught_errors else "",
    }


def _result_set(translation: Translation, result: DescribedRows) -> ResultSet:
    names = translation.columns
    if names is None:
        names = tuple("" if name == "?column?" else name for name in result.columns or ())
    return ResultSet(names, _unwrap(translation, result.rows, with_variants=True), translation.types)


def _types_of_output(translation: Translation) -> tuple[SqlType | None, ...] | None:
    """Return the types of the columns of OUTPUT, without that of the IDENTITY value."""
    types, identity = translation.types, translation.identity
    return types if types is None or identity is None else types[:identity] + types[identity + 1 :]


def _unwrap(translation: Translation, rows: list[tuple[Any, ...]], *, with_variants: bool) -> list[tuple[Any, ...]]:
    """Return rows with each datetimeoffset in its own offset, and each sql_variant replaced by the value inside."""
    readers: dict[int, Callable[[Any], object]] = {}
    for position, type_ in enumerate(translation.types or ()):
        if type_ == VARIANT and with_variants:
            readers[position] = lambda value: from_variant(value)[0]
        elif type_ is not None and type_.name == "datetimeoffset":
            readers[position] = read_offset
    if not readers:
        return rows
    unwrapped = [list(row) for row in rows]
    for row in unwrapped:
        for position, read in readers.items():
            row[position] = None if row[position] is None else read(row[position])
    return [tuple(row) for row in unwrapped]


def _created_temporary_table(text: str) -> str:
    """Return the name of the temporary table that a statement creates, in lower case; "" if it creates none."""
    match = TEMPORARY.search(text) if _matches(TEMPORARY, text) and not _matches(_FILLS_EXISTING_TABLE, text) else None
    return (match[1] or match[2]).lower() if match else ""


def _matches(pattern: re.Pattern[str], text: str) -> bool:
    """Return True if the pattern occurs in the text. Results for short texts, which are often repeated, are cached."""
    return _matches_cached(pattern, text) if len(text) <= MAX_CACHED_CHARS else pattern.search(text) is not None


@functools.lru_cache(maxsize=2000)
def _matches_cached(pattern: re.Pattern[str], text: str) -> bool:
    return pattern.search(text) is not None


@runs(Relational)
def _relational(machine: Machine, statement: Relational) -> None:
    """Run a relational statement.

    CREATE and ALTER of an object run in the object's database, where types and defaults are looked up.
    """
    name = database_of_definition(statement.text) if statement.keyword.startswith(_DEFINING_VERBS) else ""
    database = machine.context.database_named(name) if name else machine.context.database
    with machine.context.within(database):
        machine.queries.run(statement.text)
