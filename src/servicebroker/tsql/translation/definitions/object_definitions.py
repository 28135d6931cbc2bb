"""CREATE, ALTER and DROP of tables, indexes, views and schemas; TRUNCATE TABLE; UPDATE(column) in triggers."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from sqlglot import exp

from servicebroker.model import names
from servicebroker.store.queue import quoted
from servicebroker.tsql.definition_errors import follow
from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.tokens import unquote
from servicebroker.tsql.translation.definitions.sequences import (
    alter_sequence,
    create_sequence,
    nested_next_value_error,
)
from servicebroker.tsql.translation.definitions.table_columns import (
    ONE_NULL,
    Elements,
    check_names,
    column_comments,
    constraint_statements,
    inline_settings,
    key_columns,
    read_collation,
    read_column_type,
    read_elements,
    read_key_column,
    rowversion_triggers,
    skip_storage,
    write_condition,
)
from servicebroker.tsql.translation.queries.results import columns_of
from servicebroker.tsql.translation.queries.selects import translate_query
from servicebroker.tsql.translation.queries.selects_into import TEMPORARY
from servicebroker.tsql.translation.queries.sources import ObjectName, object_name, table_name
from servicebroker.tsql.translation.reading.parts import read_names, read_table
from servicebroker.tsql.translation.reading.piece_reader import PieceReader
from servicebroker.tsql.translation.reading.syntax_tree import Slice, parse_slice
from servicebroker.tsql.translation.result import Translation
from servicebroker.tsql.translation.text_writer import (
    Sql,
    Writer,
    not_permitted,
    not_supported,
    postgres_schema,
    quote_identifier,
    quote_string,
)
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import BIT, STRINGS, VARCHAR, SqlType, column_type


def translate_definition(writer: Writer, piece: Slice) -> Translation:
    """Translate a definition to a sequence of statements without parameters."""
    reader = PieceReader(piece)
    statements = _statements(writer, reader)
    if reader.word:
        raise reader.failure()
    if writer.parameters:
        raise not_permitted(writer.parameters[0], 111 if piece.words[1:2] == ["VIEW"] else 128)
    return Translation("; ".join(statements), (), "ddl", notes=tuple(writer.notes))


def _statements(writer: Writer, reader: PieceReader) -> list[str]:
    """Translate a definition by its first words."""
    keyword = reader.word
    reader.at = 1
    if keyword == "TRUNCATE" and reader.take("TABLE"):
        return [f"TRUNCATE {_read_table(writer, reader, 'TRUNCATE TABLE')[0]} RESTART IDENTITY"]
    if keyword == "CREATE" and reader.take("TABLE"):
        return _create_table(writer, reader)
    if keyword == "ALTER" and reader.take("TABLE"):
        return _alter_table(writer, reader)
    if keyword == "CREATE" and reader.take("OR", "ALTER", "VIEW"):
        return _create_view(writer, reader, "CREATE OR ALTER VIEW")
    if reader.take("VIEW") and keyword != "DROP":
        return _create_view(writer, reader, f"{keyword} VIEW")
    if keyword == "CREATE" and reader.word in ("UNIQUE", "CLUSTERED", "NONCLUSTERED", "INDEX"):
        return _create_index(writer, reader)
    if keyword == "CREATE" and reader.take("SCHEMA"):
        return _create_schema(writer, reader)
    if keyword == "CREATE" and reader.take("SEQUENCE"):
        return create_sequence(writer, reader)
    if keyword == "DROP":
        reader.at = 1
        return _drop(writer, reader)
    if keyword == "ALTER" and reader.take("SEQUENCE"):
        return alter_sequence(writer, reader)
    raise reader.failure()


def _read_table(writer: Writer, reader: PieceReader, *statements: str) -> tuple[str, ObjectName]:
    """Read a table's name, and record that `statements` use the table."""
    qualified_name = object_name(read_table(reader.dotted()))
    if "CREATE TABLE" in statements and qualified_name.name.startswith("#"):
        temporary_name = writer.temporary(qualified_name.name.lower())
        return temporary_name or TEMPORARY.format(qualified_name.name.lower().replace('"', '""')), qualified_name
    table = table_name(writer, qualified_name)
    writer.record_use(table, *statements)
    return table, qualified_name


