"""MERGE."""

from __future__ import annotations

from servicebroker.tsql.translation.reading import Slice
from servicebroker.tsql.translation.result import Translated
from servicebroker.tsql.translation.writer import Writer, refused


def merge(writer: Writer, common: Slice, piece: Slice) -> Translated:
    """Refused.

    Raises:
        TsqlError: 40515.
    """
    raise refused("MERGE", "Write UPDATE, then INSERT ... WHERE NOT EXISTS, in one transaction with HOLDLOCK.")
