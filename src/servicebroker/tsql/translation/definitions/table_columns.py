"""Columns and constraints of CREATE TABLE and ALTER TABLE ... ADD."""

from __future__ import annotations

import re
import zlib
from dataclasses import dataclass, field

from servicebroker.model import names
from servicebroker.tsql.collations import check_collation
from servicebroker.tsql.definition_errors import follow
from servicebroker.tsql.known_columns import column_comment
from servicebroker.tsql.scope import Column
from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.tokens import STRING, unquote
from servicebroker.tsql.translation.documents.document_options import UnknownColumns
from servicebroker.tsql.translation.queries.sources import ObjectName, object_name, table_name
from servicebroker.tsql.translation.reading.parts import read_condition, read_table, read_value
from servicebroker.tsql.translation.reading.piece_reader import PieceReader
from servicebroker.tsql.translation.reading.syntax_tree import Slice
from servicebroker.tsql.translation.rows.targets import convert_for_column
from servicebroker.tsql.translation.text_writer import (
    Source,
    Writer,
    not_permitted,
    not_supported,
    quote_identifier,
    quote_string,
    session_value_sql,
    write_predicate,
    write_value,
)
from servicebroker.tsql.translation.values.casts import cast_value
from servicebroker.tsql.types import INTEGERS, PADDED, ROWVERSIONS, SqlType, column_type, identity_clause
from servicebroker.tsql.whole_numbers import is_whole, parse_whole_number

_TABLE_WORDS = ("CONSTRAINT", "PRIMARY", "UNIQUE", "FOREIGN", "CHECK", "INDEX", "PERIOD", "DEFAULT")


_AFTER_TYPE = frozenset({"NOT", "NULL", "CONSTRAINT", "PRIMARY", "UNIQUE", "DEFAULT"})


@dataclass
class Elements:
    """The elements of a table in PostgreSQL: members of CREATE TABLE, columns, and statements to follow."""

    members: list[str] = field(default_factory=list)
    columns: list[Column] = field(default_factory=list)
    table_constraints: list[str] = field(default_factory=list)  # table constraints written beside a column
    table: str = ""  # name as written
    defaults: list[tuple[Column, str]] = field(default_factory=list)  # defaults of ALTER TABLE ... ADD DEFAULT ... FOR
    indexes: list[tuple[str, bool, list[str]]] = field(default_factory=list)
    rowversion_columns: list[str] = field(default_factory=list)  # names of rowversion columns
    constraints: list[str] = field(default_factory=list)  # names as written, without those of defaults
    defined_names: list[str] = field(default_factory=list)  # names as written of all constraints, defaults included
    is_added: bool = False  # added to an existing table


def read_elements(writer: Writer, table: str, piece: Slice, written_name: str, *, is_added: bool = False) -> Elements:
    """Read the elements in the parentheses of a table, or those added to it.

    `table` is the PostgreSQL name of the table, `written_name` the name in the statement.
    """
    table_elements = Elements(table=written_name, is_added=is_added)
    pieces = piece.split()
    if not pieces[-1].words:  # a trailing comma is allowed
        pieces.pop()
    for part in pieces:
        if not part.words:
            raise syntax_error(",", part.line())
    for part in pieces:  # columns first: constraints and computed columns refer to them
        if part.words[0] not in _TABLE_WORDS and part.words[1:2] != ["AS"]:
            _add_column(writer, part, table_elements)
    _add_computed_columns(writer, pieces, table_elements, table)
    for part in pieces:
        if part.words[0] in _TABLE_WORDS:
            _add_constraint(writer, PieceReader(part), table_elements, table)
    return table_elements


def _add_computed_columns(writer: Writer, pieces: list[Slice], table_elements: Elements, table: str) -> None:
    """Add computed columns, which refer to the others, at their written positions."""
    columns, members = iter(table_elements.columns), iter(table_elements.members)
    ordered_columns, ordered_members = [], []
    for part in pieces:
        if part.words[0] in _TABLE_WORDS:
            continue
        if part.words[1:2] != ["AS"]:
            ordered_columns.append(next(columns))
            ordered_members.append(next(members))
            continue
        _add_computed_column(writer, part, table_elements, table)
        ordered_columns.append(table_elements.columns.pop())
        ordered_members.append(table_elements.members.pop())
    table_elements.columns, table_elements.members = (
        ordered_columns,
        [*ordered_members, *table_elements.table_constraints],
    )


