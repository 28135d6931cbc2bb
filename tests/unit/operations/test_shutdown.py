"""Shutdown at a signal, in a program of its own."""

from __future__ import annotations

import subprocess
import sys

PROGRAM = """
import os, signal, threading
from servicebroker.cli import shutdown

class Signaled:
    def __del__(self):  # Python discards an exception of a finalizer
        os.kill(os.getpid(), signal.SIGTERM)

shutdown.start_watchdog()
Signaled()
stop_requested = threading.Event()
shutdown.at_signal(stop_requested.set, shutdown.kill_all)
print(stop_requested.is_set())
"""


def test_a_signal_whose_interrupt_was_lost_stops_the_command_all_the_same() -> None:
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, timeout=60, check=True)
    assert "Exception ignored" in result.stderr
    assert result.stdout == "True\n"
