"""The versions of all dependencies: lock them, list them for a release, look them up among known vulnerabilities.

Usage: python tools/dependencies.py lock | check | sbom | audit. `lock` writes constraints.txt from what is installed.
`check` compares that with pyproject.toml. `sbom` prints what a release brings to its users, as CycloneDX. `audit` asks
pip-audit about constraints.txt, and says so where there is no database.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterable
from importlib.metadata import distribution, version
from importlib.util import find_spec
from pathlib import Path

from packaging.requirements import Requirement

from licences import NAME, is_installed, licence, needed, normal

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "constraints.txt"
AUDIT_TIMEOUT_S = 300.0

_HEAD = """\
# The versions that the tests have run with, of all dependencies and extras; made by `make lock`.
# pip install --constraint constraints.txt 'servicebroker[...]' installs these, and PIP_CONSTRAINT does so in CI.
"""


def lock() -> int:
    """Write the versions of what is installed because of ours."""
    missing = [name for name in map(name_of, wanted()) if not is_installed(name)]
    if missing:
        print("not installed, so not locked:", *missing)
    LOCK.write_text(_HEAD + "".join(f"{name}=={version(name)}\n" for name in closure(wanted())), encoding="utf-8")
    return 0


def check() -> int:
    """Report dependencies of pyproject.toml that the lock lacks or contradicts."""
    locked, wrong = read_lock(), []
    for requirement in map(Requirement, wanted()):
        found = locked.get(normal(requirement.name))
        if is_installed(requirement.name) if found is None else not requirement.specifier.contains(found):
            wrong.append(f"{requirement} is locked as {found}")
    print("constraints.txt is out of date, make lock:" if wrong else "constraints.txt fits pyproject.toml", *wrong)
    return 1 if wrong else 0


def sbom() -> int:
    """Print the packages that users of a release get, with extras, as CycloneDX 1.5."""
    by_name = needed()
    components = [component(name) for name in sorted(by_name)]
    dependencies: dict[str, list[str]] = {purl(name): [] for name in (NAME, *by_name)}
    for name, askers in sorted(by_name.items()):
        for asker in askers:
            dependencies[purl(asker)].append(purl(name))
    told = {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": component(NAME)},
        "components": components,
        "dependencies": [{"ref": ref, "dependsOn": others} for ref, others in dependencies.items()],
    }
    print(json.dumps(told, indent=2))
    return 0


def audit() -> int:
    """Look up the locked versions among known vulnerabilities: 1 if one is found, 2 if nobody could be asked."""
    if find_spec("pip_audit") is None:
        print("pip-audit is not installed, so nothing was looked up: pip install pip-audit")
        return 2
    command = [sys.executable, "-m", "pip_audit", "--requirement", str(LOCK), "--no-deps", "--disable-pip"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=AUDIT_TIMEOUT_S, check=False)
    except subprocess.TimeoutExpired:
        print("The database of vulnerabilities did not answer in time, so nothing was looked up.")
        return 2
    print(done.stdout, done.stderr, sep="\n")
    unknown = done.stdout.count("could not be audited")
    if unknown or "ConnectionError" in done.stderr or "ServiceError" in done.stderr:
        print(f"{unknown or 'All'} of {len(read_lock())} packages were not looked up: no database knows them here.")
        return done.returncode or 2
    return done.returncode


def wanted() -> list[str]:
    """Return the requirements in pyproject.toml, of all extras."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    return [*project["dependencies"], *(one for extra in project["optional-dependencies"].values() for one in extra)]


def name_of(requirement: str) -> str:
    """Return the name of the package that a requirement asks for."""
    return normal(Requirement(requirement).name)


def closure(requirements: Iterable[str]) -> list[str]:
    """Return the packages that are installed because of these requirements, sorted by name."""
    waiting = [*map(Requirement, requirements)]
    seen: set[tuple[str, frozenset[str]]] = set()
    while waiting:
        requirement = waiting.pop()
        key = normal(requirement.name), frozenset(requirement.extras)
        if key in seen or not is_installed(requirement.name):
            continue
        seen.add(key)
        for other in map(Requirement, distribution(requirement.name).requires or ()):
            extras = requirement.extras or {""}
            if other.marker is None or any(other.marker.evaluate({"extra": extra}) for extra in ("", *extras)):
                waiting.append(other)
    return sorted({name for name, _ in seen})


def read_lock() -> dict[str, str]:
    """Return the locked version of each package."""
    lines = LOCK.read_text(encoding="utf-8").splitlines()
    return dict(line.split("==") for line in lines if line and not line.startswith("#"))


def component(name: str) -> dict[str, object]:
    """Return a package as CycloneDX has it."""
    return {
        "type": "library",
        "bom-ref": purl(name),
        "name": name,
        "version": version(name),
        "purl": purl(name),
        "licenses": [{"license": {"name": licence(name)}}],
    }


def purl(name: str) -> str:
    """Return the package's URL."""
    return f"pkg:pypi/{normal(name)}@{version(name)}"


COMMANDS: dict[str, Callable[[], int]] = {"lock": lock, "check": check, "sbom": sbom, "audit": audit}

if __name__ == "__main__":
    if len(sys.argv) != 2 or sys.argv[1] not in COMMANDS:
        sys.exit(f"usage: {sys.argv[0]} {' | '.join(COMMANDS)}")
    sys.exit(COMMANDS[sys.argv[1]]())
