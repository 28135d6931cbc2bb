"""Hold many connections to a port: `python strangers.py PORT COUNT RATE HEX`, until standard input ends.

Each connection sends the bytes HEX and then nothing. A connection that the peer closes is opened again; at most RATE
connections are opened in a second. This is a process of its own, because select() in the test's process cannot handle
so many descriptors.
"""

from __future__ import annotations

import os
import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PAUSE_S = 0.002  # between two polls


class Strangers:
    """The connections of the process."""

    def __init__(self, port: int, count: int, rate: float, greeting: bytes) -> None:
        self._address, self._count, self._rate, self._said = ("127.0.0.1", port), count, rate, greeting
        self._allowance, self._then = 0.0, time.monotonic()
        self.opened = 0
        self._poll = select.epoll()
        self._held: dict[int, socket.socket] = {}

    def open_missing(self) -> None:
        """Open as many connections as are missing, and as the rate allows."""
        now = time.monotonic()
        self._allowance = min(self._allowance + (now - self._then) * self._rate, self._rate)
        self._then = now
        while len(self._held) < self._count and self._allowance >= 1:
            self._allowance -= 1
            self._open()

    def _open(self) -> None:
        self.opened += 1
        connection = socket.socket()
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.connect(self._address)
        self._held[connection.fileno()] = connection
        self._poll.register(connection, select.EPOLLOUT if self._said else select.EPOLLIN)

    def go_on(self) -> None:
        """Send pending bytes, and forget closed connections."""
        for number, event in self._poll.poll(0.01):
            connection = self._held[number]
            if event & ~select.EPOLLOUT:
                self._poll.unregister(connection)
                del self._held[number]
                connection.close()
            else:
                with suppress(OSError):
                    connection.send(self._said)
                self._poll.modify(connection, select.EPOLLIN)


@contextmanager
def strangers(port: int, count: int, greeting: bytes = b"", rate: float = 1e9) -> Iterator[None]:
    """Hold `count` connections while the block runs, and open at most `rate` in a second."""
    arguments = (str(port), str(count), str(rate), greeting.hex())
    process = subprocess.Popen([sys.executable, __file__, *arguments], stdin=subprocess.PIPE, stdout=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def main(port: int, count: int, rate: float, greeting: bytes) -> None:
    os.nice(19)  # a real attacker has a processor of its own
    strangers_held = Strangers(port, count, rate, greeting)
    print("ready", flush=True)  # noqa: T201
    while not select.select([sys.stdin], [], [], 0)[0]:
        strangers_held.open_missing()
        strangers_held.go_on()
        time.sleep(PAUSE_S)
    print(strangers_held.opened)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), float(sys.argv[3]), bytes.fromhex(sys.argv[4]))
