"""Two brokers on this machine: a shop sends orders, a warehouse confirms them, over TLS and sealed from end to end.

    python examples/two-brokers/run.py

Everything is made in a temporary folder, and is gone at the end.
"""

from __future__ import annotations

import os
import secrets
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import servicebroker as sb

ORDER_COUNT = 100
SHOP, WAREHOUSE = "//example/Shop", "//example/Warehouse"
ORDER, CONFIRMATION = "//example/Order", "//example/Confirmation"
CONTRACT = "//example/Ordering"
PASSWORD = {"SERVICEBROKER_MASTER_KEY_PASSWORD": secrets.token_hex()}  # of the master keys; write yours down


def free_port() -> int:
    """A port that an endpoint may have and nobody listens on now."""
    for port in range(4022, 32768):
        with suppress(OSError), socket.create_server(("127.0.0.1", port)):
            return port
    raise OSError("no port is free from 4022 on")


def servicebroker(*arguments: str) -> None:
    """Run the command line."""
    command = [sys.executable, "-m", "servicebroker.cli.main", *arguments]
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL, env=os.environ | PASSWORD)


def define(instance: sb.Instance, service: str, other: str, port: int, other_port: int) -> sb.Database:
    """The objects that both sides have, the service of this one, the route to the other, and the endpoint."""
    database = instance.database("Example", create=True)
    database.create_message_type(ORDER)
    database.create_message_type(CONFIRMATION)
    database.create_contract(CONTRACT, {ORDER: "INITIATOR", CONFIRMATION: "TARGET"})
    database.create_queue("Inbox")
    database.create_service(service, "Inbox", [CONTRACT])
    database.create_route("ToTheOther", service_name=other, address=f"TCP://127.0.0.1:{other_port}")
    instance.create_endpoint(
        "Broker", state="STARTED", listener_port=port, listener_ip="127.0.0.1", authentication="CERTIFICATE"
    )
    return database


@contextmanager
def served(folder: Path, log: Path) -> Iterator[None]:
    """`servicebroker serve` beside this program."""
    with log.open("w") as lines:
        command = [sys.executable, "-m", "servicebroker.cli.main", "serve", "--instance", str(folder)]
        process = subprocess.Popen(command, stderr=lines)
        try:
            yield
        finally:
            process.terminate()
            process.wait()


def introduce(folder: Path) -> None:
    """Each instance has a certificate, and the other one's."""
    for name in ("shop", "warehouse"):
        servicebroker("certificate", "create", name, "--instance", str(folder / name))
        servicebroker("certificate", "export", name, str(folder / f"{name}.pem"), "--instance", str(folder / name))
    servicebroker(
        "certificate", "import", "warehouse", str(folder / "warehouse.pem"), "--instance", str(folder / "shop")
    )
    servicebroker("certificate", "import", "shop", str(folder / "shop.pem"), "--instance", str(folder / "warehouse"))


def secure(folder: Path) -> None:
    """The owners of the services know each other: what they say to each other nobody else reads, or says for them."""
    for name in ("shop", "warehouse"):
        of = ("--database", "Example", "--instance", str(folder / name))
        servicebroker("certificate", "master-key", *of)
        servicebroker("certificate", "create", "own", *of)
        servicebroker("certificate", "export", "own", str(folder / f"{name}-dialogs.pem"), *of)
    for name, other, option in (
        ("shop", "warehouse", ("--to-service", WAREHOUSE)),
        ("warehouse", "shop", ("--grant-send", WAREHOUSE)),
    ):
        of = ("--database", "Example", "--instance", str(folder / name))
        servicebroker(
            "certificate", "import", other, str(folder / f"{other}-dialogs.pem"), "--user", other, *option, *of
        )


def exchange(shop: sb.Database, warehouse: sb.Database) -> tuple[int, float]:
    """Send every order and read every confirmation; how many were confirmed, and in how many seconds."""
    begun = time.monotonic()
    handle = shop.begin_dialog(SHOP, WAREHOUSE, contract=CONTRACT)
    for number in range(ORDER_COUNT):
        shop.send(handle, ORDER, f"order {number}")
    seen = 0
    while seen < ORDER_COUNT:
        with warehouse.transaction() as transaction:
            for message in transaction.receive("Inbox", top=ORDER_COUNT, wait=30):
                transaction.send(message.conversation_handle, CONFIRMATION, message.message_body)
                seen += 1
    confirmed: list[bytes | None] = []
    while len(confirmed) < ORDER_COUNT:
        confirmed += [message.message_body for message in shop.receive("Inbox", top=ORDER_COUNT, wait=30)]
    assert confirmed == [f"order {number}".encode() for number in range(ORDER_COUNT)], "lost, doubled or out of order"
    return len(confirmed), time.monotonic() - begun


def main() -> None:
    """Make both, let them talk, and say what happened."""
    with tempfile.TemporaryDirectory(prefix="two-brokers-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        with sb.open(folder / "shop") as one, sb.open(folder / "warehouse") as two:
            introduce(folder)
            shop_port = free_port()
            with socket.create_server(("127.0.0.1", shop_port)):  # so that the other one is another
                warehouse_port = free_port()
            shop = define(one, SHOP, WAREHOUSE, shop_port, warehouse_port)
            warehouse = define(two, WAREHOUSE, SHOP, warehouse_port, shop_port)
            secure(folder)
            with served(folder / "shop", folder / "shop.log"), served(folder / "warehouse", folder / "warehouse.log"):
                confirmed, seconds = exchange(shop, warehouse)
    print(f"The shop listens on port {shop_port}, the warehouse on port {warehouse_port}; between them TLS 1.3.")
    print(f"{confirmed} orders were sent and confirmed, each once and in order, in {seconds:.1f} s.")


if __name__ == "__main__":
    main()
