"""The plugin that writes the table of tested features."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from conformance import features, table

pytest_plugins = ["pytester"]


def line(page: str, row: int) -> str:
    (found,) = re.findall(rf"^\| {row} \|.*$", page, flags=re.MULTILINE)
    return str(found)


def run(pytester: pytest.Pytester, tests: str, *options: str) -> str:
    """Run these tests and return the page that the plugin writes."""
    pytester.makeini("[pytest]\nmarkers = feature(*rows): rows of the checklist")
    pytester.makepyfile("import pytest\n\n" + dedent(tests))
    page = Path(pytester.path, "page.md")
    pytester.runpytest_inprocess("-p", "conformance", "--conformance", str(page), *options)
    return page.read_text()


def test_the_checklist_has_212_rows() -> None:
    assert [number for number, _ in features()] == list(range(1, 213))
    assert all(text.strip() == text and text for _, text in features())


def test_the_page_has_a_line_for_each_row_of_four_cells() -> None:
    page = table({"tests/unit/test_x.py::test_it[a]": {1, 2}}, {"tests/unit/test_x.py::test_it[a]": True})
    assert "2 of 212 are done" in page
    assert "| row | feature | tests | done |" in page
    for number, _ in features():
        assert len(line(page, number).split("|")) == 6
    assert line(page, 1).endswith("| `unit/test_x.py::test_it` | done |")
    assert line(page, 3).endswith("|  | open |")


def test_only_passed_tests_prove_a_feature(pytester: pytest.Pytester) -> None:
    page = run(
        pytester,
        """
        @pytest.fixture
        def broken():
            raise RuntimeError

        @pytest.fixture
        def leaky():
            yield
            raise RuntimeError

        @pytest.mark.feature(1, 2)
        def test_passes(): pass

        @pytest.mark.feature(2)
        def test_fails(): assert False

        @pytest.mark.feature(3)
        @pytest.mark.skip
        def test_is_skipped(): pass

        @pytest.mark.feature(4)
        def test_skips_itself(): pytest.skip("later")

        @pytest.mark.feature(5)
        @pytest.mark.xfail
        def test_is_known_to_fail(): assert False

        @pytest.mark.feature(6)
        def test_cannot_begin(broken): pass

        @pytest.mark.feature(7)
        def test_cannot_end(leaky): pass

        @pytest.mark.feature(8)
        @pytest.mark.parametrize("number", [1, 2])
        def test_of_two_one_fails(number): assert number == 1

        @pytest.mark.feature(9)
        @pytest.mark.parametrize("number", [1, 2])
        def test_of_two_both_pass(number): pass
        """,
    )
    assert [line(page, row).split()[-2] for row in range(1, 11)] == ["done"] + ["open"] * 7 + ["done", "open"]
    assert "2 of 212 are done" in page
    assert line(page, 9).count("test_of_two_both_pass") == 1


def test_a_test_that_was_left_out_proves_nothing(pytester: pytest.Pytester) -> None:
    tests = """
        @pytest.mark.feature(1)
        def test_one(): pass

        @pytest.mark.feature(1, 2)
        def test_two(): pass
        """
    assert "2 of 212 are done" in run(pytester, tests)
    page = run(pytester, tests, "-k", "test_one")
    assert "0 of 212 are done" in page
    assert "test_two" in line(page, 1)


@pytest.mark.slow
def test_features_are_collected_from_workers(pytester: pytest.Pytester) -> None:
    """Workers report features without a test run, too."""
    tests = """
        @pytest.mark.feature(1)
        def test_one(): pass

        @pytest.mark.feature(2)
        def test_two(): assert False

        @pytest.mark.feature(3)
        def test_three(): pass
        """
    page = run(pytester, tests, "-p", "xdist", "-n", "2", "-k", "not three")
    assert [line(page, row).split()[-2] for row in (1, 2, 3)] == ["done", "open", "open"]
    assert "test_three" in line(page, 3)


@pytest.mark.parametrize("rows", ["213", "0", "'1'", ""])
def test_a_missing_row_cannot_be_claimed(pytester: pytest.Pytester, rows: str) -> None:
    pytester.makepyfile(f"import pytest\n\n@pytest.mark.feature({rows})\ndef test_it(): pass")
    result = pytester.runpytest_inprocess("-p", "conformance", "--conformance", str(pytester.path / "page.md"))
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*test_it names rows that do not exist*"])


def test_without_the_option_nothing_is_written(pytester: pytest.Pytester) -> None:
    pytester.makepyfile("def test_it(): pass")
    pytester.runpytest_inprocess("-p", "conformance").assert_outcomes(passed=1)
    assert not list(pytester.path.glob("*.md"))
