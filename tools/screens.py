"""A hook of mkdocs: pictures of the dashboard, where `make docs` has made them.

    <!-- screen: overview, What stands on it -->

in a page is the picture `docs/screens/overview.png`. Those files are not kept: a test in a real browser writes them
(tests/integration/operations/test_dashboard_in_a_browser.py). Where there is no browser the page has its words alone.
"""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parent.parent / "docs" / "screens"

_SCREEN = re.compile(r"<!-- screen: ([\w-]+), (.+?) -->")


def on_page_markdown(markdown: str, *, page: Any, **_: object) -> str:
    """The page with the pictures that are there."""
    up = "../" * page.file.src_uri.count("/")

    def picture(found: re.Match[str]) -> str:
        name, said = found.groups()
        if not (FOLDER / f"{name}.png").exists():
            return ""
        return f"![{said}]({up}screens/{name}.png){{ loading=lazy }}"

    return _SCREEN.sub(picture, markdown)
