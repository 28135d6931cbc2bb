"""A daemon in a process of its own, for tests that kill it: `python daemon_process.py URL PORT`."""

from __future__ import annotations

import signal
import sys
from datetime import UTC, datetime

from servicebroker.broker.daemon import Daemon


def main(url: str, port: int) -> None:
    daemon = Daemon(url, lambda: datetime.now(UTC))
    daemon.listen("127.0.0.1", port)
    signal.signal(signal.SIGTERM, lambda *_: daemon.stop())
    daemon.run()


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]))
