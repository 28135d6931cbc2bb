"""Files, links and decisions named by the documents exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from chaos import SCENARIOS

ROOT = Path(__file__).parents[3]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("examples/**/*.md")])
PLACES = ("", "src/servicebroker", "tests")  # folders that short names may refer to


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: str(path.relative_to(ROOT)))
def test_every_file_that_a_document_names_is_there(document: Path) -> None:
    text = document.read_text()
    linked = re.findall(r"\]\((?!\w+:)([^)#\s]+)", text)
    named = re.findall(r"\b(?:docs|examples|src|tests|tools)/[\w./-]*\.(?:md|py|sql|toml)\b", text)
    parts = re.findall(r"`((?:[a-z_]+/)+[a-z_]+\.(?:py|sql))`", text)  # of the package or the tests
    missing = [name for name in linked if not (document.parent / name).exists()]
    missing += [name for name in named if not (ROOT / name).exists()]
    missing += [name for name in parts if not any((ROOT / folder / name).exists() for folder in PLACES)]
    assert missing == []


def test_every_rule_that_is_pointed_to_is_there() -> None:
    told = re.compile(r"\b(docs/[\w/-]+\.md)#([\w-]+)")
    sources = [path for end in ("py", "sql") for path in (ROOT / "src").rglob(f"*.{end}")]
    pointed = {found for path in sources for found in told.findall(path.read_text())}
    assert ("docs/reference/rules.md", "routing") in pointed
    missing = [(page, rule) for page, rule in pointed if rule not in anchors(ROOT / page)]
    assert missing == []


def anchors(page: Path) -> set[str]:
    """Return the link targets in the page: its headings in the form of mkdocs."""
    titles = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w]+", "-", title.lower()).strip("-") for title in titles}


def test_only_files_of_the_repository_are_cited() -> None:
    folders = [ROOT / name for name in ("src", "docs", "tests", "tools", "examples")]
    sources = [path for folder in folders for end in ("py", "sql", "md") for path in folder.rglob(f"*.{end}")]
    elsewhere = re.compile(r"\b(reference \d\d\b|[Ss]eed 0\d\d\b|(?<!shared/)seeds/)")
    assert [
        str(path) for path in sources if path.name != "test_documents.py" and elsewhere.search(path.read_text())
    ] == []


def test_sizing_quotes_the_benchmarks() -> None:
    """Each figure is in the benchmarks under the quoted scenario."""
    measured = (ROOT / "docs/benchmarks.md").read_text()
    rows = re.findall(r"\| `([\w-]+)` \| ([\d,]+) \|", (ROOT / "docs/how-to/sizing.md").read_text())
    assert len(rows) > 10
    for scenario, figure in rows:
        section = re.search(rf"^`{scenario}`,.*?(?=^## |\Z)", measured, re.MULTILINE | re.DOTALL)
        assert section is not None, scenario
        assert f"| {figure} |" in section[0], (scenario, figure)


def test_each_feature_of_a_pipeline_names_tests_that_exist() -> None:
    page = (ROOT / "docs/reference/pipeline-features.md").read_text()
    rows = [row.strip("| ").split(" | ") for row in page.splitlines() if row.startswith("| ")][1:]
    assert len(rows) > 20
    for feature, _, here, verdict in rows:
        assert verdict in ("has", "better", "less"), feature
        named = re.findall(r"`((?:unit|integration)/[\w/]+\.py)::(\w+)`", here)
        assert named, feature
        for file, test in named:
            assert f"def {test}(" in (ROOT / "tests" / file).read_text(), (feature, test)


def test_the_page_on_reliability_has_every_scenario() -> None:
    page = (ROOT / "docs/reliability.md").read_text()
    assert [scenario.name for scenario in SCENARIOS if f"| {scenario.name} |" not in page] == []