def _create_table(writer: Writer, reader: PieceReader) -> list[str]:
    """Write CREATE TABLE, with comments, triggers and indexes as further statements."""
    table, qualified_name = _read_table(writer, reader, "CREATE TABLE")
    table_elements = read_elements(writer, table, reader.inside(), qualified_name.name)
    skip_storage(reader)
    if not table_elements.columns:
        raise TsqlError(102, "Incorrect syntax near ')'. A table needs a column.", severity=15)
    _note_offsets(writer, qualified_name, table_elements.columns)
    statements = []
    is_temporary = qualified_name.name.startswith(("#", "@"))
    if not is_temporary and qualified_name.schema.lower() in ("", "dbo"):
        statements.append(
            f"CREATE SCHEMA IF NOT EXISTS {postgres_schema(qualified_name.database or writer.scope.database, '')}"
        )
    statements += check_names(writer, qualified_name, table_elements)
    _check_keys(writer, table, qualified_name, table_elements)
    kind = "TEMPORARY TABLE" if is_temporary else "TABLE"
    statements.append(f"CREATE {kind} {table} ({', '.join(table_elements.members)})")
    if not is_temporary:
        statements.append(f"COMMENT ON TABLE {table} IS {quote_string(qualified_name.name)}")
    return [
        *statements,
        *column_comments(table, table_elements.columns),
        *constraint_statements(writer, table, table_elements),
        *rowversion_triggers(table, table_elements),
        *_create_indexes(writer, table, qualified_name, table_elements),
    ]


def _check_keys(writer: Writer, table: str, qualified_name: ObjectName, table_elements: Elements) -> None:
    """Refuse keys with a column of a large type.

    Raises:
        TsqlError: 1919 such a key, followed by 1750.
    """
    known = {**(writer.table_columns(table) or {}), **{column.name: column for column in table_elements.columns}}
    for member in (*table_elements.members, *table_elements.table_constraints):
        try:
            _check_key_types(known, [(name, "") for name in key_columns(member)], qualified_name.name)
        except TsqlError as error:
            raise follow(error) from None


def _note_offsets(writer: Writer, qualified_name: ObjectName, columns: Iterable[Column]) -> None:
    """Tell that columns of the type datetimeoffset lose the offset, except those of a temporary table."""
    names = [column.name for column in columns if column.type.name == "datetimeoffset"]
    if names and not qualified_name.name.startswith(("#", "@")):
        writer.notes.append(f"{qualified_name}: {LOST_OFFSETS} Columns: {', '.join(names)}.")


LOST_OFFSETS = "A datetimeoffset column keeps the instant and returns it in UTC: it does not keep the offset."


def _create_indexes(writer: Writer, table: str, qualified_name: ObjectName, table_elements: Elements) -> list[str]:
    known = [*table_elements.columns, *(writer.table_columns(table) or {}).values()]
    return [
        text
        for name, unique, columns in table_elements.indexes
        for text in (
            f"CREATE {'UNIQUE ' if unique else ''}INDEX {_index_name(qualified_name, name)} ON {table} "
            f"({', '.join(_folded_keys(writer, known, columns))}){f' {ONE_NULL}' if unique else ''}",
            _index_comment(table, qualified_name, name),
        )
    ]


def _folded_keys(writer: Writer, columns: Iterable[Column], keys: Iterable[str]) -> list[str]:
    """Write the columns of an index, so that comparisons that ignore case use it."""
    folded = {quote_identifier(column.name) for column in columns if writer.keys_ignore_case(column)}
    split = ((key, key.removesuffix(" DESC")) for key in keys)
    return [f"lower({name}){key[len(name) :]}" if name in folded else key for key, name in split]


def _index_name(qualified_name: ObjectName, name: str) -> str:
    """Return the PostgreSQL name of an index.

    It includes the table, since index names are unique per table in T-SQL and per schema in PostgreSQL.
    """
    return quoted(names.postgres_name(qualified_name.name, name))


def _index_comment(table: str, qualified_name: ObjectName, name: str) -> str:
    """Return the statement that stores the spelling of an index's name, for errors."""
    schema = table.rsplit(".", 1)[0] + "." if "." in table else ""
    return f"COMMENT ON INDEX {schema}{_index_name(qualified_name, name)} IS {quote_string(name)}"


