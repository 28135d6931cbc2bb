"""No module of the product turns data into code: no pickle or marshal, no eval or exec."""

import ast
from pathlib import Path

import pytest

import servicebroker

SOURCES = Path(servicebroker.__file__).parent.parent
MODULES = {"_pickle", "cloudpickle", "code", "codeop", "dill", "jsonpickle", "marshal", "pickle", "shelve"}
CALLS = {"__import__", "compile", "eval", "exec"}
FORBIDDEN_CODE = [
    ("import pickle", "pickle"),
    ("from marshal import loads", "marshal"),
    ("def f():\n    import shelve as s", "shelve"),
    ("eval('1')", "eval"),
    ("import builtins\nbuiltins.exec('1')", "exec"),
    ("run = eval", "eval"),
    ("import importlib\nimportlib.import_module('pickle')", "pickle"),
    ("numpy.load(file, allow_pickle=True)", "allow_pickle"),
]


def runs_data(tree):
    """Return the modules and functions in a tree that run data as code."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from MODULES & {name.name.partition(".")[0] for name in node.names}
        elif isinstance(node, ast.ImportFrom):
            yield from MODULES & {(node.module or "").partition(".")[0]}
            yield from CALLS & {name.name for name in node.names if node.module == "builtins"}
        elif isinstance(node, ast.Name):
            yield from CALLS & {node.id}
        elif isinstance(node, ast.Attribute):
            yield from CALLS & {node.attr} if ast.unparse(node.value) == "builtins" else ()
        elif isinstance(node, ast.Call):
            is_import = ast.unparse(node.func).endswith("import_module")
            yield from MODULES & {
                argument.value for argument in node.args if is_import and isinstance(argument, ast.Constant)
            }
            yield from {"allow_pickle"} & {keyword.arg for keyword in node.keywords}


@pytest.mark.parametrize(("source", "what"), FORBIDDEN_CODE)
def test_code_that_runs_data_is_found(source, what):
    assert what in [*runs_data(ast.parse(source))]


def test_the_product_never_runs_data():
    files = [*SOURCES.glob("servicebroker/**/*.py"), *SOURCES.glob("pyspark_servicebroker*.py")]
    assert len(files) > 500
    found = {(file.name, what) for file in files for what in runs_data(ast.parse(file.read_bytes()))}
    assert found == set()
