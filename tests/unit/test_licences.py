"""The page of licences names what is installed because of us."""

from __future__ import annotations

import licences


def test_every_dependency_is_on_the_page() -> None:
    assert licences.main(["--check"]) == 0


def test_a_requirement_of_an_extra_counts_only_with_it() -> None:
    assert licences.applies("a>=1", frozenset())
    assert not licences.applies("a>=1; extra == 'bench'", frozenset())
    assert licences.applies('a>=1; python_version < "4" and extra == "c"', frozenset({"c"}))
    assert licences.normal("Typing_Extensions") == "typing-extensions"
