"""Strangers who hold connections to a port: `python strangers.py PORT COUNT HEX` until its input ends.

Each connection says those bytes and then nothing. One that is closed is opened again. They are a process of their own,
since so many descriptors are too many for select().
"""

from __future__ import annotations

import select
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress

PAUSE_S = 0.002  # seconds between two looks


class Strangers:
    """The connections of the process."""

    def __init__(self, port: int, said: bytes) -> None:
        self._address, self._said = ("127.0.0.1", port), said
        self._poll = select.epoll()
        self._held: dict[int, socket.socket] = {}

    def open(self) -> None:
        """One more."""
        made = socket.socket()
        made.setblocking(False)
        with suppress(BlockingIOError):
            made.connect(self._address)
        self._held[made.fileno()] = made
        self._poll.register(made, select.EPOLLOUT if self._said else select.EPOLLIN)

    def go_on(self) -> None:
        """Send pending bytes, and open closed connections anew."""
        for number, event in self._poll.poll(0.1):
            made = self._held[number]
            if event & ~select.EPOLLOUT:
                self._poll.unregister(made)
                del self._held[number]
                made.close()
                self.open()
            else:
                with suppress(OSError):
                    made.send(self._said)
                self._poll.modify(made, select.EPOLLIN)


@contextmanager
def strangers(port: int, count: int, said: bytes = b"") -> Iterator[None]:
    """Run a number of strangers, as long as the block runs."""
    process = subprocess.Popen([sys.executable, __file__, str(port), str(count), said.hex()], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def main(port: int, count: int, said: bytes) -> None:
    held = Strangers(port, said)
    for _ in range(count):
        held.open()
    while not select.select([sys.stdin], [], [], 0)[0]:
        held.go_on()
        time.sleep(PAUSE_S)


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), bytes.fromhex(sys.argv[3]))
