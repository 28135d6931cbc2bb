"""Dialects: what older versions of TDS write in another way. All older ones count in fewer bytes."""

from __future__ import annotations

from enum import IntEnum

TDS_8_0 = 0x08000000  # TLS first; the same messages as 7.4


class Dialect(IntEnum):
    """A version of TDS, by the number that LOGIN7 has."""

    TDS_7_1 = 0x71000001
    TDS_7_2 = 0x72090002
    TDS_7_3_A = 0x730A0003
    TDS_7_3_B = 0x730B0003
    TDS_7_4 = 0x74000004

    @property
    def is_wide(self) -> bool:
        """True from 7.2: types of MAX and xml, numbers of transactions, ALL_HEADERS, and longer counts."""
        return self >= Dialect.TDS_7_2

    @property
    def has_dates(self) -> bool:
        """True from 7.3: date, time, datetime2 and datetimeoffset. Older clients get them as text."""
        return self >= Dialect.TDS_7_3_A


def find_dialect(version: int) -> Dialect | None:
    """Return the dialect of a client's version, None if it is not supported."""
    if version == TDS_8_0:
        return Dialect.TDS_7_4
    try:
        return Dialect(version)
    except ValueError:
        return None
