"""Write the tables of `protocol/conversation_states.py` into docs/reference/message-path.md; a test compares them.

python tools/make_conversation_states.py
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from enum import StrEnum
from pathlib import Path
from typing import Any

from servicebroker.protocol.conversation_states import ARRIVING, SENDER_TRANSITIONS, Event, Stage

DOCUMENT = Path(__file__).parents[1] / "docs/reference/message-path.md"
COLUMN_WIDTH = 17


def as_text() -> str:
    """A matrix of stages and events, and what each step of both tables asks for."""
    stages = [stage for stage in Stage if stage is not Stage.FORGOTTEN]
    lines = ["".join(one.rjust(COLUMN_WIDTH) for one in ("", *stages)).rstrip()]
    for event in Event:
        after = [
            SENDER_TRANSITIONS[stage, event].after if (stage, event) in SENDER_TRANSITIONS else "-" for stage in stages
        ]
        lines.append(event.name.ljust(COLUMN_WIDTH) + "".join(one.rjust(COLUMN_WIDTH) for one in after))
    for table in (SENDER_TRANSITIONS, ARRIVING):
        lines += _steps(table)
    return "\n".join(lines) + "\n"


def _steps(table: Mapping[tuple[Any, Any], Any]) -> Iterator[str]:
    last: StrEnum | None = None
    for (before, event), (after, actions) in table.items():
        if before is not last:
            yield ""
            yield f"{before}, and"
            last = before
        then = "" if after is before else f" -> {after}"
        yield f"  {event}{then}" + (f": {'; '.join(actions)}" if actions else "")


_BLOCK = re.compile(r"(^## The states of a conversation .*?^```text\n)(.*?)(^```)", re.MULTILINE | re.DOTALL)


def documented(page: str) -> str:
    """Return the generated block of docs/reference/message-path.md."""
    found = _BLOCK.search(page)
    assert found is not None
    return found[2]


if __name__ == "__main__":
    DOCUMENT.write_text(_BLOCK.sub(lambda found: found[1] + as_text() + found[3], DOCUMENT.read_text()))
