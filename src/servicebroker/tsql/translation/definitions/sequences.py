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
from servicebroker.tsql.translation.text_writer import Sql, Writer, postgres_schema, quote_string, write_value
from servicebroker.tsql.translation.values.functions import SPECIAL
from servicebroker.tsql.types import BIGINT, SqlType, postgres_type


def create_sequence(writer: Writer, reader: PieceReader) -> list[str]:
    """CREATE SEQUENCE. Without START WITH it starts at its lowest value, or at the highest when it counts down.

    Raises:
        TsqlError: 11700 to 11709 for what cannot be counted so; some are PostgreSQL's and get their number later.
    """
    sequence, own = _read_sequence(writer, reader, "CREATE SEQUENCE")
    of = BIGINT
    if reader.take("AS"):
        of, _ = read_column_type(writer, reader)
    low, high = _type_bounds(of, own)
    said = _read_clauses(reader, own, "CREATE")
    least, most = (
        _check_bound(said.get(clause), own, (low, high)[at], (low, high))
        for at, clause in enumerate(("MINVALUE", "MAXVALUE"))
    )
    step = said.get("INCREMENT") or 1
    if said.get("INCREMENT") == 0:
        raise TsqlError(11700, f"The increment for sequence object '{own}' cannot be zero.")
    if least < most and abs(step) > most - least:
        raise TsqlError(
            11701,
            f"The absolute value of the increment for sequence object '{own}' must be less than or equal to the "
            "difference between the minimum and maximum value of the sequence object.",
        )
    start = said.get("START")
    if start is None:
        start = least if step > 0 else most
    kind = postgres_type(of) if of.name in WHOLE else "bigint"
    text = (
        f"CREATE SEQUENCE {sequence} AS {kind} INCREMENT BY {step} MINVALUE {least} MAXVALUE {most} START WITH {start} "
        f"{'CYCLE' if said.get('CYCLE') else 'NO CYCLE'}"
    )
    schema = [f"CREATE SCHEMA IF NOT EXISTS {postgres_schema(own.database or writer.scope.database, '')}"]
    comment = f"COMMENT ON SEQUENCE {sequence} IS {quote_string(own.name)}"
    return [*(schema if own.schema.lower() in ("", "dbo") else []), text, comment]


def alter_sequence(writer: Writer, reader: PieceReader) -> list[str]:
    """ALTER SEQUENCE: RESTART, INCREMENT BY, MINVALUE, MAXVALUE, CYCLE and CACHE.

    Raises:
        TsqlError: 11700 to 11715 as `create_sequence`, and for clauses of CREATE alone.
    """
    sequence, own = _read_sequence(writer, reader, "ALTER SEQUENCE")
    said = _read_clauses(reader, own, "ALTER")
    if not said:
        raise TsqlError(11715, "No properties specified for ALTER SEQUENCE.")
    parts = []
    if "RESTART" in said:
        parts.append("RESTART" if said["RESTART"] is None else f"RESTART WITH {said['RESTART']}")
    if "INCREMENT" in said:
        parts.append(f"INCREMENT BY {said['INCREMENT']}")
    for clause in ("MINVALUE", "MAXVALUE"):
        if clause in said:
            parts.append(f"NO {clause}" if said[clause] is None else f"{clause} {said[clause]}")
    if "CYCLE" in said:
        parts.append("CYCLE" if said["CYCLE"] else "NO CYCLE")
    return [f"SELECT tsql.alter_sequence({quote_string(sequence)}, {quote_string(' '.join(parts))})"]


def _read_sequence(writer: Writer, reader: PieceReader, statement: str) -> tuple[str, ObjectName]:
    own = object_name(read_table(reader.dotted()))
    sequence = table_name(writer, own)
    writer.record_use(sequence, statement)
    return sequence, own


def _type_bounds(of: SqlType, own: ObjectName) -> tuple[int, int]:
    if of.name == "decimal" and not of.scale:
        most = min(10 ** (of.precision or 18) - 1, 2**63 - 1)
        return -most, most
    if of.name not in WHOLE:
        raise TsqlError(
            11702,
            f"The sequence object '{own}' must be of data type int, bigint, smallint, tinyint, or decimal or numeric "
            "with a scale of 0, or any user-defined data type that is based on one of the above integer data types.",
        )
    return WHOLE[of.name]


