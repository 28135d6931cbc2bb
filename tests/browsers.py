"""Chromium for tests: the layout of pages, and their accessibility problems by axe-core.

The tests need Chromium with its driver (Debian: chromium, chromium-driver) and selenium, of the extra `docs`. Those for
axe-core run if it is installed (`npm install axe-core` in the project's folder).
"""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

IN_A_BROWSER = [
    pytest.mark.full,
    pytest.mark.skipif(shutil.which("chromedriver") is None, reason="needs chromium and its driver"),
]
AXE = Path(__file__).parents[1] / "node_modules/axe-core/axe.min.js"
PHONE, DESK = (360, 740), (1280, 900)


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    webdriver = pytest.importorskip("selenium.webdriver")
    options = webdriver.ChromeOptions()
    options.binary_location = shutil.which("chromium") or ""
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    yield driver
    driver.quit()


def shown_in(driver: Any, size: tuple[int, int], scheme: str) -> None:
    driver.set_window_size(*size)
    width, height = size
    screen = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
    driver.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", screen)
    media = {"features": [{"name": "prefers-color-scheme", "value": scheme}]}
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", media)


def violations(driver: Any) -> list[str]:
    """Return the violations of WCAG 2.1 AA that axe-core finds on the page."""
    driver.execute_cdp_cmd("Page.setBypassCSP", {"enabled": True})
    driver.execute_script(AXE.read_text())
    violations_found = driver.execute_async_script(
        "const done = arguments[0];"
        "axe.run({runOnly: ['wcag2a', 'wcag2aa', 'wcag21a', 'wcag21aa']}).then((r) => done(r.violations.map("
        "(v) => `${v.id}: ${v.nodes.map((n) => n.target.join(' ')).slice(0, 3).join(', ')}`)))"
    )
    return list(violations_found)
