"""Starts the Python process of a Spark query: connects to Java, and only then imports PySpark.

Java waits ten seconds for the connection, and no setting changes that. On a busy machine the imports of PySpark and
pyarrow alone take longer. `worker_python.sh` runs this file. Until it is connected, it imports only the standard
library.
"""

from __future__ import annotations

import os
import runpy
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, Any

_TIMEOUT_S = 15.0  # the time for the connection to Java, as in PySpark
_INTEGER_BYTES = 4  # size of a length and of a process id, big-endian


def connect() -> tuple[IO[Any], socket.socket]:
    """Connect to Java, authenticate with the secret in the environment, and send the process id, as PySpark does."""
    timeout = float(os.environ.get("SPARK_AUTH_SOCKET_TIMEOUT", _TIMEOUT_S))
    secret = os.environ.get("PYTHON_WORKER_FACTORY_SECRET")
    if path := os.environ.get("PYTHON_WORKER_FACTORY_SOCK_PATH"):
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        connection.settimeout(timeout)
        connection.connect(path)
    else:
        host = "::1" if os.environ.get("SPARK_PREFER_IPV6", "false").lower() == "true" else "127.0.0.1"
        connection = socket.create_connection((host, int(os.environ["PYTHON_WORKER_FACTORY_PORT"])), timeout)
    stream: Any = connection.makefile("rwb", int(os.environ.get("SPARK_BUFFER_SIZE", 65536)))
    if secret is not None:
        content = secret.encode()
        stream.write(len(content).to_bytes(_INTEGER_BYTES, "big") + content)
        stream.flush()
        answer = stream.read(int.from_bytes(stream.read(_INTEGER_BYTES), "big"))
        if answer != b"ok":
            raise ConnectionError(f"Spark refuses the secret of its worker: {answer!r}")
    stream.write(os.getpid().to_bytes(_INTEGER_BYTES, "big"))
    stream.flush()
    return stream, connection


def main(module: str) -> None:
    """Connect to Java, then run a worker module of PySpark on this connection."""
    stream, connection = connect()
    sys.path.insert(0, os.getcwd())  # as `python -m` does, so that the user's modules are found

    from pyspark import worker_util

    @contextmanager
    def connected(timeout: float | None = -1) -> Iterator[IO[Any]]:
        """Return the open connection, in place of PySpark's `get_sock_file_to_executor`."""
        if timeout is None or timeout > 0:
            connection.settimeout(timeout)
        try:
            yield stream
        finally:
            stream.close()

    worker_util.get_sock_file_to_executor = connected
    runpy.run_module(module, run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    main(sys.argv[2])  # -m MODULE
