"""Mutation testing of a small project: killed, surviving and hanging mutants, a resumed run, SQL, the report."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("cosmic_ray", reason="cosmic-ray comes with the extra dev")

from servicebroker_lab.mutation import command, python_operators, sql_operators, trial
from servicebroker_lab.mutation.drawing import Mutant, candidates, draw, plant
from servicebroker_lab.mutation.project import PACKAGES, Copies, Copy, Project
from servicebroker_lab.mutation.reach import Reach
from servicebroker_lab.mutation.results import Equivalents, Result, Results, report

ROOT = Path(__file__).parents[3]
TILL = "src/shop/store/till.py"
FILES = {
    "src/shop/__init__.py": "",
    "src/shop/store/__init__.py": "",
    TILL: """\
LIMIT: int | None = 10

def total(prices):
    result = 0
    for price in prices:
        result += price
    return result

def is_large(amount):
    return amount > LIMIT

def count_down(number):
    while number > 0:
        number -= 1
    return number

def unused(number):
    return number + 1
""",
    "tests/test_till.py": """\
from shop.store.till import count_down, is_large, total

def test_total():
    assert total([1, 2]) == 3

def test_large():
    assert is_large(20) and not is_large(5)

def test_count_down():
    assert count_down(2) == 0
""",
}


@pytest.fixture(scope="module")
def project(tmp_path_factory: pytest.TempPathFactory) -> Project:
    root = tmp_path_factory.mktemp("shop")
    for name, text in FILES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    subprocess.run(["git", "init", "--quiet"], cwd=root, check=True)
    cache = tmp_path_factory.mktemp("cache")
    return Project(root, cache, sources="src/shop", packages=("store",), pytest_options=())


@pytest.fixture(scope="module")
def copies(project: Project) -> Copies:
    return Copies(project, 1)


@pytest.fixture
def copy(copies: Copies) -> Iterator[Copy]:
    with copies.lend() as copy:
        yield copy


@pytest.fixture(scope="module")
def reach(project: Project, copies: Copies) -> Reach:
    reach = Reach(project)
    reach.record(copies, project.test_files(), lambda line: None)
    return reach


def first_mutant(project: Project, operator: str, line: int) -> Mutant:
    """Return the first mutant of an operator in a line of the file TILL."""
    text = (project.root / TILL).read_text()
    found = next(
        candidate for candidate in candidates(TILL, text) if (candidate.operator, candidate.line) == (operator, line)
    )
    mutant = plant(TILL, text, found)
    assert mutant is not None
    return mutant


def run_mutant(project: Project, copy: Copy, reach: Reach, operator: str, line: int) -> trial.Outcome:
    mutant = first_mutant(project, operator, line)
    outcome = trial.run_trial(copy, mutant, reach.choose(TILL, line, 60.0))
    assert (copy.root / TILL).read_text() == FILES[TILL]
    return outcome


def test_tests_are_chosen_by_the_lines_that_they_reach(project: Project, reach: Reach) -> None:
    assert list(reach.tests_of(TILL, 6)) == ["tests/test_till.py::test_total"]
    assert reach.choose(TILL, 10, 60.0).tests == ["tests/test_till.py::test_large"]
    assert reach.tests_of(TILL, 18) == {}
    assert len(reach.tests_of(TILL, 1)) == 3, "a constant belongs to all tests of its module"
    assert Reach(project).missing(project.test_files()) == [], "what was recorded is not recorded again"


def test_a_mutant_that_a_test_kills(project: Project, copy: Copy, reach: Reach) -> None:
    outcome = run_mutant(project, copy, reach, "DropStatement", 6)
    assert (outcome.outcome, outcome.killer) == (trial.KILLED, "tests/test_till.py::test_total")


def test_a_mutant_that_survives(project: Project, copy: Copy, reach: Reach) -> None:
    assert run_mutant(project, copy, reach, "ReplaceComparisonOperator_Gt_GtE", 10).outcome == trial.SURVIVED


def test_a_run_that_fails_after_its_tests_kills_nothing(
    project: Project, copy: Copy, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    result = subprocess.CompletedProcess([], 1, "..\n2 passed, 1 deselected in 0.1s\nResourceWarning: not closed\n")
    monkeypatch.setattr(copy, "run_tests", lambda *arguments: result)
    assert run_mutant(project, copy, reach, "DropStatement", 6).outcome == trial.SURVIVED


def test_a_mutant_that_hangs_is_stopped(
    project: Project, copy: Copy, reach: Reach, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(trial, "STARTUP_S", 3.0)
    assert run_mutant(project, copy, reach, "DropStatement", 14).outcome == trial.HUNG


def test_a_mutant_that_no_test_reaches(project: Project, copy: Copy, reach: Reach) -> None:
    assert run_mutant(project, copy, reach, "ReplaceBinaryOperator_Add_Sub", 18).outcome == trial.UNREACHED


def test_a_run_continues_where_it_stopped(
    project: Project, copies: Copies, reach: Reach, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    tried: list[str] = []

    def run_trial(copy: Copy, mutant: Mutant, choice: object) -> trial.Outcome:
        tried.append(mutant.identifier)
        return trial.Outcome(trial.SURVIVED if len(tried) == 1 else trial.KILLED, "", 0.0)

    monkeypatch.setattr(command, "run_trial", run_trial)
    file = tmp_path / "results.jsonl"
    command.run_mutants(project, copies, reach, Results(file), seed=3, count=4)
    assert len(tried) == 4
    file.write_text(file.read_text() + '{"identifier": "half a li')  # the state after a killed run
    command.run_mutants(project, copies, reach, Results(file), seed=3, count=6)
    assert len(tried) == len(set(tried)) == 6
    command.run_mutants(project, copies, reach, Results(file), seed=3, count=6, again=True)
    assert tried[6:] == tried[:1], "a survivor is tried again on request"


def test_a_seed_draws_the_same_mutants_again(project: Project) -> None:
    first, again = list(draw(project, 5)), list(draw(project, 5))
    assert first == again
    assert len({mutant.identifier for mutant in first}) == len(first) > 10


def test_a_mutant_is_the_same_when_the_file_changes_elsewhere() -> None:
    text = FILES[TILL]
    longer = f"import os\n{text}"
    mutants = [[plant(TILL, source, candidate) for candidate in candidates(TILL, source)] for source in (text, longer)]
    names, others = ([mutant.identifier for mutant in some if mutant] for some in mutants)
    assert set(others) >= set(names[-5:]), "faults far from the change keep their names"
    assert len(set(names)) == len(names), "each fault of a file has a name of its own"


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("DropStatement", "if x:\n    raise ValueError(x)\n", "if x:\n    pass\n"),
        ("DropStatement", "def f():\n    yield from check(x)\n", "def f():\n    pass\n"),
        ("DropOperand", "y = a and b and c\n", "y = b and c\n"),
        ("ReplaceComparisonOperator_Lt_LtE", "y = a < b\n", "y = a <= b\n"),
    ],
)
def test_python_operators_plant_their_change(operator: str, before: str, after: str) -> None:
    candidate = next(item for item in python_operators.candidates(before) if item.operator == operator)
    changed = python_operators.plant(before, candidate)
    assert changed is not None
    assert changed.split() == after.split()


def test_operands_are_dropped_one_at_a_time() -> None:
    text = "y = a and b and c\n"
    places = [candidate for candidate in python_operators.candidates(text) if candidate.operator == "DropOperand"]
    changed = [str(python_operators.plant(text, place)).split("=")[1].split() for place in places]
    assert changed == [["b", "and", "c"], ["a", "and", "c"], ["a", "and", "b"]]


def test_a_place_at_which_an_operator_fails_has_no_mutant() -> None:
    text = "try:\n    f()\nexcept (module.Error, Other):\n    pass\n"
    places = [candidate for candidate in python_operators.candidates(text) if candidate.operator == "ExceptionReplacer"]
    assert python_operators.plant(text, places[0]) is None


def test_annotations_and_logs_are_left_out() -> None:
    text = "x: Literal[1] = y\ndef f(a: Literal[2]) -> Literal[3]:\n    _LOG.info('x')\n"
    assert list(python_operators.candidates(text)) == []


@pytest.mark.parametrize(
    ("operator", "before", "after"),
    [
        ("DropSkipLocked", "select 1 from t for update skip locked)", "select 1 from t for update )"),
        ("DropForUpdate", "select 1 from t order by a for update of t skip locked)", "select 1 from t order by a )"),
        ("DropAdvisoryLock", "perform pg_advisory_xact_lock(f(1), 2);", "perform 1;"),
        ("EqualToUnequal", "update t set a = 1 where t.b = 2", "update t set a = 1 where t.b <> 2"),
        ("LessOrEqualToLess", "where a <= b", "where a < b"),
        ("IsNullToIsNotNull", "where a is null", "where a is not null"),
        ("DropNot", "where not exists (select)", "where exists (select)"),
        ("OffByOne", "set n = n + 1", "set n = n + 0"),
        ("DropDescending", "order by a desc", "order by a"),
        ("DropClause", "where a = f(b, c)\n  and d = any (e)\n  order by x", "where a = f(b, c)\n  \n  order by x"),
        ("DropClause", "(select from t where a and (b or c)) x", "(select from t where a ) x"),
        ("DropClause", "where a and b is distinct from c limit 1", "where a  limit 1"),
        ("DropClause", "where a between 1 and 2 and b", "where a between 1 and 2 "),
        ("DropClause", "if a and case when b then c end then", "if a  then"),
    ],
)
def test_sql_operators_plant_their_change(operator: str, before: str, after: str) -> None:
    place = next(candidate for candidate in sql_operators.candidates(before) if candidate.operator == operator)
    assert sql_operators.plant(before, place) == after


def test_comments_and_strings_of_sql_are_left_out() -> None:
    assert list(sql_operators.candidates("-- for update skip locked\nselect ' where a = b and c'")) == []


def test_statements_and_functions_of_sql_have_names() -> None:
    text = (
        "-- name: look\nselect servicebroker.f(1)\n-- name: g\n"
        "create or replace function servicebroker.g_{id}() returns int\nas $$ select servicebroker.take_{id}() $$;\n"
    )
    assert sql_operators.unit_of(text, 2) == ("look", None)
    assert sql_operators.unit_of(text, 5) == ("g", "g")
    assert sql_operators.functions_of(text) == {"g": {"take"}}
    assert sql_operators.functions_of("-- name: look\nselect 1") == {}
    assert sql_operators.called_in("select servicebroker.take_12() from sys.queues") == {"take", "queues"}


def test_the_report_counts_and_lists_survivors(tmp_path: Path) -> None:
    def result(identifier: str, outcome: str, after: str = "b") -> Result:
        return Result(identifier, 1, "store", "boundary", "Lt_LtE", "src/x.py", 7, "a", after, outcome)

    known = tmp_path / "equivalent.toml"
    known.write_text('[[mutant]]\npath = "src/x.py"\nbefore = "a"\nafter = "c"\nreason = "never equal"\n')
    results = [result("1", "killed"), result("2", "hung"), result("3", "survived"), result("4", "survived", "c")]
    lines = list(report(results, Equivalents(known)))
    assert lines[1].split() == ["store", "2", "1", "1", "0", "0", "67%"]
    assert [line for line in lines if line.startswith("survived")] == ["survived 3 src/x.py:7 Lt_LtE"]


def test_every_equivalent_mutant_is_still_in_its_file() -> None:
    for (path, before, after), reason in Equivalents(command.EQUIVALENTS).reasons.items():
        lines = {line.strip() for line in (ROOT / path).read_text().splitlines()}
        assert set(before.splitlines()) <= lines, path
        assert before != after
        assert reason


def test_every_package_has_files() -> None:
    project = Project(ROOT, ROOT / ".mutants")
    assert all(project.files(package) for package in PACKAGES)
    assert not any("migrations" in path for path in project.files("store"))
    assert project.package_of("src/servicebroker/engine/conversation/receive.sql") == "engine"
