"""CREATE and ALTER SEQUENCE, and NEXT VALUE FOR."""

from __future__ import annotations

from sqlglot import exp

from servicebroker.model.number_bounds import WHOLE
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.definitions.table_columns import read_column_type
from servicebroker.tsql.translation.queries.sources import ObjectName, object_name, table_name
from servicebroker.tsql.translation.reading.parts import read_table
from servicebroker.tsql.translation.reading.piece_reader import PieceReader
from servicebroker.tsql.translation.reading.syntax_tree import slice_text
from servicebroker.tsql.translation.text_writer import (
    NEXT_VALUE_CALL,
    Sql,
    Writer,
    postgres_schema,
    quote_string,
    write_value,
)
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import BIGINT, SqlType, postgres_type


def create_sequence(writer: Writer, reader: PieceReader) -> list[str]:
    """Write CREATE SEQUENCE. The default start is the lowest value, or the highest for a descending sequence.

    Raises:
        TsqlError: 11700 to 11709 the clauses do not fit. Some errors come from PostgreSQL and get their number later.
    """
    sequence, qualified_name = _read_sequence(writer, reader, "CREATE SEQUENCE")
    clauses, sql_type = _read_clauses(writer, reader, qualified_name, "CREATE")
    low, high = _type_bounds(sql_type, qualified_name)
    least, most = (
        _check_bound(clause, clauses.get(clause), qualified_name, (low, high)[at], (low, high))
        for at, clause in enumerate(("MINVALUE", "MAXVALUE"))
    )
    step = clauses.get("INCREMENT") or 1
    if clauses.get("INCREMENT") == 0:
        raise TsqlError(11700, f"The increment for sequence object '{qualified_name}' cannot be zero.")
    if least < most and abs(step) > most - least:
        raise TsqlError(
            11701,
            f"The absolute value of the increment for sequence object '{qualified_name}' must be less than or equal to the "
            "difference between the minimum and maximum value of the sequence object.",
        )
    start = clauses.get("START")
    if start is None:
        start = least if step > 0 else most
    kind = postgres_type(sql_type) if sql_type.name in WHOLE else "bigint"
    text = (
        f"CREATE SEQUENCE {sequence} AS {kind} INCREMENT BY {step} MINVALUE {least} MAXVALUE {most} START WITH {start} "
        f"{'CYCLE' if clauses.get('CYCLE') else 'NO CYCLE'}"
    )
    schema = [f"CREATE SCHEMA IF NOT EXISTS {postgres_schema(qualified_name.database or writer.scope.database, '')}"]
    comment = f"COMMENT ON SEQUENCE {sequence} IS {quote_string(qualified_name.name)}"
    return [*(schema if qualified_name.schema.lower() in ("", "dbo") else []), text, comment]


def alter_sequence(writer: Writer, reader: PieceReader) -> list[str]:
    """Write ALTER SEQUENCE: RESTART, INCREMENT BY, MINVALUE, MAXVALUE, CYCLE and CACHE.

    Raises:
        TsqlError: 11700 to 11715 as `create_sequence`, and for clauses that only CREATE has.
    """
    sequence, qualified_name = _read_sequence(writer, reader, "ALTER SEQUENCE")
    clauses, _ = _read_clauses(writer, reader, qualified_name, "ALTER")
    if not clauses:
        raise TsqlError(11715, "No properties specified for ALTER SEQUENCE.")
    parts = []
    if "RESTART" in clauses:
        parts.append("RESTART" if clauses["RESTART"] is None else f"RESTART WITH {clauses['RESTART']}")
    if "INCREMENT" in clauses:
        parts.append(f"INCREMENT BY {clauses['INCREMENT']}")
    for clause in ("MINVALUE", "MAXVALUE"):
        if clause in clauses:
            parts.append(f"NO {clause}" if clauses[clause] is None else f"{clause} {clauses[clause]}")
    if "CYCLE" in clauses:
        parts.append("CYCLE" if clauses["CYCLE"] else "NO CYCLE")
    return [f"SELECT tsql.alter_sequence({quote_string(sequence)}, {quote_string(' '.join(parts))})"]


def _read_sequence(writer: Writer, reader: PieceReader, statement: str) -> tuple[str, ObjectName]:
    qualified_name = object_name(read_table(reader.dotted()))
    sequence = table_name(writer, qualified_name)
    writer.record_use(sequence, statement)
    return sequence, qualified_name


def _type_bounds(sql_type: SqlType, qualified_name: ObjectName) -> tuple[int, int]:
    if sql_type.name == "decimal" and not sql_type.scale:
        most = min(10 ** (sql_type.precision or 18) - 1, 2**63 - 1)
        return -most, most
    if sql_type.name not in WHOLE:
        raise TsqlError(
            11702,
            f"The sequence object '{qualified_name}' must be of data type int, bigint, smallint, tinyint, or decimal or numeric "
            "with a scale of 0, or any user-defined data type that is based on one of the above integer data types.",
        )
    return WHOLE[sql_type.name]


def _check_bound(
    clause: str, value: int | None, qualified_name: ObjectName, otherwise: int, bounds: tuple[int, int]
) -> int:
    if value is None:
        return otherwise
    if not bounds[0] <= value <= bounds[1]:
        raise TsqlError(
            11708,
            f"An invalid value was specified for argument '{clause}' for the given data type of '{qualified_name}'.",
        )
    return value