def _visible_columns(table_elements: Elements, table: str) -> list[Source]:
    return [Source("", {column.name.lower(): column for column in table_elements.columns}, table)]


def _add_column(writer: Writer, piece: Slice, table_elements: Elements) -> None:
    """Read a column with its type, constraints and options."""
    reader = PieceReader(piece)
    name = reader.identifier()
    if name.lower() == "timestamp" and (not reader.word or reader.word in _AFTER_TYPE):
        reader.at -= 1  # the name is the type
    is_stamped = reader.quoted() in ROWVERSIONS
    sql_type, may_be_null = read_column_type(writer, reader)
    parts = [quote_identifier(name), column_type(sql_type)]
    of_table: list[str] = []
    identity, nullable, default, collation = False, True, "", ""
    words = piece.words
    if not may_be_null and not any(
        words[at] == "NULL" and words[at - 1] not in ("DEFAULT", "SET") for at in piece.outside()
    ):
        nullable = False
        parts.append("NOT NULL")
    if is_stamped:
        if table_elements.rowversion_columns:
            raise TsqlError(
                2738,
                f"A table can only have one timestamp column. Because the table already has one, the column '{name}' "
                "cannot be added.",
            )
        table_elements.rowversion_columns.append(name)
        parts.append("NOT NULL DEFAULT tsql.next_rowversion()")
    while reader.word:
        constraint = _constraint_name(reader, table_elements)
        label = _constraint_label(constraint)
        if reader.take("NULL"):
            continue
        if reader.take("NOT", "NULL"):
            nullable = False
            parts += ["NOT NULL"] if not is_stamped else []
        elif reader.take("IDENTITY"):
            _check_identity(name, sql_type)
            identity, nullable = True, False
            parts.append(identity_clause(sql_type, *_read_seed(reader)))
            reader.take("NOT", "FOR", "REPLICATION")
        elif reader.take("DEFAULT"):
            parts.append(f"DEFAULT {_write_default(writer, reader, Column(name, sql_type))}")
            default = constraint or _default_constraint_name(table_elements.table, name)
            reader.take("WITH", "VALUES")  # existing rows get the default in any case
        elif reader.take("COLLATE"):
            collation = read_collation(reader)
        elif reader.word in ("ROWGUIDCOL", "SPARSE", "PERSISTED", "FILESTREAM"):
            reader.at += 1
        elif reader.word in ("PRIMARY", "UNIQUE"):
            primary = reader.word == "PRIMARY"
            key = label + _write_key(reader, "")
            if key.endswith(")"):  # a table constraint without the comma before it
                of_table.append(key)
                continue
            nullable = nullable and not primary
            parts.append(key)
        elif reader.take("INDEX"):
            index_name, is_unique = reader.identifier(), reader.take("UNIQUE")
            _skip_clustered(reader)
            index_columns = [quote_identifier(name)]
            if reader.word == "(":
                index_columns = ["".join(read_key_column(part)) for part in reader.inside().split()]
            table_elements.indexes.append((index_name, is_unique, index_columns))
            if reader.take("INCLUDE"):
                reader.inside()
            if reader.take("WHERE"):
                reader.at = reader.piece.find("WITH", "ON", after=reader.at) or len(reader.piece.words)
            skip_storage(reader)
        elif reader.take("CHECK"):
            reader.take("NOT", "FOR", "REPLICATION")
            table_elements.columns.append(Column(name, sql_type, collation=collation))
            parts.append(f"{label}CHECK ({write_condition(writer, reader.inside(), table_elements)})")
            table_elements.columns.pop()
        elif reader.take("FOREIGN", "KEY") and reader.word == "(":
            of_table += _kept_key(table_elements, constraint, label + _write_foreign_key(writer, reader))
        elif reader.word == "REFERENCES":
            parts += _kept_key(table_elements, constraint, label + _write_references(writer, reader))
        else:
            raise reader.failure()
    column = Column(name, sql_type, identity, nullable, default=default, collation=collation)
    table_elements.columns.append(column)
    table_elements.members.append(" ".join(parts))
    table_elements.table_constraints += of_table


def read_column_type(writer: Writer, reader: PieceReader) -> tuple[SqlType, bool]:
    """Read a type. Return it, and whether its columns are nullable by default."""
    start = reader.at
    if reader.word in ("NATIONAL", "CHARACTER", "DOUBLE", "CHAR", "BINARY"):
        while reader.word in ("NATIONAL", "CHARACTER", "CHAR", "TEXT", "DOUBLE", "PRECISION", "BINARY", "VARYING"):
            reader.at += 1
    else:
        reader.dotted()
    if reader.word == "(":
        reader.inside()
    user_type = writer.type_named(reader.piece.part(start, reader.at).text)
    assert user_type.of is not None
    return user_type.of, user_type.is_nullable and reader.piece.part(start, reader.at).text.strip(
        "[]"
    ).lower() != "sysname"


