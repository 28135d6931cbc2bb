"""`tools/prose.py` finds what the rules for docstrings, comments, constants and names forbid."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

import prose


def kinds(text: str, path: str = "src/servicebroker/api/sending.py") -> list[tuple[str, int]]:
    """Return the kind and line of each finding of a file with this text."""
    return [(finding.kind, finding.line) for finding in prose.check_text(path, text)]


@pytest.mark.parametrize(
    "text",
    [
        "What is sent.",
        "Who waits is woken.",
        "Whether a queue is on.",
        "It is late.",
        "Say what a queue holds.",
        "Returns where the file is.",
        "And nobody else.",
        "One that waits.",
        "So many messages wait.",
    ],
)
def test_a_clause_at_the_beginning_is_found(text: str) -> None:
    assert prose.opens_with_clause(text)


@pytest.mark.parametrize(
    "text",
    [
        "Return the queue.",
        "A queue that is on.",
        "If it is late, stop.",
        "Items wait.",
        "Whose_name",
        "Only dbo may.",
        "One row.",
    ],
)
def test_a_thing_or_an_action_at_the_beginning_is_fine(text: str) -> None:
    assert not prose.opens_with_clause(text)


def test_docstrings_are_those_of_modules_classes_and_functions() -> None:
    text = '''"""What the module does."""
class Queue:
    """What a queue is."""

    def name(
        self,
    ) -> str:  # never empty
        """Whose name it is."""
        return """What is not a docstring."""
'''
    assert kinds(text) == [("docstrings", 1), ("docstrings", 3), ("docstrings", 8)]


def test_a_comment_before_the_docstring_of_a_module_is_no_code() -> None:
    assert kinds('# Copyright\n\n"""What it does."""\n') == [("docstrings", 3)]


def test_comments_are_not_parts_of_strings() -> None:
    text = 'URL = "http://host/#what"\nQUERY = """\n# What is not a comment\n"""\nwait()  # what waits\n'
    assert kinds(text) == [("comments", 5)]


def test_sentences_are_counted_by_words() -> None:
    words = " ".join(["word"] * 31)
    assert kinds(f'"""{words}."""\n') == [("sentences", 1)]
    assert kinds(f'"""{words[:-5]}."""\n') == []
    assert kinds(f'"""{words[:100]}. The {words[:100]}."""\n') == []


def test_a_sentence_goes_on_in_the_next_line_and_ends_with_its_paragraph() -> None:
    half = " ".join(["word"] * 16)
    assert kinds(f'"""Send.\n\n{half}\n{half}\n"""\n') == [("sentences", 1)]
    assert kinds(f'"""Send.\n\n{half}\n\n{half}\n"""\n') == []
    assert kinds(f'"""Send.\n\n- {half}\n- {half}\n"""\n') == []
    assert kinds(f'"""Send.\n\n    {half} {half}\n"""\n') == []


@pytest.mark.parametrize("line", ["SOON = 3", "_MANY = 60 * 60", "A, B_S = 1, 2", "REST: float = -0.5"])
def test_a_bare_constant_is_found(line: str) -> None:
    assert kinds(f"{line}\n") == [("constants", 1)]


@pytest.mark.parametrize("line", ["DELAY_S = 3", 'NAME = "x"', "PAIR = (1, 2)", "ON = True", "    SOON = 3"])
def test_other_constants_are_fine(line: str) -> None:
    assert kinds(f"{line}\n") == []


def test_a_line_of_a_string_is_no_constant() -> None:
    assert kinds('TEXT = """\nSOON = 3\n"""\n') == []


def test_a_forbidden_name_is_found_in_sources_and_tests() -> None:
    assert kinds("", "src/servicebroker/api/together.py") == [("modules", 1)]
    assert kinds("", "tests/unit/api/test_together.py") == [("modules", 1)]


def test_a_generated_file_is_left_out(tmp_path: Path) -> None:
    (tmp_path / "src").mkdir()
    (tmp_path / "src/made.py").write_text("# Made from aio/made.py\nSOON = 3\n")
    (tmp_path / "src/written.py").write_text("SOON = 3\n")
    assert [finding.path for finding in prose.check_tree(tmp_path)] == ["src/written.py"]


def test_findings_are_counted_by_room() -> None:
    paths = ["src/servicebroker/tsql/parser/x.py", "src/servicebroker/tsql/y.py", "tests/conftest.py"]
    counts = prose.count([prose.Finding("comments", path, 1, "") for path in paths])
    assert counts == {("src/servicebroker/tsql", "comments"): 2, ("tests", "comments"): 1}


def test_a_baseline_only_shrinks() -> None:
    baseline = Counter({("a", "comments"): 2, ("b", "comments"): 1})
    counts = Counter({("a", "comments"): 1, ("b", "comments"): 3})
    assert prose.excess(baseline, counts) == [("b", "comments")]
    assert prose.lower(baseline, counts) == {("a", "comments"): 1, ("b", "comments"): 1}


def test_a_baseline_is_read_as_written() -> None:
    numbers = Counter({("src/servicebroker/api", "comments"): 2, ("tests", "sentences"): 1})
    assert prose.read_baseline(prose.write_baseline(numbers)) == numbers


def test_long_subjects_are_told() -> None:
    assert prose.subject_failures(["api: wait", "x" * 72]) == []
    assert len(prose.subject_failures(["x" * 73])) == 1


def test_the_hook_reads_the_subject_of_a_message(tmp_path: Path) -> None:
    message = tmp_path / "message"
    message.write_text("api: wait\n\n" + "x" * 100)
    assert prose.main(["--message", str(message)]) == 0
    message.write_text("x" * 73)
    assert prose.main(["--message", str(message)]) == 1
