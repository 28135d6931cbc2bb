"""The process of a share whose rounds raise EOFError, which is also the sign of a lost daemon (test_shares.py)."""

from __future__ import annotations

import sys
from typing import Any

from servicebroker.broker import share_process


def fail(*_: Any) -> int:
    raise EOFError("of a round")


if __name__ == "__main__":
    share_process.Relay.round = fail  # type: ignore[method-assign]
    share_process.main(int(sys.argv[1]))
