"""Procedures in Python: registration, lookup by name, and refusals."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import servicebroker as sb
from servicebroker.activation.output import capture_stdout
from servicebroker.activation.procedures import Form, find_registered, load
from support import refused


def find_procedure(name: str, database: str = "Shop") -> Any:
    return find_registered(SimpleNamespace(name=database), name)  # type: ignore[arg-type]


def test_a_name_is_compared_without_case_and_means_dbo() -> None:
    @sb.procedure("usp_Named")
    def named_procedure(transaction: object, message: object) -> None: ...

    assert find_procedure("[DBO].[USP_named]").function is named_procedure
    assert find_procedure("[other].[usp_Named]") is None
    assert find_procedure("[dbo].[usp_missing]") is None


def test_without_a_name_it_is_the_function_s() -> None:
    @sb.procedure()
    def usp_own_name(transaction: object, message: object) -> None: ...

    assert find_procedure("[dbo].[usp_own_name]").function is usp_own_name


def test_a_procedure_of_one_database_goes_before_one_of_any() -> None:
    @sb.procedure("dbo.usp_both")
    def everywhere(transaction: object, message: object) -> None: ...

    @sb.procedure("[Shop].[dbo].[usp_both]")
    def in_shop(transaction: object, message: object) -> None: ...

    assert find_procedure("[dbo].[usp_both]").function is in_shop
    assert find_procedure("[dbo].[usp_both]", "Other").function is everywhere


@pytest.mark.parametrize(("form", "arguments"), [("message", 2), ("batch", 2), ("transaction", 1), ("database", 1)])
def test_a_function_with_other_parameters_than_its_form_is_refused(form: Form, arguments: int) -> None:
    right = [lambda first: None, lambda first, second: None][arguments - 1]
    wrong = [lambda first: None, lambda first, second: None][2 - arguments]
    sb.procedure(f"usp_{form}", form=form)(right)
    with refused(9653, "usp_wrong", f"{arguments} positional"):
        sb.procedure("usp_wrong", form=form)(wrong)
    assert find_procedure("[dbo].[usp_wrong]") is None


@pytest.mark.parametrize(
    "arguments",
    [
        {"form": "rows"},
        {"worker": "fibre"},
        {"wait": -1},
        {"wait": "long"},
        {"top": 0, "form": "batch"},
        {"top": True, "form": "batch"},
        {"top": 5, "form": "message"},
    ],
)
def test_procedure_refuses_wrong_arguments(arguments: dict[str, Any]) -> None:
    with refused(402):
        sb.procedure("usp_x", **arguments)


def test_procedure_accepts_the_smallest_arguments() -> None:
    sb.procedure("usp_one", form="batch", top=1, wait=0)(lambda transaction, messages: None)
    assert (find_procedure("dbo.usp_one").top, find_procedure("dbo.usp_one").wait) == (1, 0)


@pytest.mark.parametrize(
    "arguments",
    [
        {"interval": 0},
        {"interval": float("nan")},
        {"interval": True},
        {"interval": "1"},
        {"patience": -1},
        {"patience": True},
    ],
)
def test_activate_refuses_wrong_times(arguments: dict[str, Any]) -> None:
    with refused(402, next(iter(arguments))):
        sb.activate(None, **arguments)  # type: ignore[call-overload]


def test_the_name_is_not_left_out_with_the_brackets() -> None:
    with refused(402, '@procedure("name")'):
        sb.procedure(lambda transaction, message: None)  # type: ignore[arg-type]


def test_a_procedure_name_of_four_parts_is_refused() -> None:
    with refused(9609):
        sb.procedure("a.b.c.d")(lambda transaction, message: None)


def test_a_module_is_loaded_by_file(tmp_path: Path) -> None:
    file = tmp_path / "orders_procedures.py"
    file.write_text("import servicebroker as sb\n@sb.procedure('usp_file')\ndef f(transaction, message): ...\n")
    load([str(file)])
    assert find_procedure("[dbo].[usp_file]").form == "message"


def test_a_module_that_cannot_be_imported_is_reported(tmp_path: Path) -> None:
    broken = tmp_path / "broken.py"
    broken.write_text("1 / 0\n")
    for module, words in (
        (str(broken), "ZeroDivisionError"),
        (str(tmp_path / "gone.py"), "no such file"),
        ("no_such_module_here", "ModuleNotFoundError"),
    ):
        with pytest.raises(sb.InstanceError, match=words):
            load([module])


def test_a_policy_belongs_to_a_procedure_that_gets_messages() -> None:
    policy = sb.give_up_after(3)
    sb.procedure("dbo.guarded", poison=policy)(lambda transaction, message: None)
    assert find_procedure("dbo.guarded").poison is policy
    for wrong in ({"poison": 3}, {"poison": policy, "form": "transaction"}):
        with refused(402, "poison"):
            sb.procedure("wrong", **wrong)


def test_captured_output_passes_questions_to_the_terminal(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A prompt asks the terminal for its width."""
    with (tmp_path / "out").open("w") as file:
        monkeypatch.setattr(sys, "stdout", file)
        with capture_stdout():
            assert sys.stdout is not file
            assert (sys.stdout.fileno(), sys.stdout.isatty()) == (file.fileno(), False)
