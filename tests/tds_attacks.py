"""Attack a server for SQL Server's clients: `python tds_attacks.py PORT NAME ...`, until standard input ends.

The attackers come from another address than honest clients. `mallory` has a password, and may do nothing.
"""

from __future__ import annotations

import itertools
import os
import select
import struct
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

from servicebroker.tds.packets import PacketType
from servicebroker.tsql.types import INT, NVARCHAR
from servicebroker_lab.tds_client import (
    ENCRYPTED_PRELOGIN,
    NO_HEADERS,
    RawClient,
    batch_message,
    call,
    packet,
    packets,
    parameter,
)

USER, PASSWORD, ADDRESS = "mallory", "Mallory 1", "127.0.0.2"
_HALF_HELLO = b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03"
_LYING_VALUE = b"\0\0\xe7\xff\xff" + bytes(5) + b"\xfe" + b"\xff" * 7 + b"\xff\xff\xff\x7f"
_counter = itertools.count()


def _connected(port: int) -> RawClient:
    return RawClient(port, source=ADDRESS)


def _signed_in(port: int) -> RawClient:
    client = _connected(port)
    client.sign_in(USER, PASSWORD)
    return client


def guess_passwords(port: int) -> None:
    """Sign in with a wrong password, each time as somebody else, so that no delay applies."""
    with _connected(port) as client:
        client.sign_in(f"guess {os.getpid()} {next(_counter)}", "wrong")


def leave_sign_ins(port: int) -> None:
    """Sign in with a wrong password, and leave before the answer."""
    with _connected(port) as client:
        client.socket.settimeout(0.01)
        client.sign_in(f"gone {next(_counter)}", "wrong")


def begin_tls(port: int) -> None:
    """Begin a TLS handshake in packets, and do not go on."""
    with _connected(port) as client:
        client.send(PacketType.PRELOGIN, ENCRYPTED_PRELOGIN)
        client.read()
        client.send(PacketType.PRELOGIN, _HALF_HELLO)
        time.sleep(5)


def send_half_a_request(port: int) -> None:
    """Send a request byte by byte, with a second between two."""
    with _signed_in(port) as client:
        for byte in packets(PacketType.SQL_BATCH, batch_message("SELECT 1")):
            client.write(bytes([byte]))
            time.sleep(1)


def read_nothing(port: int) -> None:
    """Ask for large results, send attentions, and read nothing."""
    with _signed_in(port) as client:
        client.write(
            packets(PacketType.SQL_BATCH, batch_message("SELECT REPLICATE(CAST('x' AS varchar(max)), 4000000)"))
        )
        for _ in range(10):
            client.write(packet(PacketType.ATTENTION, b"") * 100)
            time.sleep(0.5)


def lie(port: int) -> None:
    """Announce a value of 2 GB, and send nothing of it."""
    with _signed_in(port) as client:
        client.write(packet(PacketType.RPC, call("P", _LYING_VALUE)))
        client.read()


def prepare_statements(port: int) -> None:
    """Prepare more statements than a session may have, and drop none."""
    with _signed_in(port) as client:
        text = parameter("", NVARCHAR, "@a int"), parameter("", NVARCHAR, "SELECT @a" + " " * 1_000)
        request = packets(PacketType.RPC, call(11, parameter("", INT, None, 1), *text, parameter("", INT, 1)))
        for _ in range(10_010):
            client.write(request)
            client.read()


def send_many_calls(port: int) -> None:
    """Send 50,000 calls in a message, and calls with as many parameters as there may be, and cancel."""
    with _signed_in(port) as client:
        body = struct.pack("<HH", 1, ord("P")) + bytes(2)
        client.write(packets(PacketType.RPC, NO_HEADERS + b"\xff".join([body] * 50_000)))
        time.sleep(1)
        client.write(packet(PacketType.ATTENTION, b""))
        client.read()
        many = [parameter(f"@p{number}", INT, number) for number in range(2_100)]
        client.write(packets(PacketType.RPC, call("P", *many)))
        client.read()


ATTACKS: dict[str, tuple[Callable[[int], None], int]] = {  # with the number of attackers at a time
    "passwords": (guess_passwords, 12),
    "gone": (leave_sign_ins, 12),
    "handshakes": (begin_tls, 100),
    "halves": (send_half_a_request, 20),
    "no reader": (read_nothing, 8),
    "lies": (lie, 4),
    "prepared": (prepare_statements, 2),
    "calls": (send_many_calls, 2),
}


@contextmanager
def attacked(port: int, *names: str) -> Iterator[None]:
    """Let attackers of these kinds attack while the block runs."""
    process = subprocess.Popen([sys.executable, __file__, str(port), *names], stdin=subprocess.PIPE)
    try:
        yield
    finally:
        process.kill()
        process.communicate()


def main(port: int, *names: str) -> None:
    os.nice(19)  # a real attacker has a processor of its own

    def repeat(attack: Callable[[int], None]) -> None:
        while True:
            with suppress(OSError, AssertionError, TimeoutError):
                attack(port)
            time.sleep(0.01)

    for name in names:
        attack, count = ATTACKS[name]
        for _ in range(count):
            threading.Thread(target=repeat, args=(attack,), daemon=True).start()
    select.select([sys.stdin], [], [])


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:])