def _alter_table(writer: Writer, reader: PieceReader) -> list[str]:
    """Write ALTER TABLE."""
    table, qualified_name = _read_table(writer, reader, "ALTER TABLE")
    checks = not reader.take("WITH", "NOCHECK")
    checks_again = reader.take("WITH", "CHECK")
    if reader.take("ADD"):
        return _add_members(writer, reader, table, qualified_name, checks=checks)
    if reader.take("ALTER", "COLUMN"):
        return _alter_column(writer, reader, table)
    if reader.take("DROP", "INDEX"):
        raise not_supported("ALTER TABLE ... DROP INDEX", "Use DROP INDEX.")
    if reader.take("DROP"):
        return _drop_members(writer, reader, table, qualified_name.name)
    if reader.word in ("CHECK", "NOCHECK") and reader.peek() == "CONSTRAINT":
        return [_switch_constraints(reader, table, checks_again=checks_again)]
    changed = reader.peek(2) if reader.word == "SET" else ""
    if reader.take("REBUILD") or changed in ("LOCK_ESCALATION", "FILESTREAM_ON"):
        reader.at = len(reader.piece.words)
        return _require_table(table)
    if reader.word not in _ALTER_TABLE_ADVICE:
        raise reader.failure()
    raise not_supported(f"ALTER TABLE ... {reader.word} {changed}".rstrip(), _ALTER_TABLE_ADVICE[reader.word])


def _switch_constraints(reader: PieceReader, table: str, *, checks_again: bool) -> str:
    """Write CHECK or NOCHECK CONSTRAINT, which enables or disables FOREIGN KEY and CHECK constraints (decision 256)."""
    holds = reader.take("CHECK")
    if not holds:
        reader.take("NOCHECK")
    reader.take("CONSTRAINT")
    names = "NULL"
    if not reader.take("ALL"):
        constraint_names = [reader.identifier()]
        while reader.take(","):
            constraint_names.append(reader.identifier())
        names = f"ARRAY[{', '.join(map(quote_string, constraint_names))}]"
    return f"SELECT tsql.switch_constraints({quote_string(table)}, {names}, {holds}, {checks_again})"


_USE_TRIGGER = "Use a trigger, or a column of the type rowversion."
_ALTER_TABLE_ADVICE = {
    "SWITCH": "Move the rows with DELETE ... OUTPUT ... INTO.",
    "SPLIT": "Omit it.",
    "MERGE": "Omit it.",
    "ENABLE": _USE_TRIGGER,
    "DISABLE": _USE_TRIGGER,
    "SET": "Omit it.",
    "ALTER": "Drop the index, and create it again.",
}


def _require_table(table: str) -> list[str]:
    """Return a statement that only checks that the table exists."""
    return [f"SELECT {quote_string(table)}::regclass"]


def _add_members(
    writer: Writer, reader: PieceReader, table: str, qualified_name: ObjectName, *, checks: bool
) -> list[str]:
    """Write ALTER TABLE ... ADD.

    Without `checks` (WITH NOCHECK), existing rows may violate a new CHECK or FOREIGN KEY.
    """
    rest = reader.piece.part(reader.at, len(reader.piece.words))
    reader.at = len(reader.piece.words)
    table_elements = read_elements(writer, table, rest, qualified_name.name, is_added=True)
    if not rest.words:
        raise reader.failure()
    _note_offsets(writer, qualified_name, table_elements.columns)
    _check_keys(writer, table, qualified_name, table_elements)
    actions = [f"ADD {'' if _is_constraint(member) else 'COLUMN '}{member}" for member in table_elements.members]
    if not checks:
        actions = [f"{action} NOT VALID" if _UNCHECKED.match(action) else action for action in actions]
    actions += [
        f"ALTER COLUMN {quote_identifier(column.name)} SET DEFAULT {text}" for column, text in table_elements.defaults
    ]
    table_elements.columns += [column for column, _ in table_elements.defaults if column.type.name != "unknown"]
    statements = [f"ALTER TABLE {table} {', '.join(actions)}"] if actions else []
    return [
        *check_names(writer, qualified_name, table_elements),
        *statements,
        *column_comments(table, table_elements.columns),
        *constraint_statements(writer, table, table_elements),
        *rowversion_triggers(table, table_elements),
        *_create_indexes(writer, table, qualified_name, table_elements),
    ]


_UNCHECKED = re.compile(r'ADD (?:CONSTRAINT "(?:[^"]|"")*" )?(?:CHECK \(|FOREIGN KEY)')


def _is_constraint(member: str) -> bool:
    return member.startswith(("CONSTRAINT ", "PRIMARY KEY", "UNIQUE", "FOREIGN KEY", "CHECK ("))


