"""The baseline defines each table in one place, and migrations follow it."""

from __future__ import annotations

import itertools
import re
from importlib import resources

import pytest

from servicebroker.model.errors import InstanceError
from servicebroker.store import migrations
from servicebroker.store.migrations import BASELINE_NUMBER, check_complete, check_known

FOLDER = resources.files(migrations) / "baseline"
CODE = "\n".join(re.sub(r"--.*", "", line) for line in migrations.migrations()[0].text.splitlines())


def test_the_baseline_is_every_file_of_its_folder() -> None:
    texts = [file.read_text() for file in FOLDER.iterdir()]
    assert len(texts) > 5
    assert sorted(migrations.migrations()[0].text.split()) == sorted(" ".join(texts).split())


def test_a_table_is_made_in_one_place() -> None:
    """ALTER TABLE only sets the storage of columns: CREATE TABLE can do that since PostgreSQL 16."""
    made = re.findall(r"\bcreate (?:unlogged )?table (?:if not exists )?([\w.]+)", CODE)
    assert len(made) > 70
    assert len(made) == len(set(made))
    altered = re.findall(r"\balter table ([^;]+);", CODE)
    assert [change for change in altered if "set storage" not in change] == []
    assert not re.search(r"\b(?:drop|or replace) ", CODE)


def test_every_table_of_the_baseline_has_a_comment() -> None:
    lines = migrations.migrations()[0].text.splitlines()
    bare = [
        line
        for before, line in itertools.pairwise(lines)
        if re.match(r"create (unlogged )?table ", line) and not before.startswith("--")
    ]
    assert bare == []


def test_later_migrations_have_later_numbers() -> None:
    numbers = [step.number for step in migrations.migrations()]
    assert numbers[0] == BASELINE_NUMBER
    assert numbers == sorted(set(numbers))


def test_an_instance_with_the_baseline_is_known() -> None:
    """The instance may come from the files before the baseline, or from the baseline."""
    check_known(set())
    check_known({BASELINE_NUMBER})
    check_known(set(range(1, BASELINE_NUMBER + 1)))
    check_complete({1, 7, *(step.number for step in migrations.migrations())})


@pytest.mark.parametrize("applied", [{1}, set(range(1, BASELINE_NUMBER))])
def test_an_instance_from_before_the_baseline_is_refused(applied: set[int]) -> None:
    pattern = (
        f"schema is number {max(applied)}, .* upgrades from number {BASELINE_NUMBER}. Open it first with a version"
    )
    for check in (check_known, check_complete):
        with pytest.raises(InstanceError, match=pattern):
            check(applied)


def test_an_instance_of_a_newer_version_is_refused() -> None:
    with pytest.raises(InstanceError, match=r"number 9999, .* upgrade servicebroker"):
        check_known({BASELINE_NUMBER, 9999})
