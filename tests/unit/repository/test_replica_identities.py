"""Every table in the sources has a replica identity: without one, a publication blocks UPDATE and DELETE.

`tests/integration/instance/test_publications.py` asks PostgreSQL the same of the tables of an instance.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import servicebroker

SOURCES = Path(servicebroker.__file__).parent
CREATE_TABLE = re.compile(r"\bcreate table (?:if not exists )?([\w.{}]+)(.*?)(?:;\n|\Z|\"\"\")", re.DOTALL)
MAX_DEFINITION_CHARACTERS = 1500  # characters to read of a definition without a final semicolon


def definitions() -> Iterator[tuple[str, str]]:
    """Return name and text of each CREATE TABLE, without those for tables of applications (T-SQL)."""
    for file in sorted(SOURCES.rglob("*")):
        if file.suffix in (".py", ".sql"):
            for match in CREATE_TABLE.finditer(file.read_text()):
                yield match[1], match[2][:MAX_DEFINITION_CHARACTERS]


def test_a_table_has_a_primary_key_or_says_its_replica_identity() -> None:
    sources = [file.read_text() for end in ("sql", "py") for file in SOURCES.rglob(f"*.{end}")]
    told = {name for text in sources for name in re.findall(r"alter table ([\w.{}]+) replica identity", text)}
    made = dict(definitions())
    assert {
        "servicebroker.queue_{id}",
        "servicebroker.retained_{id}",
        "servicebroker.trail",
        "servicebroker.{name}",
    } <= told
    assert {"servicebroker.queues", "servicebroker.queue_{id}", "servicebroker.archived_{queue_id}"} <= made.keys()
    assert [name for name, text in made.items() if "primary key" not in text and name not in told] == []
