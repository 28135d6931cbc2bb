"""A standalone Spark cluster of the installed pyspark: master and workers are processes of this machine.

Each worker has its own address in 127.0.0.0/8, because Spark runs no second attempt of a task on the first one's host.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import pyspark

HOME = Path(pyspark.__file__).parent
_SHORT_LIVED = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"


class Cluster:
    """A master, and workers that are added and killed."""

    def __init__(self, folder: Path, environment: Mapping[str, str]) -> None:
        self._folder = folder
        self._environment = os.environ | environment | {"SPARK_HOME": str(HOME), "SPARK_SCALA_VERSION": "2.13"}
        self._environment |= {"SPARK_DAEMON_MEMORY": "256m", "SPARK_DAEMON_JAVA_OPTS": _SHORT_LIVED}
        self._environment.pop("SPARK_LOCAL_IP", None)
        self._web, port = _free_port(), _free_port()
        self.url = f"spark://127.0.0.1:{port}"
        self._count = 0
        self._all = [self._start("master", "--host", "127.0.0.1", "--port", port, "--webui-port", self._web)]

    def _start(self, kind: str, *arguments: object) -> subprocess.Popen[bytes]:
        java = f"org.apache.spark.deploy.{kind}.{kind.capitalize()}"
        command = [HOME / "bin" / "spark-class", java, *arguments]
        with (self._folder / f"{kind}-{self._count}.log").open("wb") as log_file:
            return subprocess.Popen(
                [*map(str, command)], env=self._environment, stdout=log_file, stderr=log_file, start_new_session=True
            )

    def add_worker(self) -> subprocess.Popen[bytes]:
        """Start a worker with its own address, and wait until the master has registered it."""
        self._count += 1
        host, folder = f"127.0.0.{1 + self._count}", self._folder / f"worker-{self._count}"
        size = ("--cores", 2, "--memory", "1g", "--webui-port", 0)
        worker = self._start("worker", "--host", host, *size, "--work-dir", folder, self.url)
        self._all.append(worker)
        give_up = time.monotonic() + 120
        while not any(worker_row["host"] == host for worker_row in self._workers()):
            assert worker.poll() is None, (self._folder / f"worker-{self._count}.log").read_text()
            assert time.monotonic() < give_up, "the worker never came"
            time.sleep(0.1)
        return worker

    def _workers(self) -> list[dict[str, Any]]:
        with contextlib.suppress(OSError), urllib.request.urlopen(f"http://127.0.0.1:{self._web}/json/") as page:
            workers: list[dict[str, Any]] = json.load(page)["workers"]
            return [worker for worker in workers if worker["state"] == "ALIVE"]
        return []

    def submit(
        self, program: Path, *arguments: object, settings: Mapping[str, str], log_file: IO[bytes]
    ) -> subprocess.Popen[bytes]:
        """Run a Python program with `spark-submit`."""
        all_settings = {
            "spark.driver.host": "127.0.0.1",
            "spark.driver.bindAddress": "127.0.0.1",
            "spark.driver.extraJavaOptions": _SHORT_LIVED,
            "spark.executor.memory": "700m",
            "spark.executor.cores": "2",
            "spark.pyspark.python": sys.executable,
            "spark.sql.session.timeZone": "UTC",
            "spark.ui.enabled": "false",
            **settings,
        }
        confs = [word for name, value in all_settings.items() for word in ("--conf", f"{name}={value}")]
        command = [HOME / "bin" / "spark-submit", "--master", self.url, *confs, program, *arguments]
        return subprocess.Popen(
            [*map(str, command)], env=self._environment, stdout=log_file, stderr=log_file, start_new_session=True
        )

    def close(self) -> None:
        """End all processes."""
        for process in reversed(self._all):
            kill(process)


@contextmanager
def cluster(folder: Path, environment: Mapping[str, str]) -> Iterator[Cluster]:
    """Start a cluster without workers."""
    running_cluster = Cluster(folder, environment)
    try:
        yield running_cluster
    finally:
        running_cluster.close()


def kill(process: subprocess.Popen[bytes]) -> None:
    """Kill a process and its children, including a worker's executors, as the loss of a machine does."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()


def events(folder: Path, kind: str) -> list[dict[str, Any]]:
    """Return the events of this kind that a driver has logged, with `spark.eventLog.enabled`."""
    found_events = []
    for file in sorted(folder.rglob("*")):
        if file.is_file() and not file.name.startswith((".", "appstatus")):
            lines = file.read_text().splitlines()  # the last line of a killed driver may be incomplete
            found_events += [json.loads(line) for line in lines if f'"{kind}"' in line and line.endswith("}")]
    return found_events


def _free_port() -> int:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port: int = free.getsockname()[1]
    return port