def _alter_column(writer: Writer, reader: PieceReader, table: str) -> list[str]:
    """Write ALTER COLUMN."""
    name = reader.identifier()
    if reader.word in ("ADD", "DROP"):
        change = f"{reader.word} {reader.peek(1)}"
        reader.at += 1
        if reader.word not in ("ROWGUIDCOL", "PERSISTED", "NOT", "SPARSE", "HIDDEN"):
            raise not_supported(f"ALTER COLUMN ... {change}") if reader.word == "MASKED" else reader.failure()
        reader.at = len(reader.piece.words)
        return _require_table(table)
    sql_type, _ = read_column_type(writer, reader)
    collation = read_collation(reader) if reader.take("COLLATE") else ""
    while reader.take_any("SPARSE", "FILESTREAM"):
        pass
    written = column_type(sql_type)
    column, old_column = quote_identifier(name), (writer.table_columns(table) or {}).get(name.lower())
    actions = [f"ALTER COLUMN {column} TYPE {written}{_using_clause(column, old_column, sql_type)}"]
    if reader.take("NOT", "NULL"):
        actions.append(f"ALTER COLUMN {column} SET NOT NULL")
    elif reader.take("NULL"):
        actions.append(f"ALTER COLUMN {column} DROP NOT NULL")
    skip_storage(reader)
    return [
        f"ALTER TABLE {table} {', '.join(actions)}",
        *column_comments(
            table,
            [Column(name, sql_type, default=old_column.default if old_column is not None else "", collation=collation)],
        ),
    ]


def _using_clause(column: str, old_column: Column | None, sql_type: SqlType) -> str:
    """Return the USING clause that converts values.

    Strings have none: the column refuses strings that are too long, which a cast would cut.
    """
    if old_column is None or old_column.type.name == "unknown":
        return f" USING {column}::{column_type(sql_type)}"
    if sql_type.name in STRINGS:
        return (
            ""
            if old_column.type.name in STRINGS
            else f" USING {cast_value(Sql(column, old_column.type), VARCHAR).text}"
        )
    return f" USING {cast_value(Sql(column, old_column.type), sql_type).text}"


def _drop_members(writer: Writer, reader: PieceReader, table: str, written_table: str) -> list[str]:
    """Write ALTER TABLE ... DROP. A DEFAULT belongs to its column in PostgreSQL; the column's comment has its name."""
    defaults = {
        (column.default or f"DF_{written_table}_{column.name}").lower(): column
        for column in (writer.table_columns(table) or {}).values()
    }
    actions, kind, folded = [], "CONSTRAINT", []
    changed = []
    while True:
        if reader.take("COLUMN"):
            kind = "COLUMN"
        elif reader.take("CONSTRAINT"):
            kind = "CONSTRAINT"
        exists = "IF EXISTS " if reader.take("IF", "EXISTS") else ""
        name = reader.identifier()
        column = defaults.get(name.lower()) if kind == "CONSTRAINT" else None
        if column is not None:
            actions.append(f"ALTER COLUMN {quote_identifier(column.name)} DROP DEFAULT")
            changed.append(column._replace(default=""))
        else:
            actions.append(f"DROP {kind} {exists}{quote_identifier(name)}")
            if kind == "CONSTRAINT" and any(map(writer.keys_ignore_case, defaults.values())):
                folded.append(f"SELECT tsql.drop_folded_key({quote_string(table)}, {quote_string(name.lower())})")
        skip_storage(reader)
        if not reader.take(","):
            return [*folded, f"ALTER TABLE {table} {', '.join(actions)}", *column_comments(table, changed)]


_CONNECTION_FUNCTIONS = frozenset({"db_id", "db_name", "@@spid"})  # answered by PostgreSQL for any connection


def _is_updatable(query: exp.Expression) -> bool:
    """Check whether PostgreSQL can change rows through a view of this query. If not, nothing is left to check."""
    clauses = ("joins", "laterals", "distinct", "group", "having", "limit", "offset", "with_")
    from_ = query.args.get("from_")
    return (
        isinstance(query, exp.Select)
        and not any(query.args.get(clause) for clause in clauses)
        and from_ is not None
        and isinstance(from_.this, exp.Table)
        and not any(member.find(exp.AggFunc, exp.Window) for member in query.expressions)
    )


