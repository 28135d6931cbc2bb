"""The cache of parsed batches is bounded, and several threads share it."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from servicebroker.tsql import session
from servicebroker.tsql.session import ParseCache

NO_PARAMETERS = frozenset[str]()


def test_the_cache_has_a_limit_of_characters_and_of_texts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MAX_CACHED_CHARS_IN_ALL", 100)
    monkeypatch.setattr(session, "_MAX_CACHED_TEXTS", 3)
    cache = ParseCache()
    for text in ("a" * 60, "b" * 30, "c" * 30):
        cache.add((text, 1, NO_PARAMETERS), ())
    assert cache.get(("a" * 60, 1, NO_PARAMETERS)) is None
    assert cache.get(("b" * 30, 1, NO_PARAMETERS)) == ()
    for number in range(5):
        cache.add((str(number), 1, NO_PARAMETERS), ())
    assert len(cache) == 3


def test_threads_share_the_cache(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "_MAX_CACHED_TEXTS", 5)
    cache = ParseCache()

    def add(first: int) -> None:
        for number in range(first, first + 2_000):
            cache.add((str(number % 97), 1, NO_PARAMETERS), ())
            cache.get((str(number % 89), 1, NO_PARAMETERS))

    with ThreadPoolExecutor(8) as threads:
        list(threads.map(add, range(8)))
    assert len(cache) == 5
