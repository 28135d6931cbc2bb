"""Writes the table of docs/reference/permissions.md that says which statement needs what, from
model/security/permissions.py.

python tools/make_permissions.py
"""

from __future__ import annotations

from pathlib import Path

from servicebroker.model.security.permissions import KIND_WORDS, NEEDS, Kind, Need

PAGE = Path(__file__).parent.parent / "docs" / "reference" / "permissions.md"
BEGIN, END = "| statement | needs | refused with |\n|---|---|---|\n", "\n\n"


def table() -> str:
    """The rows."""
    rows = []
    for statement, needs in NEEDS.items():
        if statement == "ALTER AUTHORIZATION":  # the same on each kind
            rows.append("| ALTER AUTHORIZATION | TAKE OWNERSHIP on the object | 15151 |")
            continue
        for place, need in enumerate(needs):
            rows.append(f"| {statement if place == 0 else ''} | {_said(need)} | {need.number} |")
    return "\n".join(rows)


def _said(need: Need) -> str:
    if need.kind in (Kind.DATABASE, Kind.SERVER):
        on = f"the {'instance' if need.kind is Kind.SERVER else 'database'}"
    else:
        on = f"the {KIND_WORDS[need.kind]}"
    said = f"{need.permission} on {on}"
    if need.or_else is not None:
        kind, permission = need.or_else
        said += f", or {permission} on {'its schema' if kind is Kind.SCHEMA else 'the database'}"
    return said


def page(text: str) -> str:
    """The page with the table as it is to be."""
    begin = text.index(BEGIN) + len(BEGIN)
    return text[:begin] + table() + text[text.index(END, begin) :]


if __name__ == "__main__":
    PAGE.write_text(page(PAGE.read_text()))