def _check_identity(name: str, sql_type: SqlType) -> None:
    if sql_type.name == "decimal" and not sql_type.scale:
        raise not_supported(f"IDENTITY of the type {sql_type}", "Use bigint.")
    if sql_type.name not in INTEGERS - {"bit"}:
        raise TsqlError(
            2749,
            f"Identity column '{name}' must be of data type int, bigint, smallint, tinyint, or decimal or numeric with a "
            "scale of 0, unencrypted, and constrained to be nonnullable.",
        )


def _read_seed(reader: PieceReader) -> tuple[int, int]:
    if reader.word != "(":
        return 1, 1
    numbers = [part.text.replace(" ", "").removeprefix("+").removesuffix(".") for part in reader.inside().split()]
    if len(numbers) != 2 or not all(is_whole(number) for number in numbers):
        raise syntax_error("IDENTITY", reader.piece.line())
    start, step = (parse_whole_number(number) for number in numbers)
    if step == 0:
        raise TsqlError(1010, "Identity increment must not be zero.")
    return start, step


def _constraint_name(reader: PieceReader, table_elements: Elements) -> str:
    """Read the name after CONSTRAINT, "" for none. A name for NULL is ignored."""
    if not reader.take("CONSTRAINT"):
        return ""
    name = reader.identifier()
    if reader.word in ("PRIMARY", "UNIQUE", "CHECK", "FOREIGN", "REFERENCES"):
        table_elements.constraints.append(name)
    if reader.word not in ("NULL", "NOT"):
        table_elements.defined_names.append(name)
    return name


def _constraint_label(name: str) -> str:
    return f"CONSTRAINT {quote_identifier(name)} " if name else ""


def _default_constraint_name(table: str, column: str) -> str:
    """Return the system's name for an unnamed DEFAULT constraint."""
    return f"DF__{table[:9]}__{column[: 14 - len(table[:9])]}__{zlib.crc32(f'{table}.{column}'.encode()):08X}"


def _write_default(writer: Writer, reader: PieceReader, column: Column) -> str:
    """Read the value of a DEFAULT, and FOR column, and return its SQL in parentheses."""
    start = reader.at
    if reader.word in ("+", "-"):
        reader.at += 1
    if reader.word == "(":
        reader.inside()
    elif reader.take("NEXT", "VALUE", "FOR"):
        reader.dotted()
    elif reader.word == "":
        reader.fail()
    else:
        reader.at += 1
        if reader.take("."):
            reader.identifier()
        if reader.word == "(":
            reader.inside()
    node = read_value(reader.piece.part(start, reader.at))
    if reader.take("FOR"):
        column = Column(reader.identifier(), column.type)
    writer.default_column, writer.next_values = column.name, 0
    text = convert_for_column(write_value(writer, node), column if column.type.name != "unknown" else None)
    writer.default_column = ""
    return f"({inline_settings(writer, text)})"


def inline_settings(writer: Writer, text: str) -> str:
    """Replace parameters by SQL that reads the connection's settings, for stored SQL, such as a DEFAULT."""
    for number, name in reversed([*enumerate(writer.parameters, 1)]):
        setting = session_value_sql(writer.scope, name)
        text = re.sub(rf"\${number}\b", lambda _, setting=setting: setting, text)  # type: ignore[misc]
    writer.parameters.clear()
    return text


def _refuse_parameters(writer: Writer) -> None:
    if writer.parameters:
        raise not_permitted(writer.parameters[0])


def read_collation(reader: PieceReader) -> str:
    """Read the name of a collation, "" for that of the database.

    Raises:
        TsqlError: 448 unknown collation.
    """
    return check_collation(reader.identifier())


def _skip_clustered(reader: PieceReader) -> None:
    """Skip the storage kind of an index."""
    if not reader.take("CLUSTERED"):
        reader.take("NONCLUSTERED")
    if reader.take("HASH") and reader.take("WITH"):
        reader.inside()


ONE_NULL = "NULLS NOT DISTINCT"  # SQL Server allows a single NULL in a unique key


