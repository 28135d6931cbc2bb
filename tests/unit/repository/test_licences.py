"""The page of licences names every package that is installed with servicebroker."""

from __future__ import annotations

import json
import tomllib

import pytest

import dependencies
import licences


def test_every_dependency_is_on_the_page() -> None:
    assert licences.main(["--check"]) == 0


def test_every_extra_for_users_is_on_the_page_and_in_the_readme() -> None:
    root = licences.PAGE.parents[2]
    extras = tomllib.loads((root / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert set(licences.EXTRAS) == set(extras) - {"bench", "docs", "dev"}
    for extra in licences.EXTRAS:
        assert f"`{extra}`" in licences.PAGE.read_text()
        assert f"| `servicebroker[{extra}]` |" in (root / "README.md").read_text()
        assert f"servicebroker[{extra}]" in (root / "docs/index.md").read_text()


def test_a_requirement_of_an_extra_counts_only_with_it() -> None:
    assert licences.applies("a>=1", frozenset())
    assert not licences.applies("a>=1; extra == 'bench'", frozenset())
    assert licences.applies('a>=1; python_version < "4" and extra == "c"', frozenset({"c"}))
    assert licences.normal("Typing_Extensions") == "typing-extensions"


def test_the_locked_versions_fit_the_requirements() -> None:
    assert dependencies.check() == 0
    locked = dependencies.read_lock()
    assert {"psycopg", "cryptography", "pyspark", "pytest", "six"} <= locked.keys()
    assert all(version[0].isdigit() for version in locked.values())


def test_the_sbom_lists_all_dependencies(capsys: pytest.CaptureFixture[str]) -> None:
    assert dependencies.sbom() == 0
    document = json.loads(capsys.readouterr().out)
    names = {component["name"] for component in document["components"]}
    assert {"psycopg", "cryptography", "pyspark"} <= names
    assert "pytest" not in names
    refs = {component["bom-ref"] for component in document["components"]} | {
        document["metadata"]["component"]["bom-ref"]
    }
    assert all({component["ref"], *component["dependsOn"]} <= refs for component in document["dependencies"])


def test_an_audit_says_that_it_has_looked_up_nothing(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(dependencies, "find_spec", lambda name: None)
    assert dependencies.audit() == 2
    assert "nothing was looked up" in capsys.readouterr().out
