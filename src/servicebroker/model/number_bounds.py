"""The bounds of T-SQL's bounded numeric types, for checks in Python. PostgreSQL uses tsql.bounds."""

from __future__ import annotations

from decimal import Decimal

WHOLE = {
    "tinyint": (0, 255),
    "smallint": (-(2**15), 2**15 - 1),
    "int": (-(2**31), 2**31 - 1),
    "bigint": (-(2**63), 2**63 - 1),
}
MONEY = {
    "money": (Decimal("-922337203685477.5808"), Decimal("922337203685477.5807")),
    "smallmoney": (Decimal("-214748.3648"), Decimal("214748.3647")),
}
