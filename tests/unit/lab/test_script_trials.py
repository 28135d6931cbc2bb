"""The judges of the script fuzzer."""

from __future__ import annotations

import gc
import sys
import time

import pytest

from servicebroker_lab.script_fuzzing import trials
from servicebroker_lab.script_fuzzing.trials import _limit, _TimeIsUp


class _Slow:
    """An object whose destruction lasts longer than the limit, and loses its exception."""

    def __del__(self) -> None:
        time.sleep(0.05)


def test_an_exception_that_a_destructor_loses_is_raised_again_and_not_reported(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    reports: list[object] = []
    monkeypatch.setattr(trials, "_REPEAT_S", 0.05)
    monkeypatch.setattr(sys, "unraisablehook", reports.append)
    with pytest.raises(_TimeIsUp), _limit(0.02) as over:
        _Slow()
        gc.collect()
        time.sleep(5)
    assert over
    assert reports == []
