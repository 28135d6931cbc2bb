"""examples/fastapi answers requests while its worker runs."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType

import pytest

pytest.importorskip("fastapi")

from fastapi.testclient import TestClient

FOLDER = Path(__file__).parents[3] / "examples" / "fastapi"


@pytest.fixture
def shop(make_instance_url: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    monkeypatch.setenv("SERVICEBROKER_INSTANCE", make_instance_url())
    monkeypatch.syspath_prepend(str(FOLDER))
    import shop

    yield shop
    del sys.modules["shop"]


def test_requests_send_and_ask(shop: ModuleType) -> None:
    for _ in range(2):  # the second start continues
        with TestClient(shop.app) as client:
            assert client.post("/orders", params={"item": "teapot"}).json()["answer"] == "teapot is on its way"
            shipped = client.get("/shipments").json()
    assert shipped == ["teapot", "teapot"]
