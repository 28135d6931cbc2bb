"""No import circle has more than two modules: shared code belongs into a third module."""

from __future__ import annotations

import networkx

from import_circles import circles, imports


def test_no_circle_has_more_than_two_modules() -> None:
    assert circles(imports()) == []


def test_a_circle_is_found() -> None:
    graph = networkx.DiGraph([("a", "b"), ("b", "a"), ("b", "c"), ("c", "d"), ("d", "e"), ("e", "c")])
    assert circles(graph) == [{"c", "d", "e"}]


def test_imports_within_functions_count_and_those_for_types_do_not() -> None:
    graph = imports()
    assert graph.has_edge("servicebroker.cli.commands.sql", "servicebroker.cli.prompt")  # asks a terminal
    assert not graph.has_edge("servicebroker.api.scripts", "servicebroker.tsql.session")
    assert graph.has_edge("servicebroker.tsql.session", "servicebroker.tsql.interpreter.machine")
