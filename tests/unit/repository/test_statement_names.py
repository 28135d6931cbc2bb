"""Every statement has a unique name that tells its place in the code."""

from __future__ import annotations

import ast
import functools
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

import pytest

import servicebroker
from servicebroker.store.sql_files import statements_by_name

SOURCES = Path(servicebroker.__file__).parent
NAMED_AT = {"Statement": 0, "SQL": 0, "text_of": 0, "execute": 1, "fetch": 1}  # the position of the name argument


class Site(NamedTuple):
    """A call that creates a statement; `name` is None if the call does not contain it.

    `is_of_file`: its text is in the SQL file next to the module. `is_static`: the text is in the call.
    """

    file: Path
    function: str
    name: str | None
    line: int
    is_of_file: bool = False
    is_static: bool = False

    @property
    def name_prefix(self) -> str:
        """Return the required beginning of the name."""
        stem, own = self.file.stem, self.function.strip("_").lower()
        folder = next(parent.name for parent in self.file.parents if parent.name != "aio")
        return f"{folder if stem in (own, '__init__') else stem}.{own}"


@functools.cache
def sites() -> list[Site]:
    """Return every call in files that are not generated."""
    texts = {file: file.read_text() for file in sorted(SOURCES.rglob("*.py"))}
    return [
        site
        for file, text in texts.items()
        if re.search(r"\b(Statement|SQL|execute|fetch|text_of)\(", text) and not text.startswith("# Made from")
        for site in _sites(file, ast.parse(text), "")
    ]


def _sites(file: Path, node: ast.AST, function: str) -> Iterator[Site]:
    for child in ast.iter_child_nodes(node):
        inner = function
        if not function and isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
            inner = child.name
        if not function and isinstance(child, ast.Assign) and isinstance(child.targets[0], ast.Name):
            inner = child.targets[0].id
        if isinstance(child, ast.Call) and isinstance(child.func, ast.Name) and child.func.id in NAMED_AT:
            name = _name(child.args[NAMED_AT[child.func.id]])
            is_of_file = child.func.id == "SQL"
            is_static = child.func.id == "Statement" and isinstance(child.args[1], ast.Constant)
            whole = f"{file.stem}.{name}" if is_of_file else name
            yield Site(file, function, whole, child.lineno, is_of_file, is_static)
        yield from _sites(file, child, inner)


def _name(given: ast.expr) -> str | None:
    return given.value if isinstance(given, ast.Constant) else None


PASSED_ON = {  # the name that the statement already has
    ("sql_files.py", "__call__"),
    ("running.py", "execute"),
    ("running.py", "fetch"),
    ("running.py", "_rows"),
    ("running.py", "_fetched"),
    ("direct.py", "_counted"),
    ("direct.py", "together"),
    ("__init__.py", "_recreate_objects"),
    ("renaming.py", "_update_catalog"),
}


def test_each_has_a_name_that_says_where_it_is() -> None:
    statements = sites()
    assert len(statements) > 500
    wrong = [
        f"{site.file.name}:{site.line}: {site.name} is not of {site.name_prefix}"
        for site in statements
        if (site.file.name, site.function) not in PASSED_ON
        and not (site.name == "queue." or re.fullmatch(rf"{re.escape(site.name_prefix)}(\.[a-z_]+)?", site.name or ""))
    ]
    assert wrong == []


def test_no_two_have_one_name() -> None:
    many = Counter(site.name for site in sites() if site.name not in (None, "queue."))
    assert [name for name, times in many.items() if times > 1] == []


FILES = sorted({site.file.with_suffix(".sql") for site in sites() if site.is_of_file})


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_a_file_has_the_statements_of_its_module(file: Path) -> None:
    used = [site.name for site in sites() if site.is_of_file and site.file == file.with_suffix(".py")]
    assert sorted(used, key=str) == sorted(f"{file.stem}.{name}" for name in statements_by_name(file.read_text()))


def test_static_text_stands_in_a_file() -> None:
    assert len(FILES) > 60
    written = [site for site in sites() if site.is_static and "api" not in site.file.parts]
    assert written == []