def _check_bound(said: int | None, own: ObjectName, otherwise: int, bounds: tuple[int, int]) -> int:
    if said is None:
        return otherwise
    if not bounds[0] <= said <= bounds[1]:
        raise TsqlError(
            11708, f"An invalid value was specified for argument '{said}' for the given data type of '{own}'."
        )
    return said


def _read_clauses(reader: PieceReader, own: ObjectName, verb: str) -> dict[str, int | None]:
    """What the clauses say, by their first word; None for NO and for RESTART alone, 1 and 0 for CYCLE."""
    said: dict[str, int | None] = {}
    while reader.word:
        if reader.take("START", "WITH"):
            if verb == "ALTER":
                raise TsqlError(11710, "Argument 'START WITH' cannot be used in an ALTER SEQUENCE statement.")
            said["START"] = _read_number(reader)
        elif reader.take("RESTART"):
            if verb == "CREATE":
                raise TsqlError(11709, "The 'RESTART WITH' argument cannot be used in a CREATE SEQUENCE statement.")
            said["RESTART"] = _read_number(reader) if reader.take("WITH") else None
        elif reader.word == "AS" and verb == "ALTER":
            raise TsqlError(11711, "Argument 'AS' cannot be used in an ALTER SEQUENCE statement.")
        elif reader.take("INCREMENT", "BY"):
            said["INCREMENT"] = _read_number(reader)
        elif reader.take("NO", "MINVALUE") or reader.take("NO", "MAXVALUE"):
            said[reader.peek(-1)] = None
        elif reader.take("MINVALUE") or reader.take("MAXVALUE"):
            clause = reader.peek(-1)
            said[clause] = _read_number(reader)
        elif reader.take("NO", "CYCLE"):
            said["CYCLE"] = 0
        elif reader.take("CYCLE"):
            said["CYCLE"] = 1
        elif reader.take("NO", "CACHE"):
            said["CACHE"] = None
        elif reader.take("CACHE"):  # PostgreSQL would keep so many for each connection, and leave gaps
            said["CACHE"] = _read_number(reader) if reader.word.isdigit() or reader.word == "-" else None
            if said["CACHE"] is not None and said["CACHE"] < 1:
                raise TsqlError(11706, f"The cache size for sequence object '{own}' must be greater than 0.")
        else:
            raise reader.failure()
    return said


def _read_number(reader: PieceReader) -> int:
    return -reader.integer() if reader.take("-") else reader.integer()


# where NEXT VALUE FOR may not stand: 11741, 11720, 11719, 11721
_CONDITIONAL_NODES = (exp.Case, exp.If, exp.Coalesce, exp.Nullif)
_FORBIDDEN_CLAUSES = (exp.Where, exp.Having, exp.Group, exp.Order, exp.Join, exp.Limit, exp.Returning)
_NESTED_QUERIES = (exp.Subquery, exp.CTE)


def check_next_value_place(node: exp.Expression, is_ordered: bool) -> None:
    """That NEXT VALUE FOR may stand here; `is_ordered` with OVER.

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
    """11719: NEXT VALUE FOR in a view, a function or a query inside of another one."""
    return TsqlError(
        11719,
        "NEXT VALUE FOR function is not allowed in check constraints, default objects, computed columns, views, "
        "user-defined functions, user-defined aggregates, user-defined table types, sub-queries, common table "
        "expressions, derived tables or return statements.",
    )


def _next_value(writer: Writer, nodes: list[exp.Expression]) -> Sql:
    """The name of the sequence, as written, and with OVER the place of the row in that order."""
    check_next_value_place(nodes[0], len(nodes) > 1)
    writer.scope_answers["body", ""] = writer.scope.is_body
    if writer.scope.is_body:
        raise nested_next_value_error()
    own = object_name(read_table(slice_text(nodes[0].name)))
    sequence = table_name(writer, own)
    writer.record_use(sequence, "UPDATE")
    writer.table_uses.pop(sequence, None)  # it has no rows that an isolation level would hold
    named, place = f"{quote_string(sequence)}::regclass", quote_string(writer.next_draw_key())
    if len(nodes) == 1:
        return Sql(f"tsql.next_in_row({named}, {place})", BIGINT)
    return Sql(f"tsql.next_in_row({named}, {place}, {write_value(writer, nodes[1]).text})", BIGINT)


SPECIAL["next_value"] = _next_value
