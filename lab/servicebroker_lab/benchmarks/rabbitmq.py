"""RabbitMQ between two nodes: durable quorum queues, publisher confirms, a shovel that carries what is published."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager, suppress
from itertools import count, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from servicebroker.model.errors import InstanceError
from servicebroker_lab.benchmarks.measured_system import free_port
from servicebroker_lab.benchmarks.sender_process import SenderProcess, all_during, shares

if TYPE_CHECKING:
    from pika.adapters.blocking_connection import BlockingChannel

SERVER = "rabbitmq-server"
# Debian's program in /usr/sbin runs the server as a user of its own, with folders of its own
PLACES = (f"/usr/lib/rabbitmq/bin/{SERVER}", shutil.which(SERVER) or "")
OUT, IN = "out", "in"  # the queue at the first node, and that at the second
QUORUM = {"x-queue-type": "quorum"}
HOST = "127.0.0.1"
BODY = b"x" * 200
PREFETCH_MESSAGES = 1_000  # messages; as many as a RECEIVE of ours takes
START_TIMEOUT_S = 120.0  # seconds until a node listens
MESSAGE_TIMEOUT_S = 60.0  # seconds without a message
_SHOVEL = """\
[{{rabbitmq_shovel, [{{shovels, [{{carry, [
  {{source, [{{protocol, amqp091}}, {{uris, ["amqp://127.0.0.1:{source}"]}},
    {{queue, <<"out">>}}, {{prefetch_count, {prefetch}}}]}},
  {{destination, [{{protocol, amqp091}}, {{uris, ["amqp://127.0.0.1:{target}"]}},
    {{publish_properties, [{{delivery_mode, 2}}]}},
    {{publish_fields, [{{exchange, <<>>}}, {{routing_key, <<"in">>}}]}}]}},
  {{ack_mode, on_confirm}}, {{reconnect_delay, 1}}]}}]}}]}}].
"""


def find_server() -> str | None:
    """Return the path of RabbitMQ's server, which any user may start; None if RabbitMQ is not installed."""
    return next((path for path in PLACES if path and os.access(path, os.X_OK)), None)


class ShovelPair:
    """Two nodes on this machine, and so many processes that publish.

    `server` is what `find_server` has found; `place` a folder for their data.
    """

    def __init__(self, server: str, folder: Path, sender_count: int) -> None:
        folder.mkdir(mode=0o711)
        self.version = _version(server)
        self._stack = ExitStack()
        self._ports = [free_port(), free_port()]
        names = free_port()  # the nodes find each other through this port
        self._stack.callback(_end_names, names)
        try:
            self._start(server, folder / "target", names, self._ports[1], "")
            self._declare(self._ports[1], IN)
            shovel = _SHOVEL.format(source=self._ports[0], target=self._ports[1], prefetch=PREFETCH_MESSAGES)
            self._start(server, folder / "source", names, self._ports[0], shovel)
            self._declare(self._ports[0], OUT)
            self._senders = [
                self._stack.enter_context(closing(SenderProcess(_publishing, self._ports[0])))
                for _ in range(sender_count)
            ]
            self.send_and_receive(PREFETCH_MESSAGES, 100)  # the shovel has found its queue
        except BaseException:
            self.close()
            raise

    def _start(self, server: str, folder: Path, names: int, port: int, advanced_config: str) -> None:
        folder.mkdir()
        (folder / "plugins").write_text("[rabbitmq_shovel].\n")
        (folder / "advanced.config").write_text(advanced_config or "[].\n")
        (folder / "rabbitmq.conf").write_text(f"listeners.tcp.1 = 127.0.0.1:{port}\n")
        environment = os.environ | {
            "HOME": str(folder),
            "ERL_EPMD_PORT": str(names),
            "RABBITMQ_NODENAME": f"servicebroker-{folder.name}@localhost",
            "RABBITMQ_DIST_PORT": str(free_port()),
            "RABBITMQ_MNESIA_BASE": str(folder),
            "RABBITMQ_LOG_BASE": str(folder),
            "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
            "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq.conf"),
            "RABBITMQ_ADVANCED_CONFIG_FILE": str(folder / "advanced.config"),
        }
        log = self._stack.enter_context((folder / "output").open("wb"))
        process = subprocess.Popen([server], stdout=log, stderr=log, env=environment)
        self._stack.callback(_end, process)
        deadline = time.monotonic() + START_TIMEOUT_S
        while not _listens(port):
            if process.poll() is not None or time.monotonic() > deadline:
                raise InstanceError(f"RabbitMQ did not start; it says: {(folder / 'output').read_text().strip()}")
            time.sleep(0.1)

    def _declare(self, port: int, queue: str) -> None:
        with _channel(port) as channel:
            channel.queue_declare(queue, durable=True, arguments=QUORUM)

    def send_and_receive(self, messages: int, batch: int) -> int:
        """Publish so many, waiting for the confirms of each `batch`; every process on a connection of its own."""
        parts = zip(self._senders, shares(messages, len(self._senders)), strict=True)
        return all_during(lambda: self._read(messages), [(sender, (share, batch)) for sender, share in parts])

    def _read(self, messages: int) -> int:
        read = 0
        with _channel(self._ports[1]) as channel:
            channel.basic_qos(prefetch_count=PREFETCH_MESSAGES)
            for method, _, _ in channel.consume(IN, inactivity_timeout=MESSAGE_TIMEOUT_S):
                if method is None:
                    raise InstanceError(
                        f"{messages - read:,} messages have not arrived in {MESSAGE_TIMEOUT_S:g} seconds."
                    )
                read += 1
                if read == messages or read % 100 == 0:
                    channel.basic_ack(method.delivery_tag, multiple=True)
                if read == messages:
                    return read
        raise InstanceError("RabbitMQ has cancelled the reader.")

    def close(self) -> None:
        """End both nodes."""
        self._stack.close()