def _create_view(writer: Writer, reader: PieceReader, statement: str) -> list[str]:
    """Write CREATE or ALTER VIEW. Its comment holds the T-SQL text."""
    view, qualified_name = _read_table(writer, reader, statement)
    named = read_names(reader.inside()) if reader.word == "(" else []
    columns = f" ({', '.join(quote_identifier(column_name) for column_name in named)})" if named else ""
    while reader.take("WITH") or reader.take(","):
        if reader.word not in ("SCHEMABINDING", "VIEW_METADATA", "ENCRYPTION"):
            raise not_supported(f"WITH {reader.word} of a view")
        reader.at += 1
    if not reader.take("AS"):
        raise reader.failure()
    rest = reader.piece.part(reader.at, len(reader.piece.words))
    has_check = rest.words[-3:] == ["WITH", "CHECK", "OPTION"]
    if has_check:
        rest = rest.part(0, len(rest.words) - 3)
    reader.at = len(reader.piece.words)
    if any(rest.words[at : at + 3] == ["NEXT", "VALUE", "FOR"] for at in range(len(rest.words))):
        raise nested_next_value_error()
    node = parse_slice(rest)
    check = " WITH CHECK OPTION" if has_check and _is_updatable(node) else ""
    translated = translate_query(writer, node, outermost=False)
    if translated.outputs is not None and not columns and any(not output.name for output in translated.outputs):
        raise TsqlError(
            4511,
            f"Create View or Function failed because no column name was specified for a column of '{qualified_name.name}'.",
        )
    outputs = translated.outputs or []
    if named and len(named) == len(outputs):
        outputs = [output._replace(name=name) for name, output in zip(named, outputs, strict=True)]
    view_columns = columns_of(outputs)
    text = translated.text
    if set(writer.parameters) <= _CONNECTION_FUNCTIONS:  # other session values depend on who reads the view
        text = inline_settings(writer, text)
    statements = [
        f"CREATE SCHEMA IF NOT EXISTS {postgres_schema(qualified_name.database or writer.scope.database, '')}"
    ]
    if qualified_name.schema.lower() not in ("", "dbo"):
        statements = []
    if statement != "CREATE VIEW":
        statements.append(f"DROP VIEW IF EXISTS {view}")
    note = f"{qualified_name.name}\n{reader.piece.text}"  # decision 256
    statements += [
        f"CREATE VIEW {view}{columns} AS {text}{check}",
        f"COMMENT ON VIEW {view} IS {quote_string(note)}",
    ]
    return statements + (
        column_comments(view, list(view_columns.values()))
        if view_columns and len(named or outputs) == len(outputs)
        else []
    )


def _create_index(writer: Writer, reader: PieceReader) -> list[str]:
    """Write CREATE INDEX."""
    unique = "UNIQUE " if reader.take("UNIQUE") else ""
    if not reader.take("CLUSTERED"):
        reader.take("NONCLUSTERED")
    if not reader.take("INDEX"):
        reader.fail()
    name = reader.identifier()
    if not reader.take("ON"):
        raise reader.failure()
    table, qualified_name = _read_table(writer, reader, "CREATE INDEX")
    keys = [read_key_column(part) for part in reader.inside().split()]
    _check_key_types(writer.table_columns(table) or {}, keys, qualified_name.name)
    table_columns = list((writer.table_columns(table) or {}).values())
    columns = ", ".join(_folded_keys(writer, table_columns, map("".join, keys)))
    text = f"CREATE {unique}INDEX {_index_name(qualified_name, name)} ON {table} ({columns})"
    if reader.take("INCLUDE"):
        text += " INCLUDE (" + ", ".join(read_key_column(part)[0] for part in reader.inside().split()) + ")"
    text += f" {ONE_NULL}" if unique else ""
    if reader.take("WHERE"):
        end = reader.piece.find("WITH", "ON", after=reader.at)
        stop = end if end is not None else len(reader.piece.words)
        where = reader.piece.part(reader.at, stop)
        reader.at = stop
        text += f" WHERE {write_condition(writer, where, Elements(columns=table_columns))}"
    skip_storage(reader)
    return [_refuse_bound_view(table), text, _index_comment(table, qualified_name, name)]


# matches the comment of a view, see `_create_view`
_BOUND_VIEW = r"^[^\n]*\n[^(]*(\([^)]*\))?\s*with\s[\w\s,]*\mschemabinding\M"
_VIEW_REFUSAL = (
    "An index on a view (%s) is not supported here. A view keeps no rows: create the index on a table of the view."
)


