"""Tables printed by commands: colours only on a terminal, whole names in a pipe."""

from __future__ import annotations

import sys

import pytest

from servicebroker.cli.tables import Listing, Terminal, show_rows, state, states

NAME = "//" + "shop/" * 40 + "Stock"


def listing() -> Listing:
    table = Listing("queue", "state", "conversations")
    table.row(NAME, state("OFF"), states({"CO": 1200, "ER": 1}))
    return table


def test_a_pipe_gets_whole_names_without_colours(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    show_rows(listing(), "No queues yet.")
    assert capsys.readouterr().out.splitlines()[-2].split() == [NAME, "OFF", "1,200", "conversing,", "1", "error"]
    show_rows(Listing("queue"), "No queues yet.")
    assert capsys.readouterr().out == "No queues yet.\n"


@pytest.mark.parametrize("has_colours", [True, False])
def test_colours_are_for_a_terminal_without_no_color(
    has_colours: bool, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.setenv("COLUMNS", "300")
    (monkeypatch.delenv if has_colours else monkeypatch.setenv)("NO_COLOR", *([False] if has_colours else ["1"]))
    Terminal().print(listing())
    assert ("\x1b[1;31mOFF" in capsys.readouterr().out) is has_colours