def _write_key(reader: PieceReader, columns: str) -> str:
    """Read PRIMARY KEY or UNIQUE, with its columns if they are listed."""
    if reader.take("PRIMARY", "KEY"):
        word = "PRIMARY KEY"
    elif reader.take("UNIQUE"):
        word = f"UNIQUE {ONE_NULL}"
    else:
        raise reader.failure()
    _skip_clustered(reader)
    if reader.word == "(":
        columns = " (" + ", ".join(read_key_column(part)[0] for part in reader.inside().split()) + ")"
    skip_storage(reader)
    return word + columns


def skip_storage(reader: PieceReader) -> None:
    """Skip the storage options of a table or index."""
    while True:
        if reader.take("WITH"):
            if reader.word == "(":
                _check_storage(reader.inside())
            else:
                while reader.word and reader.word != "ON":
                    reader.at += 1
        elif (reader.word == "ON" and reader.peek(1) not in ("DELETE", "UPDATE")) or reader.word in (
            "TEXTIMAGE_ON",
            "FILESTREAM_ON",
        ):
            reader.at += 1
            if reader.tokens.kinds[reader.at] == STRING:
                reader.at += 1
            else:
                reader.identifier()
            if reader.word == "(":  # column of a partition scheme
                reader.inside()
        else:
            return


_STORAGE_ADVICE = {
    "SYSTEM_VERSIONING": "Keep old rows in a history table filled by a trigger.",
    "LEDGER": "Omit it: there is no proof that rows were not changed.",
    "REMOTE_DATA_ARCHIVE": "Omit it.",
}


def _check_storage(piece: Slice) -> None:
    for part in piece.split():
        instead = _STORAGE_ADVICE.get(part.words[0]) if part.words else None
        if part.words == ["IGNORE_DUP_KEY", "=", "ON"]:
            instead = "Insert the rows that are not there yet, with WHERE NOT EXISTS or MERGE."
        if instead is not None:
            raise not_supported(f"WITH ({part.words[0]})", instead)


def read_key_column(piece: Slice) -> tuple[str, str]:
    """Read a column of a key. Return its quoted name, and DESC or ""."""
    reader = PieceReader(piece)
    name = quote_identifier(reader.identifier())
    down = " DESC" if reader.take("DESC") else ""
    reader.take("ASC")
    if reader.word:
        raise reader.failure()
    return name, down


def _kept_key(table_elements: Elements, name: str, text: str) -> list[str]:
    """Return a foreign key in a list. The list is empty for a temporary table: SQL Server skips its foreign keys."""
    if not table_elements.table.startswith("#"):
        return [text]
    if name:
        table_elements.constraints.remove(name)
    return []


def _write_foreign_key(writer: Writer, reader: PieceReader) -> str:
    columns = ", ".join(read_key_column(part)[0] for part in reader.inside().split())
    return f"FOREIGN KEY ({columns}) {_write_references(writer, reader)}"


def _write_references(writer: Writer, reader: PieceReader) -> str:
    """Read REFERENCES table (columns) with its actions."""
    if not reader.take("REFERENCES"):
        raise reader.failure()
    target = table_name(writer, object_name(read_table(reader.dotted())))
    writer.record_use(target, "REFERENCES")
    columns = ""
    if reader.word == "(":
        columns = " (" + ", ".join(read_key_column(part)[0] for part in reader.inside().split()) + ")"
    text = f"REFERENCES {target}{columns}"
    while reader.word == "ON" and reader.peek(1) in ("DELETE", "UPDATE"):
        event = reader.peek(1)
        reader.at += 2
        if reader.take("NO", "ACTION"):
            text += f" ON {event} NO ACTION"
        elif reader.take("CASCADE"):
            text += f" ON {event} CASCADE"
        elif reader.take("SET", "NULL") or reader.take("SET", "DEFAULT"):
            text += f" ON {event} SET {reader.peek(-1)}"
        else:
            raise reader.failure()
    reader.take("NOT", "FOR", "REPLICATION")
    return text


def write_condition(writer: Writer, piece: Slice, table_elements: Elements) -> str:
    """Write a condition on the columns of a table."""
    with writer.query(_visible_columns(table_elements, "")):
        text = write_predicate(writer, read_condition(piece))
    _refuse_parameters(writer)
    return text


