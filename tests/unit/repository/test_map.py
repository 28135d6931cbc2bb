"""The map of the code is short and correct: docs/architecture.md, and the theory in each package's docstring."""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
SOURCES = ROOT / "src/servicebroker"
PAGE = ROOT / "docs/architecture.md"
MOST_LINES = 135  # lines of the page: a newcomer reads all of it
MOST_MODULES = 30  # files of a folder
LEAST_LINES, MOST_HEAD_LINES = 10, 60  # lines of a package's docstring
REQUIRED_TEXTS = ("**The problem.**", "**The rules.**", "Begin with")
NAMED = re.compile(r"`([\w/]+\.(?:py|sql|tsv))`")
TABLE = "\n".join(re.findall(r"^\| `.*$", PAGE.read_text().partition("## Five code paths")[0], re.MULTILINE))
OTHER_FOLDERS = {"api/aio", "store/migrations"}  # the twin of `api`, and a folder with SQL
ROOMS = sorted(
    {
        room
        for room in re.findall(r"`([a-z_/]+)/`", TABLE)
        if (SOURCES / room / "__init__.py").exists() and room not in OTHER_FOLDERS
    }
)


def head(package: Path) -> str:
    """Return the docstring of a package."""
    return ast.get_docstring(ast.parse((package / "__init__.py").read_text())) or ""


def packages() -> Iterator[Path]:
    """Return the packages that contain modules, without the asyncio twins and the folders next to them."""
    for folder in sorted({file.parent for file in SOURCES.rglob("*.py")}):
        if folder.name != "aio" and any(file.name != "__init__.py" for file in folder.glob("*.py")):
            yield folder.relative_to(SOURCES)


def test_the_map_is_one_page() -> None:
    assert len(PAGE.read_text().splitlines()) <= MOST_LINES


def test_the_map_has_every_package() -> None:
    assert {"engine/conversation", "tsql/parser", "pipeline/decoding"} <= set(ROOMS)
    page = PAGE.read_text()
    around = {"tsql/translation", "cli/commands"}  # folders that describe their subfolders
    missing = [
        str(package) for package in packages() if f"`{package}/`" not in page and str(package.parent) not in around
    ]
    assert [package for package in missing if package != "."] == []


@pytest.mark.parametrize("room", ROOMS)
def test_a_package_opens_with_its_theory(room: str) -> None:
    theory = head(SOURCES / room)
    assert [name for name in REQUIRED_TEXTS if name not in theory] == []
    assert LEAST_LINES <= len(theory.splitlines()) <= MOST_HEAD_LINES


@pytest.mark.parametrize("package", sorted({str(package) for package in packages()}))
def test_every_file_that_a_head_names_is_there(package: str) -> None:
    places = (SOURCES / package, SOURCES, ROOT)
    named = NAMED.findall(head(SOURCES / package))
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_every_file_that_the_map_names_in_short_is_there() -> None:
    files = {file.name for folder in (SOURCES, ROOT / "tests") for file in folder.rglob("*.*")}
    assert [name for name in NAMED.findall(PAGE.read_text()) if Path(name).name not in files] == []


def test_a_folder_is_taken_in_at_a_glance() -> None:
    folders = Counter(file.parent.relative_to(SOURCES) for file in SOURCES.rglob("*.py"))
    crowded = {str(folder): count for folder, count in folders.items() if count > MOST_MODULES}
    assert crowded == {}


def test_test_files_have_different_names() -> None:
    """pytest imports a test file by its name alone; a second one of that name ends the whole run."""
    names = Counter(file.name for file in (ROOT / "tests").rglob("test_*.py"))
    assert [name for name, files in names.items() if files > 1] == []