def _refuse_bound_view(table: str) -> str:
    """Return the statement that refuses an index on a schema-bound view. Another view causes error 1939."""
    comment = "obj_description(oid, 'pg_class')"
    return (
        f"SELECT tsql.refuse(40515, format({quote_string(_VIEW_REFUSAL)}, split_part({comment}, chr(10), 1))) "
        f"FROM pg_class WHERE oid = to_regclass({quote_string(table)}) AND relkind = 'v' "
        f"AND {comment} ~* {quote_string(_BOUND_VIEW)}"
    )


_NO_KEY_TYPES = frozenset({"xml", "text", "ntext", "image"})


def _check_key_types(columns: Mapping[str, Column], keys: Iterable[tuple[str, str]], table: str) -> None:
    """Refuse a key column of a large type.

    Raises:
        TsqlError: 1919 such a column.
    """
    quoted_names = [name for name, _ in keys]
    for column in columns.values():
        is_large = column.type.name in _NO_KEY_TYPES or column.type.length == -1
        if is_large and quote_identifier(column.name) in quoted_names:
            raise TsqlError(
                1919, f"Column '{column.name}' in table '{table}' is of a type that is invalid for use as a key column in "
                "an index.",
            )  # fmt: skip


def _create_schema(writer: Writer, reader: PieceReader) -> list[str]:
    name = reader.identifier() if reader.word != "AUTHORIZATION" else ""
    if reader.take("AUTHORIZATION"):
        owner = reader.identifier()
        if owner.lower() != "dbo":
            raise not_supported(f"AUTHORIZATION {owner} of a schema", "Schemas belong to dbo.")
    if not name or reader.word:
        raise not_supported("CREATE SCHEMA with further statements", "Write them after it.")
    schema = postgres_schema(writer.scope.database, name)
    return [f"CREATE SCHEMA {schema}", f"COMMENT ON SCHEMA {schema} IS {quote_string(name)}"]


def _drop(writer: Writer, reader: PieceReader) -> list[str]:
    kind = reader.word
    if kind not in ("TABLE", "VIEW", "SEQUENCE", "SCHEMA", "INDEX"):
        raise not_supported(f"DROP {kind}")
    reader.at += 1
    exists = "IF EXISTS " if reader.take("IF", "EXISTS") else ""
    drops = []
    while True:
        drops.append(_dropped(writer, reader, kind, exists))
        if not reader.take(","):
            return drops


def _dropped(writer: Writer, reader: PieceReader, kind: str, exists: str) -> str:
    if kind == "SCHEMA":
        return f"DROP SCHEMA {exists}{postgres_schema(writer.scope.database, reader.identifier())}"
    if kind != "INDEX":
        qualified_name = object_name(read_table(reader.dotted()))
        if qualified_name.name.startswith("#") and writer.temporary(qualified_name.name.lower()) is None:
            if exists:
                return "SELECT"
            raise TsqlError(
                3701, f"Cannot drop the {kind.lower()} '{qualified_name.name}', because it does not exist or you do not have "
                "permission.", severity=11, state=5,
            )  # fmt: skip
        table = table_name(writer, qualified_name)
        writer.record_use(table, f"DROP {kind}")
        return f"DROP {kind} {exists}{table}"
    place = reader.at
    name = reader.dotted()
    if reader.take("ON"):
        table, qualified_name = _read_table(writer, reader, "DROP INDEX")
        index = unquote(name.text)
        skip_storage(reader)
    else:  # the deprecated form table.index
        parts = name.part(0, len(name.words) - 2)
        if len(name.words) < 3:
            raise syntax_error(name.text, reader.piece.line(place))
        qualified_name = object_name(read_table(parts))
        table = table_name(writer, qualified_name)
        writer.record_use(table, "DROP INDEX")
        index = unquote(name.part(len(name.words) - 1, len(name.words)).text)
    schema = table.rsplit(".", 1)[0] + "." if "." in table else ""
    return f"DROP INDEX {exists}{schema}{_index_name(qualified_name, index)}"


UPDATED_PREFIX = "updated "  # prefix of the parameter that tells a trigger whether a column was set


def _write_updated(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    if len(nodes) != 1 or not isinstance(nodes[0], exp.Column):
        raise TsqlError(102, "Incorrect syntax near 'UPDATE'. It takes the name of a column.", severity=15)
    return Sql(writer.parameter(UPDATED_PREFIX + nodes[0].name.lower(), BIT), BIT)


SPECIAL["update"] = _write_updated
