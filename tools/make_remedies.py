"""Writes the table of docs/how-to/stuck.md that says what each status asks for, from model/remedies.py.

python tools/make_remedies.py
"""

from __future__ import annotations

from pathlib import Path

from servicebroker.model.errors import RULES
from servicebroker.model.remedies import REMEDIES

PAGE = Path(__file__).parent.parent / "docs" / "how-to" / "stuck.md"
BEGIN = "| number | it says | what to do |\n|---|---|---|\n"


def table() -> str:
    """The rows."""
    said = {number: " ".join(RULES[number].text.split()).replace("|", "\\|") for number in REMEDIES}
    return "".join(f"| {number} | {said[number]} | {REMEDIES[number]} |\n" for number in sorted(REMEDIES))


def page(text: str) -> str:
    """The page with the table, its last part, as it is to be."""
    return text[: text.index(BEGIN) + len(BEGIN)] + table()


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
