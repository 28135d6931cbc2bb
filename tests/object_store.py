"""An S3 server for tests, and a reader of its Delta tables that is independent of deltalake and Spark."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from pyarrow import fs

BUCKET = "lake"
_KEY, _SECRET, _REGION = "key", "secret", "us-east-1"


@contextmanager
def serving() -> Iterator[str]:
    """Run the server in a separate process, because requests of deltalake hold Python's lock. Yields its address."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)]
    server = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        give_up = time.monotonic() + 60
        while server.poll() is None and time.monotonic() < give_up:
            try:
                request = urllib.request.Request(f"http://127.0.0.1:{port}/{BUCKET}", method="PUT")
                urllib.request.urlopen(request, timeout=10).close()
                break
            except OSError:
                time.sleep(0.05)
        yield f"127.0.0.1:{port}"
    finally:
        server.kill()
        server.wait()


def environment(endpoint: str) -> dict[str, str]:
    """Return the environment of a process that uses the store."""
    return {
        "AWS_ENDPOINT_URL": f"http://{endpoint}",
        "AWS_ALLOW_HTTP": "true",
        "AWS_REGION": _REGION,
        "AWS_ACCESS_KEY_ID": _KEY,
        "AWS_SECRET_ACCESS_KEY": _SECRET,
    }


def _client(endpoint: str) -> fs.S3FileSystem:
    place = {"endpoint_override": endpoint, "scheme": "http", "region": _REGION}
    return fs.S3FileSystem(access_key=_KEY, secret_key=_SECRET, **place)


def live_files(endpoint: str, folder: object) -> list[str]:
    """Return the files that the JSON log of a table names."""
    ours, place = _client(endpoint), str(folder).removeprefix("s3://")
    files: set[str] = set()
    log = ours.get_file_info(fs.FileSelector(f"{place}/_delta_log"))
    for entry in sorted(one.path for one in log if one.path.endswith(".json")):
        with ours.open_input_stream(entry) as stream:
            for line in stream.read().splitlines():
                action = json.loads(line)
                files |= {action["add"]["path"]} if "add" in action else set()
                files -= {action["remove"]["path"]} if "remove" in action else set()
    return [f"{place}/{file}" for file in sorted(files)]


def rows(endpoint: str, folder: object) -> list[dict[str, Any]]:
    """Return the rows of a table, read by Arrow's own S3 client."""
    ours, rows_of_files = _client(endpoint), []
    for file in live_files(endpoint, folder):
        with ours.open_input_file(file) as source:
            rows_of_files += pq.ParquetFile(source).read().to_pylist()
    return rows_of_files


def fetch_table(endpoint: str, folder: object, into: Path) -> list[str]:
    """Copy the files of a table to a local folder, for any reader of Parquet."""
    ours, found = _client(endpoint), []
    into.mkdir(parents=True)
    for number, file in enumerate(live_files(endpoint, folder)):
        found.append(str(into / f"{number}.parquet"))
        with ours.open_input_stream(file) as stream:
            Path(found[-1]).write_bytes(stream.read())
    return found
