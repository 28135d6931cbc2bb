"""Several simulated hosts: each daemon runs in a network namespace with its own address."""

from __future__ import annotations

import os
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from daemons import Site, Two
from support import (
    CONTRACT,
    ORDERS,
    ORDERS_QUEUE,
    REPLY,
    STOCK,
    bodies,
    eventually,
    in_thread,
    waiting_messages,
)

BROKER_PORT = 4022  # the same on every host


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True, capture_output=True, text=True, timeout=30)


class Hosts:
    """Two network namespaces with a link between them."""

    def __init__(self) -> None:
        self.west, self.east = (f"sb-{side}-{os.getpid()}" for side in ("w", "e"))
        self._cable = f"sb{os.getpid() % 1_000_000}"
        for name in (self.west, self.east):
            ip("netns", "add", name)
            ip("-n", name, "link", "set", "lo", "up")
        near, far = (f"{self._cable}w", "netns", self.west), (f"{self._cable}e", "netns", self.east)
        ip("link", "add", *near, "type", "veth", "peer", *far)
        self.address(self.west, "10.77.0.1")
        self.address(self.east, "10.77.0.2")
        self.plug()

    def address(self, host: str, address: str) -> None:
        """Add an address to a host."""
        ip("-n", host, "address", "add", f"{address}/24", "dev", self._end(host))

    def no_address(self, host: str, address: str) -> None:
        """Remove an address from a host."""
        ip("-n", host, "address", "del", f"{address}/24", "dev", self._end(host))

    def unplug(self) -> None:
        """Take the link down without a notice to either side."""
        ip("-n", self.west, "link", "set", self._end(self.west), "down")

    def plug(self) -> None:
        """Restore the link."""
        for host in (self.west, self.east):
            ip("-n", host, "link", "set", self._end(host), "up")

    def _end(self, host: str) -> str:
        return self._cable + ("w" if host == self.west else "e")

    def close(self) -> None:
        for name in (self.west, self.east):
            subprocess.run(["ip", "netns", "delete", name], check=False, capture_output=True, timeout=30)


@pytest.fixture(scope="module")
def hosts() -> Iterator[Hosts]:
    try:
        hosts = Hosts()
    except (OSError, subprocess.SubprocessError) as problem:
        said = getattr(problem, "stderr", None) or str(problem)
        pytest.skip(f"network namespaces are not to be had here: {said.strip()}")
    yield hosts
    hosts.close()


@pytest.fixture
def two(hosts: Hosts, make_instance_url: Callable[..., str], tmp_path: Path) -> Iterator[Two]:
    two = Two(*(Site(side, make_instance_url(), tmp_path) for side in ("west", "east")))
    two.west.database.alter_route("ToStock", address=f"TCP://10.77.0.2:{BROKER_PORT}")
    two.east.database.alter_route("ToOrders", address=f"TCP://10.77.0.1:{BROKER_PORT}")
    two.introduce(tmp_path)
    for site, host in ((two.west, hosts.west), (two.east, hosts.east)):
        site.instance.create_endpoint("broker", state="STARTED", listener_port=BROKER_PORT)
        site.serve(host=host).wait_for_log("is now listening for connections at TCP://0.0.0.0:4022")
    yield two
    hosts.plug()
    two.west.close()
    two.east.close()


@pytest.mark.feature(140, 141)
def test_a_link_that_is_cut_and_restored(two: Two, hosts: Hosts) -> None:
    handle = two.send("0")
    (first,) = two.arrives("0")
    sent, enough = ["0"], threading.Event()

    def send_on() -> None:
        while not enough.wait(0.02):
            two.send(str(len(sent)), handle=handle)
            sent.append(str(len(sent)))

    sender = in_thread(send_on)
    for _ in range(2):
        hosts.unplug()
        seen = len(sent)
        eventually(lambda seen=seen: len(sent) > seen + 20)  # type: ignore[misc]
        assert waiting_messages(two.west.database) > 0
        hosts.plug()
        eventually(lambda seen=seen: waiting_messages(two.west.database) < len(sent) - seen)  # type: ignore[misc]
    enough.set()
    sender.result(60)
    two.arrives(*sent[1:], seconds=90)
    two.east.database.send(first.conversation_handle, REPLY, b"all of them")
    assert bodies(two.west.database.receive(ORDERS_QUEUE, wait=60)) == [b"all of them"]
    assert all("10.77.0." in str(line.get("peer", "10.77.0.")) for line in two.west.daemon.lines)


@pytest.mark.full
@pytest.mark.feature(126, 140)
def test_a_host_that_gets_another_address(two: Two, hosts: Hosts) -> None:
    handle = two.send("a")
    two.arrives("a")
    hosts.no_address(hosts.east, "10.77.0.2")
    hosts.address(hosts.east, "10.77.0.3")
    two.send("b", handle=handle)
    two.west.database.alter_route("ToStock", address=f"TCP://10.77.0.3:{BROKER_PORT}")
    other_handle = two.west.database.begin_dialog(ORDERS, STOCK, contract=CONTRACT, encryption=False)
    two.arrives("b", seconds=90)
    two.send("c", handle=other_handle)
    two.arrives("c", seconds=60)
