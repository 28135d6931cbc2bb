"""The documentation site in a real browser: each page fits a phone and a desktop, and shows its pictures."""

from __future__ import annotations

import subprocess
import sys
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from browsers import DESK, IN_A_BROWSER, PHONE, shown_in

pytestmark = IN_A_BROWSER
ROOT = Path(__file__).parents[3]
FAULTS = """
const done = arguments[0];
function look() {
const wide = document.documentElement.scrollWidth;
const found = wide > window.innerWidth ? [`${wide} wide`] : [];
for (const one of document.images) if (one.complete && !one.naturalWidth) found.push(`no picture ${one.src}`);
for (const one of performance.getEntriesByType("resource"))
  if (!one.name.startsWith(location.origin)) found.push(`loads ${one.name}`);
if (!document.querySelector("article h1")) found.push(`no title: ${document.body.innerText.slice(0, 99)}`);
done([found, document.body.dataset.mdColorScheme]);
}
if (document.readyState === "complete") look();
else addEventListener("load", look);
"""


class Quiet(SimpleHTTPRequestHandler):
    """A handler that serves files and writes no log."""

    def log_message(self, *_: object) -> None:
        pass


class Server(ThreadingHTTPServer):
    """A server with a longer backlog: a browser requests all parts of a page at once."""

    request_queue_size = 200


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, list[str]]]:
    """Serve the site. Return its address and the paths of its pages."""
    folder = tmp_path_factory.mktemp("site")
    subprocess.run([sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(folder)], cwd=ROOT, check=True)
    with Server(("127.0.0.1", 0), partial(Quiet, directory=str(folder))) as server:
        threading.Thread(target=server.serve_forever).start()
        pages = [f"{file.parent.relative_to(folder)}/" for file in sorted(folder.rglob("index.html"))]
        yield f"http://127.0.0.1:{server.server_port}", [page for page in pages if not page.startswith("decisions/")]
        server.shutdown()


@pytest.mark.parametrize("scheme", ["light", "dark"])
@pytest.mark.parametrize("size", [PHONE, DESK], ids=["phone", "desk"])
def test_each_page_fits_and_loads_nothing_from_elsewhere(
    chromium: Any, site: tuple[str, list[str]], size: tuple[int, int], scheme: str, tmp_path: Path
) -> None:
    """Leave a picture of the first page and of a story in the folder of the test."""
    address, pages = site
    assert len(pages) > 50
    shown_in(chromium, size, scheme)
    chromium.get("about:blank")
    shown_before = {"origin": address, "storageTypes": "local_storage"}
    chromium.execute_cdp_cmd("Storage.clearDataForOrigin", shown_before)
    found = []
    for page in pages:
        chromium.get(f"{address}/{page}")
        faults, colours = chromium.execute_async_script(FAULTS)
        found += [f"{page}: {fault}" for fault in faults]
        assert colours == {"light": "default", "dark": "slate"}[scheme], page
        if page in ("./", "stories/applications/"):
            assert chromium.save_screenshot(str(tmp_path / f"{page.strip('./').replace('/', '-') or 'home'}.png"))
    assert found == []
