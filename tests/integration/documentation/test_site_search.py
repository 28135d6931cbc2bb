"""The search of the site: the words that newcomers know lead to the right page first.

The site is built once, and its search worker (JavaScript) runs in Node.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("mkdocs")
pytest.importorskip("material")
pytestmark = [pytest.mark.full, pytest.mark.skipif(shutil.which("node") is None, reason="Node is not installed")]

ROOT = Path(__file__).parents[3]
FIRST_RESULT = {
    "dead letter": "how-to/dead-letters/",
    "timeout": "how-to/retry/",
    "retry": "how-to/retry/",
    "rate limit": "how-to/workers/",
    "idempotent": "explanation/exactly-once/",
    "ordering": "explanation/exactly-once/",
    "exactly once": "explanation/exactly-once/",
    "LISTEN": "explanation/pictures/",
    "schedule": "how-to/delay-and-schedule/",
    "delay": "how-to/delay-and-schedule/",
    "cron": "how-to/delay-and-schedule/",
    "http": "how-to/request-and-reply/",
    "docker": "how-to/deploy/",
    "health": "how-to/deploy/",
    "pytest": "how-to/testing/",
    "celery": "how-to/coming-from/",
    "rabbitmq": "how-to/coming-from/",
    "temporal": "how-to/coming-from/",
    "request": "how-to/request-and-reply/",
    "fastapi": "how-to/request-and-reply/",
    "backoff": "how-to/retry/",
    "jitter": "how-to/retry/",
    "ack": "how-to/coming-from/",
    "exchange": "how-to/coming-from/",
    "revoke": "how-to/coming-from/",
    "max length": "how-to/coming-from/",
    "signal": "how-to/coming-from/",
    "workflow id": "how-to/coming-from/",
    "dashboard": "how-to/dashboard/",
    "publish subscribe": "how-to/fan-out/",
    "fan-out": "how-to/fan-out/",
    "fanout": "how-to/fan-out/",
    "json": "how-to/bodies/",
    "long running": "how-to/workers/",
    "saga": "stories/applications/",
    "failed task": "how-to/dead-letters/",
    "requeue": "how-to/dead-letters/",
    "queue without a reader": "how-to/stuck/",
}
SEARCH_SCRIPT = """
const fs = require("fs"), vm = require("vm"), path = require("path");
const [site, queries] = [process.argv[1], JSON.parse(process.argv[2])];
const folder = path.join(site, "assets/javascripts/workers");
const file = fs.readdirSync(folder).find((name) => name.endsWith(".min.js"));
const index = JSON.parse(fs.readFileSync(path.join(site, "search/search_index.json"), "utf8"));
const listeners = [], answers = [];
const scope = {
  addEventListener: (kind, listener) => listeners.push(listener), postMessage: (data) => answers.push(data),
  console,
};
scope.self = scope;
vm.runInNewContext(fs.readFileSync(path.join(folder, file), "utf8"), scope);
const post = async (data) => { for (const listener of listeners) await listener({ data }); return answers.at(-1); };
(async () => {
  await post({ type: 0, data: { ...index, options: { suggest: false } } });  // 0: load the index, 2: query
  const results = {};
  for (const query of queries)
    results[query] = (await post({ type: 2, data: query })).data.items.map((page) => page[0].location);
  console.log(JSON.stringify(results));
})();
"""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "-q", "--strict", "-d", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"})
    return folder


def test_words_lead_to_the_right_page_first(site: Path) -> None:
    command = ["node", "-e", SEARCH_SCRIPT, str(site), json.dumps(list(FIRST_RESULT))]
    results = json.loads(subprocess.run(command, check=True, capture_output=True, text=True).stdout)
    assert {query: next(iter(pages), "").partition("#")[0] for query, pages in results.items()} == FIRST_RESULT


def test_pages_for_contributors_are_not_searched(site: Path) -> None:
    index = json.loads((site / "search/search_index.json").read_text())
    pages = {section["location"].partition("#")[0] for section in index["docs"]}
    assert {"how-to/deploy/", "changelog/"} <= pages
    assert [page for page in pages if page.startswith(("decisions/", "architecture/", "conformance/"))] == []


def test_the_start_page_names_the_version(site: Path) -> None:
    assert re.search(r"Version \d+\.\d+\.\d+, alpha", (site / "index.html").read_text())


def test_a_page_shows_the_setup_that_it_takes_for_granted(site: Path) -> None:
    page = (site / "how-to/validate/index.html").read_text()
    assert "Set up: paste this first" in page
    assert "<!-- setup" not in page
