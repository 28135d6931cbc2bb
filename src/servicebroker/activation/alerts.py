"""Alerts: call a command or webhook for each queue that is switched off automatically.

The event stays in the database until the command and the webhook have accepted it. So alerts are also sent for a queue
that another process has switched off, or that was switched off while no process served the instance.
"""

from __future__ import annotations

import contextlib
import json
import logging
import shlex
import subprocess
import threading
import urllib.parse
import urllib.request
from collections.abc import Iterator
from typing import NamedTuple

import psycopg

from servicebroker.api.instance import Instance
from servicebroker.engine.activation.poison_detection import PendingAlert, find_pending_alerts, mark_alerted
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.events import NAMES, QUEUE_DISABLED_CLASS
from servicebroker.model.reporting import report
from servicebroker.model.wording import describe_exception, short_repr
from servicebroker.store.running import run

POLL_INTERVAL_S = 0.5
HOOK_TIMEOUT_S = 30.0  # the time for the command, and for the webhook
RETRY_DELAY_S = 10.0  # the pause after a failed command or webhook

_log = logging.getLogger("servicebroker.activation")


class Alert(NamedTuple):
    """The hooks to call: a command that gets the event as JSON on standard input, and a URL that gets it by POST."""

    command: str | None = None
    webhook: str | None = None


@contextlib.contextmanager
def alerts(instance: Instance, alert: Alert | None) -> Iterator[None]:
    """Send an alert for every queue that is switched off automatically, while the block runs.

    Raises:
        BrokerError: 402 a webhook that is not an HTTP address, or a command that cannot be parsed.
    """
    if alert is None or alert == Alert():
        yield
        return
    _check(alert)
    stopping = threading.Event()
    thread = threading.Thread(target=_watch, args=(instance, alert, stopping), name="servicebroker alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        stopping.set()
        thread.join(POLL_INTERVAL_S)


def _check(alert: Alert) -> None:
    if alert.webhook is not None and not _is_address(alert.webhook):
        raise BrokerError(402, "the webhook", short_repr(alert.webhook), "an http:// or https:// address")
    if alert.command is not None:
        try:
            parts = shlex.split(alert.command)
        except ValueError:
            parts = []
        if not parts:
            raise BrokerError(402, "the command", short_repr(alert.command), "a command line")


def _is_address(webhook: str) -> bool:
    """True if a request can be sent to the URL: it has a host, and only printable ASCII characters."""
    try:
        parts = urllib.parse.urlsplit(webhook)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # an invalid port, or unbalanced brackets
        return False
    return is_complete and all("!" <= character <= "~" for character in webhook)


def _watch(instance: Instance, alert: Alert, stopping: threading.Event) -> None:
    delay_s = 0.0
    while not stopping.wait(delay_s):
        delay_s = POLL_INTERVAL_S
        try:
            with instance.connection() as connection:
                pending_alarms = run(connection, find_pending_alerts())
            for alarm in pending_alarms:
                send_alert(alert, alarm)
                with instance.connection() as connection:
                    run(connection, mark_alerted(alarm))
        except (psycopg.Error, InstanceError) as problem:
            _log.debug("alerts: %s", problem)
        except Exception as problem:  # for example an answer that is not HTTP
            text = "The alert hook failed, and is tried again in %g seconds: %s"
            report(_log, logging.ERROR, text, RETRY_DELAY_S, describe_exception(problem))
            delay_s = RETRY_DELAY_S


def send_alert(alert: Alert, alarm: PendingAlert) -> None:
    """Send the event to the hooks.

    Raises:
        OSError, http.client.HTTPException: the webhook cannot be reached, refuses, or its answer is not HTTP.
        subprocess.SubprocessError: the command fails, or takes too long.
    """
    text = json.dumps(
        {
            "event": NAMES[QUEUE_DISABLED_CLASS],
            "number": QUEUE_DISABLED_CLASS,
            "time": alarm.at.isoformat(),
            "database": alarm.database,
            "schema": alarm.schema,
            "queue": alarm.queue,
            "queue_id": alarm.queue_id,
        }
    )
    if alert.command is not None:
        subprocess.run(
            shlex.split(alert.command),
            input=text,
            text=True,
            check=True,
            timeout=HOOK_TIMEOUT_S,
            stdout=subprocess.DEVNULL,
        )
    if alert.webhook is not None:
        request = urllib.request.Request(
            alert.webhook, text.encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=HOOK_TIMEOUT_S):
            pass