def _add_computed_column(writer: Writer, piece: Slice, table_elements: Elements, table: str) -> None:
    """Add a computed column."""
    reader = PieceReader(piece)
    name = reader.identifier()
    reader.take("AS")
    start = reader.at
    if reader.word == "(":
        reader.inside()
    end = piece.find("PERSISTED", "CONSTRAINT", "PRIMARY", "UNIQUE", after=reader.at)
    reader.at = end if end is not None else len(piece.words)
    node = read_value(piece.part(start, reader.at))
    existing = (writer.table_columns(table) or {}).values() if table_elements.is_added else ()
    with writer.query(_visible_columns(Elements(columns=[*existing, *table_elements.columns]), table)):
        value = write_value(writer, node)
    _refuse_parameters(writer)
    if value.type is None and table_elements.is_added and writer.table_columns(table) is None:
        raise UnknownColumns("A computed column")
    if value.type is None:
        raise not_supported(
            f"The computed column {name}, whose type is not known", "Write CAST(... AS type) around it."
        )
    reader.take("PERSISTED")
    nullable = not reader.take("NOT", "NULL")
    label = _constraint_label(_constraint_name(reader, table_elements))
    key = f" {label}{_write_key(reader, '')}" if reader.word in ("PRIMARY", "UNIQUE") else ""
    if reader.word:
        raise reader.failure()
    is_padded = value.type.name in PADDED
    sql_type = value.type._replace(length=-1) if value.kind == "string" and not is_padded else value.type
    text = cast_value(value, sql_type).text
    table_elements.members.append(
        f"{quote_identifier(name)} {column_type(sql_type)} GENERATED ALWAYS AS ({text}) STORED{'' if nullable else ' NOT NULL'}{key}"
    )
    table_elements.columns.append(Column(name, sql_type, is_nullable=nullable, is_computed=True))


def _add_constraint(writer: Writer, reader: PieceReader, table_elements: Elements, table: str) -> None:
    """Add a table constraint, a DEFAULT or an index."""
    constraint = _constraint_name(reader, table_elements)
    label = _constraint_label(constraint)
    if reader.take("FOREIGN", "KEY"):
        table_elements.members += _kept_key(table_elements, constraint, label + _write_foreign_key(writer, reader))
    elif reader.take("CHECK"):
        reader.take("NOT", "FOR", "REPLICATION")
        known_columns = table_elements.columns or list((writer.table_columns(table) or {}).values())
        table_elements.members.append(
            f"{label}CHECK ({write_condition(writer, reader.inside(), Elements(columns=known_columns))})"
        )
    elif reader.word in ("PRIMARY", "UNIQUE"):
        key = _write_key(reader, "")
        if "(" not in key:  # only the key of a column has no list
            raise reader.failure()
        table_elements.members.append(label + key)
    elif reader.take("DEFAULT"):
        columns = {column.name.lower(): column for column in (writer.table_columns(table) or {}).values()}
        place = reader.piece.find("FOR", after=reader.at)
        if place is None or place + 1 >= len(reader.piece.words):
            raise reader.failure()
        name = unquote(reader.tokens.text(place + 1))
        column = columns.get(name.lower(), Column(name, SqlType("unknown")))
        if column.default:
            raise follow(TsqlError(1781, "Column already has a DEFAULT bound to it."))
        text = _write_default(writer, reader, column)
        reader.take("WITH", "VALUES")
        if reader.peek(-1) == "FOR" or reader.word == "FOR":
            raise reader.failure()
        table_elements.defaults.append(
            (column._replace(default=constraint or _default_constraint_name(table_elements.table, name)), text)
        )
    elif reader.take("INDEX"):
        _add_index(reader, table_elements)
    else:
        raise reader.failure()
    if reader.word:
        raise reader.failure()


def _add_index(reader: PieceReader, table_elements: Elements) -> None:
    """Add INDEX name (columns). A columnstore index is ignored, since it only concerns storage."""
    name = reader.identifier()
    unique = reader.take("UNIQUE")
    _skip_clustered(reader)
    is_by_columns = reader.take("COLUMNSTORE")
    columns = ["".join(read_key_column(part)) for part in reader.inside().split()] if reader.word == "(" else []
    if not columns and not is_by_columns:
        raise reader.failure()
    if reader.take("ORDER") or reader.take("INCLUDE"):
        reader.inside()
    if reader.take("WHERE"):
        if unique:
            raise not_supported("A unique index with WHERE inside of CREATE TABLE", "Use CREATE INDEX.")
        end = reader.piece.find("WITH", "ON", after=reader.at)
        reader.at = end if end is not None else len(reader.piece.words)
    if not is_by_columns:
        table_elements.indexes.append((name, unique, columns))
    skip_storage(reader)


