"""The effects of a network without packets: `unshare --net python vanished_network.py FOLDER`.

A server listens in a network of its own, which is switched off: neither side is told.
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

SOON = "tcp_user_timeout=1500 keepalives_idle=1 keepalives_interval=1"
SOON_AT_THE_SERVER = "-ctcp_user_timeout=1500 -ctcp_keepalives_idle=1 -ctcp_keepalives_interval=1"
LATE_S = 15.0  # seconds


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
        watch(server, f"host=127.0.0.1 dbname=postgres user=servicebroker {SOON} options='{SOON_AT_THE_SERVER}'")
    finally:
        server.close()


def watch(server: Server, url: str) -> None:
    with connect(server.url) as here, connect(url, application_name="idle") as idle, connect(url) as waits:
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
        assert failed.wait(LATE_S), "who waits for the server waits"
        late = time.monotonic() + LATE_S
        while time.monotonic() < late and here.execute("select from pg_locks where locktype = 'advisory'").fetchall():
            time.sleep(0.1)
        sessions = here.execute("select from pg_stat_activity where application_name = 'idle'").fetchall()
        assert not sessions, "what a session that is gone has locked is locked"


if __name__ == "__main__":
    main(Path(sys.argv[1]))
