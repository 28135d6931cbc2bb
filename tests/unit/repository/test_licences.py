"""The page of licences names what is installed because of us."""

from __future__ import annotations

import tomllib

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