def rowversion_triggers(table: str, table_elements: Elements) -> list[str]:
    """Return statements that create the triggers which update rowversion columns."""
    return [
        f"CREATE TRIGGER tsql_rowversion BEFORE UPDATE ON {table} "
        f"FOR EACH ROW EXECUTE FUNCTION tsql.stamp_rowversion({quote_string(quote_identifier(name)[1:-1])})"
        for name in table_elements.rowversion_columns
    ]


def check_names(writer: Writer, qualified_name: ObjectName, table_elements: Elements) -> list[str]:
    """Return the statement that refuses a constraint whose name is taken. Those of temporary tables are not checked."""
    if not table_elements.defined_names or qualified_name.name.startswith(("#", "@")):
        return []
    schema = names.postgres_name(qualified_name.database or writer.scope.database, qualified_name.schema or "dbo")
    wanted = ", ".join(map(quote_string, table_elements.defined_names))
    return [f"SELECT tsql.check_constraint_names({quote_string(schema)}, ARRAY[{wanted}])"]


_KEY = re.compile(r"\b(?:PRIMARY KEY|UNIQUE)\b")
_CONSTRAINT = re.compile(r"\b(?:PRIMARY KEY|UNIQUE|CHECK|REFERENCES)\b")


def constraint_statements(writer: Writer, table: str, table_elements: Elements) -> list[str]:
    """Return statements that store the spelling of constraint names, for errors, and name unnamed constraints.

    A last one makes keys ignore the case of columns whose collation does.
    """
    noted = [
        f"COMMENT ON CONSTRAINT {quote_identifier(name)} ON {table} IS {quote_string(name)}"
        for name in table_elements.constraints
    ]
    has_more = not table_elements.table.startswith(("#", "@")) and any(
        _CONSTRAINT.search(member) for member in table_elements.members
    )
    if has_more:
        noted.append(f"SELECT tsql.name_constraints({quote_string(table)})")
    _note_case_of_references(writer, table, table_elements)
    if any(_KEY.search(member) for member in table_elements.members):
        known = [*table_elements.columns, *(writer.table_columns(table) or {}).values()]
        folded = {
            quote_string(quote_identifier(column.name)): None for column in known if writer.keys_ignore_case(column)
        }
        if folded:
            noted.append(f"SELECT tsql.fold_keys({quote_string(table)}, ARRAY[{', '.join(folded)}])")
    return noted


_STRING = re.compile(r"'(?:[^']|'')*'")
_KEY_COLUMNS = re.compile(r"\b(?:PRIMARY KEY|UNIQUE(?: NULLS NOT DISTINCT)?) \(([^)]*)\)")


def key_columns(member: str) -> list[str]:
    """Return the quoted columns of the PRIMARY KEY or UNIQUE constraint in a member of a table."""
    plain = _STRING.sub("''", member)
    if _KEY.search(plain) is None:
        return []
    listed = _KEY_COLUMNS.search(plain)
    return listed[1].split(", ") if listed else [plain[: plain.index('" ') + 1]]


def _note_case_of_references(writer: Writer, table: str, table_elements: Elements) -> None:
    """Tell that a foreign key compares with case, although the collation of its column ignores case."""
    keys = [
        member for member in (*table_elements.members, *table_elements.table_constraints) if "REFERENCES " in member
    ]
    names = {
        column.name: None
        for column in (*table_elements.columns, *(writer.table_columns(table) or {}).values())
        for key in keys
        if writer.keys_ignore_case(column) and _is_key_of(key, quote_identifier(column.name))
    }
    if names:
        writer.notes.append(
            f"{table_elements.table}: A FOREIGN KEY finds only the case of the key that it refers to, although the "
            f"collation ignores case. Columns: {', '.join(names)}."
        )


def _is_key_of(member: str, column: str) -> bool:
    """Check whether a column has a foreign key in a member of a table: that of the column, or one with a list."""
    listed = re.search(r"FOREIGN KEY \(([^)]*)\)", member)
    return column in listed[1].split(", ") if listed else member.startswith(f"{column} ")


def column_comments(table: str, columns: list[Column]) -> list[str]:
    """Return statements that store the T-SQL type, spelling and DEFAULT constraint of each column."""
    return [
        f"COMMENT ON COLUMN {table}.{quote_identifier(column.name)} IS {quote_string(column_comment(column))}"
        for column in columns
    ]
