"""The pages of the documentation, executed in a fresh folder like by a newcomer; see `pages` for the blocks."""

from __future__ import annotations

from pathlib import Path

import pytest

from pages import ROOT, newcomer, pattern, steps_of

NOT_READ = ("docs/decisions/", "docs/conformance.md", "docs/benchmarks.md")  # pages for contributors; reports
PAGES = [
    name
    for path in [ROOT / "README.md", *sorted(ROOT.glob("docs/**/*.md"))]
    if not (name := str(path.relative_to(ROOT))).startswith(NOT_READ) and steps_of(name)
]
STORIES = [page for page in PAGES if page.startswith("docs/stories/")]


def follow(page: str, folder: Path) -> None:
    for path in (folder, *folder.parents[:2]):
        path.chmod(0o755)  # an embedded server started by root runs as another user, who needs access
    page_folder = folder / "fresh"
    page_folder.mkdir()
    with newcomer(page_folder) as session:
        session.do(page)


# they start Spark, or two instances by many commands
LONG = ["docs/reference/commands.md", "docs/how-to/keyed-tables.md", "docs/how-to/two-brokers.md", *STORIES]


@pytest.mark.sampled(2)
@pytest.mark.parametrize("page", [page for page in PAGES if page not in LONG])
def test_a_page(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path)


@pytest.mark.full
@pytest.mark.parametrize("page", LONG)
def test_a_long_page(page: str, tmp_path: Path) -> None:
    follow(page, tmp_path)


def test_a_difference_from_the_page_is_detected(tmp_path: Path) -> None:
    """A page with each kind of mistake: commands, output, and failures."""
    wrong = ("```console\n$ echo one\ntwo\n```\n", "```console\n$ false\n```\n", "```python\n1 / 0\n```\n")
    for number, block in enumerate(wrong):
        page = tmp_path / "page.md"
        page.write_text(f"```python\n1\n```\n{block}")
        folder = tmp_path / str(number)
        folder.mkdir()
        with pytest.raises(AssertionError, match=r"page.md:4: "):
            follow(str(page), folder)


@pytest.mark.parametrize(
    ("printed", "seen", "same"),
    [
        ("since 2026-11-23 09:58:12 UTC", "since 2027-01-02 10:00:00 UTC", True),
        ("a ... z", "a b\nc z", True),
        ("5f0c0c2e-0d5e-4c3f-9d1c-6a8e7b1f2a3d", "00000000-0000-0000-0000-000000000001", True),
        ("one", "two", False),
        ("1 message", "1 message.", False),
        ("one...two", "oneXtwo", True),
    ],
)
def test_times_ids_and_ellipses_may_differ(printed: str, seen: str, same: bool) -> None:
    assert bool(pattern(printed).fullmatch(seen)) is same
