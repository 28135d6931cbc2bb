"""sqlcmd directives in scripts, without a database."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from servicebroker.cli.sqlcmd import Sqlcmd, variables_of
from servicebroker.tsql.statement_errors import TsqlError

HERE = Path()


def test_variables_are_filled_in_and_lines_keep_their_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FROM_OUTSIDE", "env")
    script = Sqlcmd({"given": "g"}).expand(
        ':setvar Name Shop\n:SETVAR both "$(name) and ""two"""\nUSE $(NAME)\n'
        "SELECT '$(both)', $(Given)$(FROM_OUTSIDE)",
        HERE,
    )
    assert script.text == "\n\nUSE Shop\nSELECT 'Shop and \"two\"', genv"


def test_variables_in_comments_are_left_alone() -> None:
    text = "PRINT '-- $(x)' -- $(nobody)\n/* $(a) -- */ PRINT $(x) /* 'b /* $(c)\n$(d) */ */ PRINT $(x)"
    expected = "PRINT '-- 1' -- $(nobody)\n/* $(a) -- */ PRINT 1 /* 'b /* $(c)\n$(d) */ */ PRINT 1"
    assert Sqlcmd({"x": "1"}).expand(text, HERE).text == expected


def test_r_inserts_the_file_at_its_line(tmp_path: Path) -> None:
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "one.sql").write_text("PRINT '$(x)'\n:r two.sql")
    (tmp_path / "sub" / "two.sql").write_bytes("PRINT N'ü'\n:setvar x 2".encode("utf-16"))
    script = Sqlcmd().expand(":setvar x 1\n:r .\\sub\\one.sql\nPRINT $(x)", tmp_path)
    assert script.text == "\nPRINT '1'\nPRINT N'ü'\n\nPRINT 2"


def test_on_error_applies_to_the_lines_after_it() -> None:
    script = Sqlcmd().expand("PRINT 1\nGO\n:on error exit\nPRINT 2\nGO\n:On Error ignore\nPRINT 3", HERE)
    assert [script.should_stop_after(line) for line in (1, 3, 4, 5, 6, 7)] == [False, True, True, True, False, False]


def test_quit_ends_the_script() -> None:
    assert Sqlcmd().expand("PRINT 1\n:quit\nPRINT 2", HERE).text == "PRINT 1"


def test_comments_and_labels_are_no_directives() -> None:
    text = "/* a\n:setvar x 1\n:r nowhere */\nPRINT '/*'\nlabel:\n :: \n-- /*\nPRINT 2"
    assert Sqlcmd().expand(text, HERE).text == text


@pytest.mark.parametrize(
    ("text", "line", "word"),
    [
        ("\nPRINT $(nobody)", 2, "nobody"),
        (":setvar x 1\n:setvar x\nPRINT $(x)", 3, "'x'"),
        ("\n\n:r no/such.sql", 3, "no/such.sql"),
        (":connect server", 1, "--instance"),
        ("!! rm -rf x", 1, "system"),
        (":on error stop", 1, ":on"),
        (":setvar 1 2", 1, ":setvar"),
    ],
)
def test_invalid_directives_are_refused_with_their_line(text: str, line: int, word: str) -> None:
    with pytest.raises(TsqlError) as error:
        Sqlcmd().expand(text, HERE)
    assert error.value.line == line
    assert word in error.value.text


def test_files_that_include_each_other_raise_217(tmp_path: Path) -> None:
    (tmp_path / "a.sql").write_text(":r a.sql")
    with pytest.raises(TsqlError, match="217"):
        Sqlcmd().expand(":r a.sql", tmp_path)


def test_values_of_the_command_line() -> None:
    assert variables_of(["a=1", "b=x=y", "c="]) == {"a": "1", "b": "x=y", "c": ""}
    for wrong in ("a", "=1", "1=a", "a b=1"):
        with pytest.raises(ValueError, match="not a variable definition"):
            variables_of([wrong])


SIGNS = st.sampled_from([":setvar ", "a", "$(", ")", "\n", ":r ", '"', "'", "/*", "*/", ":on error exit", "1"])


@settings(deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.lists(SIGNS, max_size=20).map("".join))
def test_any_text_is_expanded_or_refused(text: str) -> None:
    try:
        Sqlcmd({"a": "1"}).expand(text, HERE)
    except TsqlError as error:
        assert error.line >= 1  # noqa: PT017 # either way is right
