"""An application loads only the modules that it uses, measured in a new process."""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest
from typer.testing import CliRunner

from servicebroker.cli.main import COMMANDS, EXTRAS, app, load

PRINT_MODULES = "import sys, json; print(); print(json.dumps(sorted(sys.modules)))"
OTHERS = ("tsql", "pipeline", "broker", "engine", "store", "dashboard")
HEAVY = ("psycopg", "psycopg_pool", "asyncio", "lxml", "cryptography", "pyspark", "pyarrow", "starlette", "uvicorn")


def loaded_modules(program: str) -> set[str]:
    """Run a program in a new process, and return its loaded modules."""
    result = subprocess.run(
        [sys.executable, "-c", f"{program}\n{PRINT_MODULES}"], capture_output=True, text=True, check=True
    )
    return set(json.loads(result.stdout.splitlines()[-1]))


def command(*arguments: str) -> str:
    """Return a program that runs `servicebroker` with these arguments."""
    return (
        "import contextlib\nfrom servicebroker.cli.main import app\n"
        f"with contextlib.suppress(SystemExit): app({list(arguments)!r})"
    )


@pytest.mark.parametrize(
    ("program", "most", "absent"),
    [
        ("import servicebroker", 130, (*HEAVY, "typer", "rich")),
        (command("--version"), 300, (*HEAVY, "rich")),
        (command("--help"), 360, HEAVY),
        (command(), 360, HEAVY),
    ],
    ids=["import", "version", "help", "nothing"],
)
def test_little_is_loaded(program: str, most: int, absent: tuple[str, ...]) -> None:
    modules = loaded_modules(program)
    assert not modules & {*absent, *(f"servicebroker.{name}" for name in OTHERS)}
    assert len(modules) <= most


def test_an_opened_instance_needs_neither_scripts_nor_commands() -> None:
    modules = loaded_modules("import servicebroker\nservicebroker.open")
    faces = ("tsql", "pipeline", "broker", "cli", "testing", "dashboard")
    assert not modules & {"typer", "rich", "sqlglot", "starlette", *(f"servicebroker.{name}" for name in faces)}


def test_the_engine_loads_no_driver() -> None:
    modules = loaded_modules(
        "import pkgutil, importlib, servicebroker.engine as engine\n"
        "for one in pkgutil.walk_packages(engine.__path__, engine.__name__ + '.'): importlib.import_module(one.name)"
    )
    assert "servicebroker.engine.conversation.send" in modules
    assert not modules & {"psycopg", "psycopg_pool", "psycopg_binary", "asyncio"}


@pytest.mark.parametrize("name", COMMANDS)
def test_the_list_of_commands_has_the_help_of_each(name: str) -> None:
    assert " ".join(load(name).help.split()) == COMMANDS[name].help


def test_a_missing_command_is_refused() -> None:
    refused = CliRunner().invoke(app, ["statu"])
    assert refused.exit_code == 2
    assert "Did you mean 'status'" in refused.stderr


@pytest.mark.parametrize(
    ("missing", "arguments", "extra"),
    [
        ("pyspark", ["pipeline", "run", "x.toml"], "spark"),
        ("pyspark", ["demo", "--input", "x"], "spark"),
        ("uvicorn", ["dashboard"], "dashboard"),
        ("starlette", ["dashboard", "--host", "0.0.0.0"], "dashboard"),
    ],
)
def test_a_missing_extra_is_said_in_one_sentence(
    missing: str, arguments: list[str], extra: str, tmp_path: Path
) -> None:
    (tmp_path / "x.toml").write_text(
        '[pipeline]\nname = "x"\nwarehouse = "w"\n[[queue]]\ninstance = "i"\ndatabase = "D"\nqueue = "Q"\n'
    )
    (tmp_path / "x").write_text("a line\n")
    program = (
        f"import sys\nsys.modules[{missing!r}] = None\nfrom servicebroker.cli.main import main\n"
        f"sys.argv[1:] = {arguments!r}\nmain()"
    )
    result = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert result.returncode == 1
    assert result.stderr.endswith(f"is not installed: pip install 'servicebroker[{extra}]'.\n")
    assert result.stderr.count("\n") == 1


def test_every_module_of_an_extra_is_named_by_the_error_for_it() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    modules: dict[str, set[str]] = {}
    for module, distributions in packages_distributions().items():
        for distribution in distributions:
            modules.setdefault(distribution.lower().replace("_", "-"), set()).add(module)
    named = re.compile(r"[\w-]+")
    always = {named.match(dependency)[0] for dependency in project["dependencies"]}  # type: ignore[index]
    extras = {name: given for name, given in project["optional-dependencies"].items() if name not in ("dev", "docs")}
    unknown = [
        f"{name} of {extra}"
        for extra, given in extras.items()
        for name in (named.match(requirement)[0] for requirement in given)  # type: ignore[index]
        if name not in always and name in modules and not any(EXTRAS.get(each) == extra for each in modules[name])
    ]
    assert unknown == []
    assert set(EXTRAS.values()) == set(extras)
