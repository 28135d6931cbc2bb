"""Measures what a message costs: processor time of every process, and WAL (docs/explanation/scale.md).

    python tools/cpu_per_message.py [MESSAGES]

Linux only: the processor time is read from /proc. One line for each way and size of transaction, in microseconds per
message; `postgres of X` are the connections to that instance, of the application and of the daemon.
"""

from __future__ import annotations

import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import psycopg

import servicebroker as sb
from servicebroker.api.instance import Instance
from servicebroker.api.shared.open import open_instance
from servicebroker_lab.benchmarks.measured_system import text_body
from servicebroker_lab.benchmarks.processes import processor_time
from servicebroker_lab.benchmarks.routing import Passing

SIZES = (1000, 10)  # messages in a transaction


def used(url: str, daemons: list[int]) -> Counter[str]:
    """Seconds that everybody has used until now, and WAL bytes, by name."""
    found: Counter[str] = Counter({"client": sum(os.times()[:2])})
    with psycopg.connect(url) as connection:
        for pid, database, name in connection.execute(
            "select pid, datname, application_name from pg_stat_activity where application_name like 'servicebroker%'"
        ).fetchall():
            found[f"postgres of {database}, {name}"] += processor_time(pid)
        row = connection.execute("select (pg_current_wal_insert_lsn() - '0/0'::pg_lsn)::bigint").fetchone()
    found["WAL bytes"] = row[0] / 1e6 if row else 0  # as microseconds are printed
    for number, pid in enumerate(daemons):
        found[f"daemon {number + 1}"] = processor_time(pid)
    return found


def measure(title: str, url: str, daemons: list[int], messages: int, work: Callable[[], object]) -> None:
    """Do the work and print what it cost."""
    before, begun = used(url, daemons), time.perf_counter()
    work()
    seconds = time.perf_counter() - begun
    cost = {name: (value - before[name]) * 1e6 / messages for name, value in used(url, daemons).items()}
    cpu = sum(value for name, value in cost.items() if name != "WAL bytes")
    print(f"{title}: {messages / seconds:,.0f} messages/s, {cpu:.1f} us in all")
    for name, value in sorted(cost.items()):
        if value >= 0.5:
            print(f"    {name:50} {value:8.1f}")


def local(instance: Instance, messages: int) -> None:
    """SEND and RECEIVE in one instance, on 16 conversations."""
    database, body = instance.database("Local", create=True), text_body().encode()
    for queue, service, contracts in (("From", "//cpu/From", []), ("To", "//cpu/To", [sb.DEFAULT])):
        database.create_queue(queue)
        database.create_service(service, queue, contracts)
    handles = [database.begin_dialog("//cpu/From", "//cpu/To", encryption=False) for _ in range(16)]
    for handle in handles:
        database.send(handle, body=body)
    while database.receive("To", top=1000):
        pass
    for size in (*SIZES, 1):
        count = messages if size > 10 else messages // 10

        def send(size: int = size, count: int = count) -> None:
            for number in range(count // size):
                database.send_batch(handles[number % 16], sb.DEFAULT, [body] * size)

        def receive(size: int = size, count: int = count) -> None:
            left = count // size * size
            while left:
                left -= len(database.receive("To", top=size))

        measure(f"SEND in one instance, {size} in a transaction", instance.url, [], count, send)
        measure(f"RECEIVE in one instance, {size} in a transaction", instance.url, [], count, receive)


def remote(instance: Instance, messages: int) -> None:
    """From one instance to another, straight and through a forwarder."""
    for is_forwarded in (False, True):
        with closing(Passing("", instance.url, is_forwarded=is_forwarded)) as passing:
            (way,) = passing.ways("forwarding")
            way.prepare(0)
            for size in SIZES:
                passing.size = size
                count = messages if size > 10 else messages // 10
                title = f"{'Through a forwarder' if is_forwarded else 'Straight'}, {size} in a transaction"
                measure(title, instance.url, passing.daemons, count, lambda way=way, count=count: way.work(count))  # type: ignore[misc]


def main(messages: int) -> None:
    """Measure on a fresh server on a real disk."""
    with tempfile.TemporaryDirectory(dir="/var/tmp") as folder:
        Path(folder).chmod(0o711)
        with open_instance(Path(folder) / "instance") as instance:
            local(instance, messages)
            remote(instance, messages)


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 60_000)
