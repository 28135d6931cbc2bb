"""A daemon in a separate process, for tests that kill it: `python daemon_process.py URL PORT [MOST [PROCESSES]]`.

With MOST it changes the number of its shares each second, up to MOST. If PROCESSES is 1, the shares are processes.
"""

from __future__ import annotations

import random
import signal
import sys
from datetime import UTC, datetime

from servicebroker.broker.daemon import Daemon
from servicebroker.broker.sharing.growth import Load


def main(url: str, port: int, most: int = 1, in_processes: int = 0) -> None:
    Load.wanted = lambda *_: random.randint(1, most)  # type: ignore[method-assign]
    daemon = Daemon(url, lambda: datetime.now(UTC), in_processes=bool(in_processes))
    daemon.listen("127.0.0.1", port)
    signal.signal(signal.SIGTERM, lambda *_: daemon.stop())
    daemon.run()


if __name__ == "__main__":
    main(sys.argv[1], *map(int, sys.argv[2:]))
