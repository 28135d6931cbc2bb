"""The catalog views have the columns that the reference lists, under their names."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

import servicebroker as sb

REFERENCE = Path(__file__).parents[4] / "shared" / "reference" / "05-catalog.md"
_TYPE = (
    r"(?:sysname|(?:small|tiny|big)?int|bit|uniqueidentifier|datetime|n?varchar\((?:\d+|max)\)|n?char\(\d+\)"
    r"|varbinary\(max\)|binary\(\d+\))"
)
_NAMES = re.compile(rf"((?:\b[a-z_]+\b(?:, | / )?)+) {_TYPE}")
_ROW = re.compile(rf"^\| ([a-z_ /]+) \| {_TYPE}", re.MULTILINE)
_OF_TCP_ENDPOINTS = {"port", "is_dynamic_port", "ip_address"}  # described in the section of service_broker_endpoints


def documented_columns() -> dict[str, list[str]]:
    """Return the columns of each view from the sections of the reference."""
    found = {}
    for section in re.split(r"^## ", REFERENCE.read_text(), flags=re.MULTILINE)[1:]:
        title = re.match(r"\d+\. (sys\.\w+)", section)
        if title is None:
            continue
        rows = _ROW.findall(section) or _NAMES.findall(section)
        found[title[1]] = [name for names in rows for name in re.split(r", | / ", names.strip())]
    return found


@pytest.mark.skipif(not REFERENCE.exists(), reason=f"the reference stands in {REFERENCE}, which is not here")
def test_every_documented_column_is_there(instance: sb.Instance) -> None:
    database = instance.database("Documented", create=True)
    missing = {}
    views = documented_columns()
    assert len(views) >= 15
    for view, names in views.items():
        assert names, view
        columns = {name.lower() for name in database.execute_tsql(f"SELECT TOP (0) * FROM {view}").sets[0].columns}
        absent = set(names) - columns - _OF_TCP_ENDPOINTS
        if absent:
            missing[view] = absent
    assert missing == {}
