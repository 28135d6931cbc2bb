"""modify() of xml: insert, delete, and replace value of; a new document with the change."""

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
_DOCUMENT = DynamicContext("tree.node", "tree.node")  # what the values in a change speak of: the document before it
_TARGET_ADVICE = "Write a path to nodes or an attribute."


class _Target(NamedTuple):
    path: Path
    attribute: str | None  # with its @: the nodes have it


class _Change(NamedTuple):
    action: str
    target: _Target
    content: str  # PostgreSQL's expression of it, in jsonb


def write_modify(writer: Writer, of: Sql, text: str, shown: str) -> Sql:
    """The document after the change. `shown` is what errors call the value.

    Raises:
        TsqlError: 2209 for what cannot be read, 2226 and 2337 where there could be several nodes, 2356 for a value of
            an element, 40515 for what is not supported.
    """
    if of.type is not None and of.type.name != "xml":
        raise TsqlError(258, f"Cannot call methods on {of.type.name}.", severity=15)
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
        f"FROM (SELECT tsql.xml_addressed(tsql.xml_tree({of.text}), {quote_string(shown)})) AS tree (node))",
        XML,
    )


def _read_change(writer: Writer, text: str) -> _Change:
    prolog, rest = "", text
    while (found := PROLOG.match(rest)) is not None:
        prolog, rest = prolog + found[0], rest[found.end() :]
    if (found := _DELETE.fullmatch(rest)) is not None:
        return _Change("delete", _read_target(writer, prolog + found["path"]), "NULL")
    if (found := _REPLACE.fullmatch(rest)) is not None:
        target = _read_target(writer, prolog + found["path"])
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
        return _Change("replace", target, f"to_jsonb({_write_value(writer, prolog + found['value'])})")
    if (found := _INSERT.fullmatch(rest)) is not None:
        return _read_insert(writer, prolog, found)
    raise TsqlError(2209, f"XQuery: Syntax error near '{rest.strip()[:40]}' in '{text[:60]}'.")


def _read_insert(writer: Writer, prolog: str, found: re.Match[str]) -> _Change:
    if found["end"] and found["where"] != "into":
        raise TsqlError(2209, f"XQuery: Syntax error near '{found['where']}' behind 'as {found['end']}'.")
    action = (found["end"] or "last") if found["where"] == "into" else found["where"]
    target = _read_target(writer, prolog + found["path"])
    if target.attribute is not None or (target.path.kind == "text" and found["where"] == "into"):
        raise TsqlError(2340, "XQuery [modify()]: The target of 'insert' must be an element.")
    if not target.path.is_single:
        raise TsqlError(2226, "XQuery [modify()]: The target of 'insert' must be a single node. Write (path)[1].")
    content = found["content"].strip()
    made = _ATTRIBUTE.fullmatch(content)
    if made is not None:
        if found["where"] != "into":
            raise TsqlError(2209, "XQuery: Syntax error: an attribute is inserted into an element.")
        value = f"to_jsonb({_write_value(writer, prolog + made['value'])})"
        return _Change("last", target._replace(attribute="@" + made["name"]), value)
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
    """What is inserted, as an array of nodes."""
    return f"tsql.xq_nodes({Compiler(writer).sequence(parse(text, writer.namespaces), _DOCUMENT)})"


def _write_value(writer: Writer, text: str) -> str:
    """The text that a value becomes."""
    return f"tsql.xq_joined({Compiler(writer).sequence(parse(text, writer.namespaces), _DOCUMENT)})"
