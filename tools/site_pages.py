"""A hook of mkdocs: what a page of the site shows beside its Markdown.

- Decisions and reports are for those who change the product: the search does not lead to them.
- `SEARCH_WORDS` are words of the field that lead to a page, whether or not its text has them.
- `<!-- setup: shop -->`, which tests run before a page, becomes a block that a reader opens and pastes. So a page is
  complete as it is shown.
- `CHANGELOG.md` is a page, and `<!-- version -->` names the version with a link to it.
- `<!-- screen: overview, What stands on it -->` is the picture `docs/screens/overview.png`. Those files are not kept: a
  test in a real browser writes them (tests/integration/operations/test_dashboard_in_a_browser.py). Without a browser
  the page has no pictures.
"""

from __future__ import annotations

import importlib.util
import re
import tomllib
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

ROOT = Path(__file__).parent.parent
SCREENS = ROOT / "docs" / "screens"
NOT_SEARCHED = (
    "decisions/",
    "additions.md",
    "architecture.md",
    "conformance.md",
    "development.md",
    "reference/licences.md",
)

SEARCH_WORDS = {
    "how-to/bodies.md": ["json", "serializer", "pydantic", "dataclass"],
    "how-to/coming-from.md": ["ack", "nack", "exchange", "revoke", "max length", "signal", "workflow id", "prefetch"],
    "how-to/dashboard.md": ["dashboard", "flower", "management ui", "web ui"],
    "how-to/dead-letters.md": ["failed task", "failed job", "requeue", "redrive", "set aside"],
    "how-to/fan-out.md": ["publish subscribe", "pubsub", "fan-out", "fanout", "broadcast", "topic", "chord", "fan-in"],
    "how-to/retry.md": ["backoff", "jitter", "max retries", "time limit"],
    "how-to/stuck.md": ["queue without reader", "stuck", "not delivered"],
    "how-to/workers.md": ["long running", "rate limit", "consumer", "middleware"],
    "stories/applications.md": ["saga"],
}
"""Words of the field that lead to a page first. The search treats them as tags, which weigh more than titles."""

_SCREEN = re.compile(r"<!-- screen: ([\w-]+), (.+?) -->")
_SETUP = re.compile(r"^<!-- setup(?:: (?P<named>\w+) -->|\n(?P<text>.*?)^-->)$", re.MULTILINE | re.DOTALL)


def on_files(files: Any, *, config: Any) -> Any:
    """Add the changelog as a page. Its links lead to pages of the site."""
    text = re.sub(r"\]\(docs/", "](", (ROOT / "CHANGELOG.md").read_text())
    files.append(File.generated(config, "changelog.md", content=text))
    return files


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """Return the page with its setup as a block to open, and with the pictures that are there."""
    if page.file.src_uri.startswith(NOT_SEARCHED):
        page.meta["search"] = {"exclude": True}
    if words := SEARCH_WORDS.get(page.file.src_uri):
        page.meta["tags"] = words
    up = "../" * page.file.src_uri.count("/")

    def picture(found: re.Match[str]) -> str:
        name, caption = found.groups()
        if not (SCREENS / f"{name}.png").exists():
            return ""
        return f"![{caption}]({up}screens/{name}.png){{ loading=lazy }}"

    return _SETUP.sub(_setup, _SCREEN.sub(picture, markdown)).replace("<!-- version -->", _version(up))


def _version(up: str) -> str:
    """Return the version of the checkout, and a link to its changes."""
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    return f"Version {version}, alpha: [what is new]({up}changelog.md)."


def _setup(found: re.Match[str]) -> str:
    """Return a collapsed block with the code that the page's examples need."""
    code = _named_setups()[found["named"]] if found["named"] else found["text"]
    lines = "".join(f"    {line}".rstrip() + "\n" for line in code.strip("\n").split("\n"))
    title = "Set up: paste this first" if found["named"] else "Set up, continued"
    return f'??? note "{title}"\n\n    ```python\n{lines}    ```\n'


def _named_setups() -> dict[str, str]:
    """Return the setups that several pages name, as the tests of the pages have them."""
    spec = importlib.util.spec_from_file_location("pages", ROOT / "tests" / "pages.py")
    assert spec is not None
    assert spec.loader is not None
    pages = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(pages)
    return {"shop": pages.SHOP}
