"""Lists the licences of what servicebroker needs: docs/reference/licences.md, from the metadata of what is installed.

python tools/licences.py           writes the page
python tools/licences.py --check   fails when a dependency of pyproject.toml is not on it
"""

from __future__ import annotations

import re
import sys
import tomllib
from importlib.metadata import PackageNotFoundError, distribution
from pathlib import Path

PAGE = Path(__file__).parent.parent / "docs/reference/licences.md"
NAME = "servicebroker"
EXTRAS = (
    "spark",
    "dashboard",
    "iceberg",
    "lineage",
    "otel",
)  # extras for users, without those for measurements and tests

_HEAD = """\
# Licences of the dependencies

What `pip install servicebroker` brings, directly or through others, and what the extras `spark`, `dashboard`,
`iceberg`, `lineage` and `otel` add; made by `python tools/licences.py` from what the packages say of themselves.
servicebroker itself is under the Apache License 2.0.

| package | licence | needed by |
|---|---|---|
"""


def main(arguments: list[str]) -> int:
    """Write the page, or with --check only look; 1 when something is missing there."""
    found = needed()
    if "--check" in arguments:
        text = PAGE.read_text(encoding="utf-8")
        missing = [name for name, by in found.items() if NAME in by and f"| {name} |" not in text]
        print("not on the page:" if missing else "the page is complete", *missing)
        return 1 if missing else 0
    rows = [f"| {name} | {licence(name)} | {', '.join(sorted(by))} |" for name, by in sorted(found.items())]
    PAGE.write_text(_HEAD + "\n".join(rows) + "\n", encoding="utf-8")
    return 0


def needed() -> dict[str, set[str]]:
    """Each package that is installed because of ours, and the packages that ask for it."""
    found: dict[str, set[str]] = {}
    waiting = [(NAME, frozenset[str]())]
    seen = set(waiting)
    while waiting:
        name, extras = waiting.pop()
        for requirement in requirements(name):
            if not applies(requirement, extras):
                continue
            other = normal(re.split(r"[\s\[<>=!~;(]", requirement, maxsplit=1)[0])
            wanted = re.search(r"\[([^]]*)\]", requirement.split(";")[0])
            one = (other, frozenset(wanted[1].replace(" ", "").split(",")) if wanted else frozenset[str]())
            if is_installed(other):
                found.setdefault(other, set()).add(name)
                if one not in seen:
                    seen.add(one)
                    waiting.append(one)
    return found


def requirements(name: str) -> list[str]:
    """Return the requirements of a package; for our own, those of pyproject.toml with the extras of the page."""
    if name != NAME:
        return distribution(name).requires or []
    project = tomllib.loads((PAGE.parents[2] / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    extras = project["optional-dependencies"]
    return [*project["dependencies"], *(one for extra in EXTRAS for one in extras[extra])]


def applies(requirement: str, extras: frozenset[str]) -> bool:
    """Return whether a requirement belongs to no extra, or to one of these."""
    named = re.findall(r"extra\s*==\s*['\"]([^'\"]+)['\"]", requirement)
    return not named or bool(extras.intersection(named))


def is_installed(name: str) -> bool:
    """Return whether the package is installed."""
    try:
        distribution(name)
    except PackageNotFoundError:
        return False
    return True


def licence(name: str) -> str:
    """Return the licence that the package declares, in a few words."""
    said = distribution(name).metadata
    classified = [one.split(" :: ")[-1] for one in said.get_all("Classifier") or [] if one.startswith("License ::")]
    text = said.get("License-Expression") or ", ".join(classified) or (said.get("License") or "").split("\n")[0]
    return text.strip() or "see its files"


def normal(name: str) -> str:
    """A package's name as the index compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
