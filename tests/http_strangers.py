"""Send random requests of strangers to a dashboard: `python http_strangers.py PORT SEED`, until standard input ends.

Every tenth connection is held open, with an incomplete request.
"""

from __future__ import annotations

import os
import random
import select
import socket
import sys
from collections import deque
from contextlib import suppress
from uuid import UUID

from servicebroker_lab.http_fuzzing.requests import RequestMaker

HELD_COUNT = 200  # connections with an incomplete request
PAUSE_S = 0.01  # between two connections
TIMEOUT_S = 0.05  # for a part of the answer


def main(port: int, seed: int) -> None:
    os.nice(19)  # a real attacker has a processor of its own
    draw = random.Random(seed)
    maker = RequestMaker(draw, port, [], [UUID(int=0)], may_act=False)
    sockets: deque[socket.socket] = deque()
    count = 0
    print("ready", flush=True)  # noqa: T201
    while not select.select([sys.stdin], [], [], PAUSE_S)[0]:
        content = b"".join(maker.request().content for _ in range(draw.randint(1, 3)))
        count += 1
        with suppress(OSError):
            connection = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_S)
            is_held = draw.random() < 0.1
            with suppress(OSError):
                connection.sendall(content[:-1] if is_held else content)
                connection.recv(65_536)
            if is_held:
                sockets.append(connection)
            else:
                connection.close()
        while len(sockets) > HELD_COUNT:
            sockets.popleft().close()
    print(count)  # noqa: T201


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]))
