"""FOR JSON PATH and AUTO. The document is built as text."""

from __future__ import annotations

import json
from itertools import groupby

from sqlglot import exp

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.documents.document_options import read_options, translate_rows
from servicebroker.tsql.translation.queries.results import output_name
from servicebroker.tsql.translation.text_writer import Writer, not_supported, quote_string
from servicebroker.tsql.translation.values.json_functions import is_json, json_text
from servicebroker.tsql.types import NVARCHAR, SqlType

_OPTIONS = frozenset({"PATH", "AUTO", "ROOT", "INCLUDE_NULL_VALUES", "WITHOUT_ARRAY_WRAPPER"})


def for_json(writer: Writer, node: exp.Expression, clause: exp.Expression) -> tuple[str, SqlType]:
    """Write the query as one document: a scalar query, null for no rows.

    Raises:
        TsqlError: 13605 a column without a name, 40515 AUTO over several tables.
    """
    options = read_options(clause, _OPTIONS, "FOR JSON")
    if "AUTO" in options and node.args.get("joins"):
        raise not_supported("FOR JSON AUTO over several tables", "Use FOR JSON PATH.")
    rows = translate_rows(writer, node)
    expressions = node.expressions if isinstance(node, exp.Select) else []
    members = []
    for number, output in enumerate(rows.outputs):
        if not output.name:
            raise TsqlError(
                13605,
                "Column expressions and data sources without names or aliases cannot be formatted as JSON text using FOR JSON clause. Add alias to the unnamed column or table.",
            )
        raw = len(expressions) == len(rows.outputs) and _is_json(expressions[number])
        members.append((output.name.split("."), json_text(f"c{number}", output.type, raw)))
    nulls = "INCLUDE_NULL_VALUES" in options
    text = f"string_agg({_write_object(members, nulls)}, ',')"
    if "WITHOUT_ARRAY_WRAPPER" not in options:
        text = f"'[' || {text} || ']'"
    if "ROOT" in options:
        text = f"{quote_string('{' + json.dumps(options['ROOT'] or 'root') + ':')} || {text} || '}}'"
    return f"SELECT tsql.json_escaped({text}) FROM {rows.text}", NVARCHAR


def _is_json(node: exp.Expression) -> bool:
    return is_json(output_name(node)[1])


def _write_object(members: list[tuple[list[str], str]], nulls: bool) -> str:
    parts = []
    for (nested, name), group in groupby(members, key=lambda member: (len(member[0]) > 1, member[0][0])):
        group_members = list(group)
        key = quote_string(json.dumps(name, ensure_ascii=False) + ":")
        if nested:
            nested_object = _write_object([(path[1:], text) for path, text in group_members], nulls)
            parts.append(f"{key} || nullif({nested_object}, '{{}}')")
        else:
            parts += [
                f"{key} || {f'coalesce({text}, {chr(39)}null{chr(39)})' if nulls else text}"
                for _, text in group_members
            ]
    return f"'{{' || concat_ws(',', {', '.join(parts)}) || '}}'"
