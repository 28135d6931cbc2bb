"""The way of one message is the one that docs/reference/message-path.md shows."""

from __future__ import annotations

from collections.abc import Callable

import message_path


def files_of_stages(text: str) -> dict[str, set[str]]:
    """The files of each stage, in whatever order threads came to them; the counts of the titles follow from them."""
    values_by_name: dict[str, set[str]] = {}
    part = stage = ""
    for line in text.splitlines():
        if line.startswith("  "):
            values_by_name[part + stage] |= set(line.split())
        elif line in message_path.STAGES:
            stage = line
            values_by_name[part + stage] = set()
        elif line:
            part = line.partition(":")[0] + ", "
    return values_by_name


def test_the_way_of_a_message_is_the_documented_one(make_instance_url: Callable[[], str]) -> None:
    documented = message_path.documented(message_path.DOCUMENT.read_text())
    ways = message_path.ways_of_messages(make_instance_url(), make_instance_url())
    found, shown = (files_of_stages(text) for text in (message_path.as_text(*ways, functions=False), documented))
    changed = {stage: found.get(stage, set()) ^ shown.get(stage, set()) for stage in found | shown}
    assert not any(changed.values()), f"look at {changed}, then run: python tools/message_path.py --write"
    of_the_broker = {file for file in message_path.files_of(ways[1]) if file.startswith("broker/")}
    of_its_rounds = {file for file in of_the_broker if not file.startswith("broker/shar")}  # the others run the rounds
    assert len(of_its_rounds) <= 10, "a round that has nothing to do with it asks nobody else"
