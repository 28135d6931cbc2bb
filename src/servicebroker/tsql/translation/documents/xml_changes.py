"""modify() of xml: insert, delete, and replace value of. The result is a changed copy of the document."""

from __future__ import annotations

import json
import re
from typing import NamedTuple

from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.translation.documents.xml_paths import Path, jsonpath_variables, number_variables, read_path
from servicebroker.tsql.translation.documents.xquery import Compiler, DynamicContext
from servicebroker.tsql.translation.documents.xquery_parser import PROLOG, parse
from servicebroker.tsql.translation.text_writer import Sql, Writer, not_supported, quote_string
from servicebroker.tsql.types import XML

_DELETE = re.compile(r"\s*delete\s+(?P<path>.+)", re.DOTALL)
_REPLACE = re.compile(r"\s*replace\s+value\s+of\s+(?P<path>.+?)\s+with\s+(?P<value>.+)", re.DOTALL)
_INSERT = re.compile(
    r"""\s*insert\s+(?P<content>.*[>)}\]])\s*(?:as\s+(?P<end>first|last)\s+)?(?P<where>into|before|after)\s+
    (?P<path>(?:[^<>"']|"[^"]*"|'[^']*')+)""",
    re.DOTALL | re.VERBOSE,
)
_ATTRIBUTE = re.compile(r"attribute\s+(?P<name>[A-Za-z_][\w.-]*)\s*\{(?P<value>.+)\}", re.DOTALL)
_OF_ATTRIBUTE = re.compile(r"""\.a\.("(?:[^"\\]|\\.)*")$""")
_DOCUMENT = DynamicContext("tree.node", "tree.node")  # values in a change refer to the document before it
_TARGET_ADVICE = "Write a path to nodes or an attribute."


class _Target(NamedTuple):
    path: Path
    attribute: str | None  # name of an attribute with @; the path then finds its elements


class _Change(NamedTuple):
    action: str
    target: _Target
    content: str  # PostgreSQL's expression of the content, in jsonb


def write_modify(writer: Writer, xml: Sql, text: str, value_name: str) -> Sql:
    """Write the document after the change. `value_name` is the name of the value in errors.

    Raises:
        TsqlError: 258 the target is not an xml, 2209 wrong syntax, 2226 and 2337 the path may find several nodes, 2356 the
            value of an element, 40515 not supported.
    """
    if xml.type is not None and xml.type.name != "xml":
        raise TsqlError(258, f"Cannot call methods on {xml.type.name}.", severity=15)
    change = _read_change(writer, text)
    place = "tree.node"
    for stage in change.target.path.stages[:-1]:
        place = f"tsql.xml_item({place}, {quote_string(stage.path)}, {stage.place or 0}{jsonpath_variables(writer, change.target.path.variables)})"
    last = change.target.path.stages[-1]
    numbers = f"tsql.xml_numbers({place}, {quote_string(last.path or 'strict $')}{jsonpath_variables(writer, change.target.path.variables)})"
    if last.place is not None:
        numbers = f"coalesce(jsonb_build_array({numbers} -> {last.place}), '[]')"
    attribute = "NULL" if change.target.attribute is None else quote_string(change.target.attribute)
    return Sql(
        f"(SELECT tsql.xml_written(tsql.xml_changed(tree.node, {numbers}, '{change.action}', {attribute}, {change.content})) "
        f"FROM (SELECT tsql.xml_addressed(tsql.xml_tree({xml.text}), {quote_string(value_name)})) AS tree (node))",
        XML,
    )


def _read_change(writer: Writer, text: str) -> _Change:
    prolog, rest = "", text
    while (match := PROLOG.match(rest)) is not None:
        prolog, rest = prolog + match[0], rest[match.end() :]
    if (match := _DELETE.fullmatch(rest)) is not None:
        return _Change("delete", _read_target(writer, prolog + match["path"]), "NULL")
    if (match := _REPLACE.fullmatch(rest)) is not None:
        target = _read_target(writer, prolog + match["path"])
        if not target.path.is_single:
            raise TsqlError(
                2337, "XQuery [modify()]: The target of 'replace' must be at most one node. Write (path)[1]."
            )
        if target.attribute is None and target.path.kind != "text":
            raise TsqlError(
                2356,
                "XQuery [modify()]: The target of 'replace value of' must be a non-metadata attribute or an element with "
                "simple typed content. Write (path/text())[1].",
            )
        return _Change("replace", target, f"to_jsonb({_write_value(writer, prolog + match['value'])})")
    if (match := _INSERT.fullmatch(rest)) is not None:
        return _read_insert(writer, prolog, match)
    raise TsqlError(2209, f"XQuery: Syntax error near '{rest.strip()[:40]}' in '{text[:60]}'.")


def _read_insert(writer: Writer, prolog: str, match: re.Match[str]) -> _Change:
    if match["end"] and match["where"] != "into":
        raise TsqlError(2209, f"XQuery: Syntax error near '{match['where']}' behind 'as {match['end']}'.")
    action = (match["end"] or "last") if match["where"] == "into" else match["where"]
    target = _read_target(writer, prolog + match["path"])
    if target.attribute is not None or (target.path.kind == "text" and match["where"] == "into"):
        raise TsqlError(2340, "XQuery [modify()]: The target of 'insert' must be an element.")
    if not target.path.is_single:
        raise TsqlError(2226, "XQuery [modify()]: The target of 'insert' must be a single node. Write (path)[1].")
    content = match["content"].strip()
    attribute = _ATTRIBUTE.fullmatch(content)
    if attribute is not None:
        if match["where"] != "into":
            raise TsqlError(2209, "XQuery: Syntax error: an attribute is inserted into an element.")
        value = f"to_jsonb({_write_value(writer, prolog + attribute['value'])})"
        return _Change("last", target._replace(attribute="@" + attribute["name"]), value)
    return _Change(action, target, _write_nodes(writer, prolog + content))


def _read_target(writer: Writer, text: str) -> _Target:
    path = read_path(text, writer.namespaces, number_variables(writer))
    if path.function:
        raise not_supported(f"modify() of {path.function}()", _TARGET_ADVICE)
    last = path.stages[-1]
    if last.path.startswith("$v"):
        raise not_supported("modify() of sql:variable()", "Change the variable itself.")
    owned = _OF_ATTRIBUTE.search(last.path)
    if owned is None and path.kind == "attribute":
        raise not_supported("modify() of all attributes", "Name the attribute.")
    if owned is None:
        return _Target(path, None)
    stages = (*path.stages[:-1], last._replace(path=last.path[: owned.start()]))
    return _Target(path._replace(stages=stages), json.loads(owned[1]))


def _write_nodes(writer: Writer, text: str) -> str:
    """Write the inserted content as an array of nodes."""
    return f"tsql.xq_nodes({Compiler(writer).sequence(parse(text, writer.namespaces), _DOCUMENT)})"


def _write_value(writer: Writer, text: str) -> str:
    """Write a value as text."""
    return f"tsql.xq_joined({Compiler(writer).sequence(parse(text, writer.namespaces), _DOCUMENT)})"
