"""Fixtures for the tests of the dashboard."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import servicebroker as sb
from dashboard_support import HERE, MARKUP, Browser
from servicebroker.dashboard import Dashboard, Role, snapshot_cache
from support import STOCK_QUEUE


@pytest.fixture
def always_fresh(monkeypatch: pytest.MonkeyPatch) -> None:
    """Switch off the dashboard's snapshot cache, so that every page shows the current state."""
    monkeypatch.setattr(snapshot_cache, "FRESH_S", 0.0)
    monkeypatch.setattr(snapshot_cache, "RETRY_DELAY_S", 0.0)
    monkeypatch.setattr(snapshot_cache, "SLOW_S", float("inf"))


@pytest.fixture
def browse(database: sb.Database) -> Iterator[Callable[..., Browser]]:
    """Return a function that opens an instance's dashboard for a viewer with a role, without a token by default."""
    opened = []

    def browser(role: Role = Role.ACT, *, url: str = "", **signing_in: Any) -> Browser:
        dashboard = Dashboard([url or database.instance.url], role=role, **{"token": None, **signing_in})
        opened.append(dashboard)
        return Browser(dashboard, base_url=HERE)

    yield browser
    for dashboard in opened:
        dashboard.close()


@pytest.fixture
def browser(browse: Callable[..., Browser]) -> Browser:
    return browse()


@pytest.fixture
def people(tmp_path: Path) -> Path:
    return tmp_path / "people"


@pytest.fixture
def pipeline_file(database: sb.Database, tmp_path: Path) -> Path:
    """Return a pipeline file for StockQueue with one landed order and two messages in quarantine."""
    pytest.importorskip("deltalake")
    from pipeline_tables import batch as batch_of
    from pipeline_tables import land, message, order
    from servicebroker.pipeline.file import read_pipeline

    path = tmp_path / "shop.toml"
    path.write_text(
        f'[pipeline]\nname = "shop"\nwarehouse = "tables"\n[[queue]]\ninstance = "{database.instance.url}"\n'
        f'database = "{database.name}"\nqueue = "{STOCK_QUEUE}"\n[[message]]\ntype = "Order"\nformat = "json"\n'
        'table = "orders"\n[message.columns]\nid = "long"\nnote = "string"\n'
    )
    land(read_pipeline(path), "q", 0, batch_of(order(1), order(2, note=None), message(3, b"?", MARKUP)))
    return path