def _read_clauses(
    writer: Writer, reader: PieceReader, qualified_name: ObjectName, keyword: str
) -> tuple[dict[str, int | None], SqlType]:
    """Read the clauses, by first word, and the type.

    The value of a clause is None for NO and a plain RESTART, 1 or 0 for CYCLE.
    """
    clauses: dict[str, int | None] = {}
    sql_type = BIGINT
    while reader.word:
        if reader.take("START", "WITH"):
            if keyword == "ALTER":
                raise TsqlError(11710, "Argument 'START WITH' cannot be used in an ALTER SEQUENCE statement.")
            clauses["START"] = _read_number(reader)
        elif reader.take("RESTART"):
            if keyword == "CREATE":
                raise TsqlError(11709, "The 'RESTART WITH' argument cannot be used in a CREATE SEQUENCE statement.")
            clauses["RESTART"] = _read_number(reader) if reader.take("WITH") else None
        elif reader.word == "AS" and keyword == "ALTER":
            raise TsqlError(11711, "Argument 'AS' cannot be used in an ALTER SEQUENCE statement.")
        elif reader.take("AS"):
            sql_type, _ = read_column_type(writer, reader)
        elif reader.take("INCREMENT", "BY"):
            clauses["INCREMENT"] = _read_number(reader)
        elif reader.take("NO", "MINVALUE") or reader.take("NO", "MAXVALUE"):
            clauses[reader.peek(-1)] = None
        elif reader.take("MINVALUE") or reader.take("MAXVALUE"):
            clause = reader.peek(-1)
            clauses[clause] = _read_number(reader)
        elif reader.take("NO", "CYCLE"):
            clauses["CYCLE"] = 0
        elif reader.take("CYCLE"):
            clauses["CYCLE"] = 1
        elif reader.take("NO", "CACHE"):
            clauses["CACHE"] = None
        elif reader.take("CACHE"):  # not passed on: PostgreSQL caches per connection, which leaves gaps
            clauses["CACHE"] = _read_number(reader) if reader.word.isdigit() or reader.word == "-" else None
            if clauses["CACHE"] is not None and clauses["CACHE"] < 1:
                raise TsqlError(11706, f"The cache size for sequence object '{qualified_name}' must be greater than 0.")
        else:
            raise reader.failure()
    return clauses, sql_type


def _read_number(reader: PieceReader) -> int:
    return -reader.integer() if reader.take("-") else reader.integer()


# nodes that NEXT VALUE FOR may not be inside of: errors 11741, 11720 and 11719
_CONDITIONAL_NODES = (exp.Case, exp.If, exp.Coalesce, exp.Nullif)
_FORBIDDEN_CLAUSES = (exp.Where, exp.Having, exp.Group, exp.Order, exp.Join, exp.Limit, exp.Returning)
_NESTED_QUERIES = (exp.Subquery, exp.CTE)


def check_next_value_place(node: exp.Expression, is_ordered: bool) -> None:
    """Check that NEXT VALUE FOR is allowed here. `is_ordered` means that it has OVER.

    Raises:
        TsqlError: 11719, 11720, 11721, 11723 or 11741.
    """
    if node.find_ancestor(*_CONDITIONAL_NODES):
        raise TsqlError(
            11741, "NEXT VALUE FOR function cannot be used within CASE, CHOOSE, COALESCE, IIF, ISNULL and NULLIF."
        )
    if node.find_ancestor(*_FORBIDDEN_CLAUSES):
        raise TsqlError(
            11720,
            "NEXT VALUE FOR function is not allowed in the TOP, OVER, OUTPUT, ON, WHERE, GROUP BY, HAVING, or ORDER BY clauses.",
        )
    if node.find_ancestor(*_NESTED_QUERIES):
        raise nested_next_value_error()
    query = node.find_ancestor(exp.Select)
    if node.find_ancestor(exp.SetOperation) or (query is not None and query.args.get("distinct")):
        raise TsqlError(
            11721,
            "NEXT VALUE FOR function cannot be used directly in a statement that uses a DISTINCT, UNION, UNION ALL, EXCEPT "
            "or INTERSECT operator.",
        )
    if query is not None and query.args.get("order") and not is_ordered:
        raise TsqlError(
            11723,
            "NEXT VALUE FOR function cannot be used directly in a statement that contains an ORDER BY clause unless the "
            "OVER clause is specified.",
        )


def nested_next_value_error() -> TsqlError:
    """Build error 11719: NEXT VALUE FOR in a view, a function or a nested query."""
    return TsqlError(
        11719,
        "NEXT VALUE FOR function is not allowed in check constraints, default objects, computed columns, views, "
        "user-defined functions, user-defined aggregates, user-defined table types, sub-queries, common table "
        "expressions, derived tables or return statements.",
    )


def _next_value(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """Write NEXT VALUE FOR.

    The nodes are the written name of the sequence, and with OVER the row number in that order.
    """
    check_next_value_place(nodes[0], len(nodes) > 1)
    if writer.is_body():
        raise nested_next_value_error()
    qualified_name = object_name(read_table(slice_text(nodes[0].name)))
    sequence = table_name(writer, qualified_name)
    writer.record_use(sequence, "UPDATE")
    writer.table_uses.pop(sequence, None)  # isolation levels do not lock a sequence
    named, place = f"{quote_string(sequence)}::regclass", quote_string(writer.next_value_key())
    if len(nodes) == 1:
        return Sql(f"{NEXT_VALUE_CALL}{named}, {place})", BIGINT)
    writer.has_ordered_next_value = True
    return Sql(f"{NEXT_VALUE_CALL}{named}, {place}, {write_value(writer, nodes[1]).text})", BIGINT)


SPECIAL["next_value"] = _next_value
