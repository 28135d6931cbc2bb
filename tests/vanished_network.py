"""Test keepalives in a network that loses all packets: `unshare --net python vanished_network.py FOLDER`.

A server listens in a network namespace, whose interface is switched off, so that neither side notices the end.
"""

from __future__ import annotations

import subprocess
import sys
import threading
import time
from pathlib import Path

import psycopg

from mirrored_servers import Server
from servicebroker.store.connection import connect

CLIENT_KEEPALIVES = "tcp_user_timeout=1500 keepalives_idle=1 keepalives_interval=1"
SERVER_KEEPALIVES = "-ctcp_user_timeout=1500 -ctcp_keepalives_idle=1 -ctcp_keepalives_interval=1"
TIMEOUT_S = 15.0


def switch(state: str) -> None:
    subprocess.run(["ip", "link", "set", "lo", state], check=True)


def main(folder: Path) -> None:
    switch("up")
    server = Server(folder / "server")
    server.make(synchronous="")
    with (server.data / "postgresql.conf").open("a") as file:
        file.write("listen_addresses = '127.0.0.1'\n")
    with (server.data / "pg_hba.conf").open("a") as file:
        file.write("host all all 127.0.0.1/32 trust\n")
    server.start()
    try:
        watch(
            server,
            f"host=127.0.0.1 dbname=postgres user=servicebroker {CLIENT_KEEPALIVES} options='{SERVER_KEEPALIVES}'",
        )
    finally:
        server.close()


def watch(server: Server, url: str) -> None:
    with connect(server.url) as server_connection, connect(url, application_name="idle") as idle, connect(url) as waits:
        idle.execute("select pg_advisory_lock(1)")
        failed = threading.Event()

        def wait() -> None:
            try:
                waits.execute("select pg_sleep(60)")
            except psycopg.OperationalError:
                failed.set()

        threading.Thread(target=wait, daemon=True).start()
        time.sleep(0.5)
        switch("down")
        assert failed.wait(TIMEOUT_S), "a client still waits for the vanished server"
        deadline = time.monotonic() + TIMEOUT_S
        while (
            time.monotonic() < deadline
            and server_connection.execute("select from pg_locks where locktype = 'advisory'").fetchall()
        ):
            time.sleep(0.1)
        sessions = server_connection.execute("select from pg_stat_activity where application_name = 'idle'").fetchall()
        assert not sessions, "a vanished session still holds its lock"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