@contextmanager
def _publishing(port: int) -> Iterator[Callable[[int, int], None]]:
    def publish(messages: int, batch: int) -> None:
        if messages:  # without one there is no confirm that ends it
            _Publisher(port, messages, batch).run()

    yield publish


class _Publisher:
    """Publishes in a loop of its own: pika's blocking form waits for the confirm of every single message."""

    def __init__(self, port: int, messages: int, batch: int) -> None:
        import pika

        self._batch = batch
        self._left = self._unconfirmed = messages
        self._properties = pika.BasicProperties(delivery_mode=2)
        self._connection: Any = pika.SelectConnection(
            pika.ConnectionParameters(HOST, port),
            on_open_callback=self._on_open,
            on_open_error_callback=self._on_close,
            on_close_callback=self._on_close,
        )

    def run(self) -> None:
        """Returns when everything is confirmed, or the connection is lost."""
        self._connection.ioloop.start()
        self._connection.ioloop.close()

    def _on_open(self, connection: Any) -> None:
        connection.channel(on_open_callback=self._begin)

    def _begin(self, channel: Any) -> None:
        due: list[int] = []  # the numbers of this channel's messages that are not confirmed
        numbers = count(1)

        def publish() -> None:
            due.extend(islice(numbers, min(self._batch, self._left)))
            self._left -= len(due)
            for _ in due:
                channel.basic_publish("", OUT, BODY, self._properties)

        def confirm(frame: Any) -> None:
            tag, is_multiple = frame.method.delivery_tag, frame.method.multiple
            left = [number for number in due if (number > tag if is_multiple else number != tag)]
            self._unconfirmed -= len(due) - len(left)
            due[:] = left
            if not self._unconfirmed:
                self._connection.close()
            elif not due:
                publish()

        channel.confirm_delivery(confirm, lambda _: publish())

    def _on_close(self, *_: object) -> None:
        self._connection.ioloop.stop()


@contextmanager
def _channel(port: int) -> Iterator[BlockingChannel]:
    import pika

    connection = pika.BlockingConnection(pika.ConnectionParameters(HOST, port))
    try:
        yield connection.channel()
    finally:
        connection.close()


def _version(server: str) -> str:
    control = Path(server).with_name("rabbitmqctl")
    return subprocess.run([control, "version"], capture_output=True, text=True, check=False).stdout.strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()  # its signal lets Erlang stop in order
    process.wait()


def _end_names(port: int) -> None:
    """Stop Erlang's port mapper. The first node has started it, and it would outlive the node."""
    with suppress(FileNotFoundError):
        subprocess.run(["epmd", "-port", str(port), "-kill"], stdout=subprocess.DEVNULL, check=False)


def _listens(port: int) -> bool:
    with suppress(OSError), socket.create_connection((HOST, port), timeout=1):
        return True
    return False
