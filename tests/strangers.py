"""Hold many connections to a port: `python strangers.py PORT COUNT HEX`, until standard input ends.

Each connection sends the bytes HEX and then nothing. A connection that the peer closes is opened again. This is a
process of its own, because select() in the test's process cannot handle so many descriptors.
"""

from __future__ import annotations

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

    def __init__(self, port: int, said: bytes) -> None:
        self._address, self._said = ("127.0.0.1", port), said
        self._poll = select.epoll()
        self._held: dict[int, socket.socket] = {}

    def open(self) -> None:
        """Open a connection."""
        connection = socket.socket()
        connection.setblocking(False)
        with suppress(BlockingIOError):
            connection.connect(self._address)
        self._held[connection.fileno()] = connection
        self._poll.register(connection, select.EPOLLOUT if self._said else select.EPOLLIN)

    def go_on(self) -> None:
        """Send pending bytes, and open closed connections again."""
        for number, event in self._poll.poll(0.1):
            connection = self._held[number]
            if event & ~select.EPOLLOUT:
                self._poll.unregister(connection)
                del self._held[number]
                connection.close()
                self.open()
            else:
                with suppress(OSError):
                    connection.send(self._said)
                self._poll.modify(connection, select.EPOLLIN)


@contextmanager
def strangers(port: int, count: int, said: bytes = b"") -> Iterator[None]:
    """Hold `count` connections while the block runs."""
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
