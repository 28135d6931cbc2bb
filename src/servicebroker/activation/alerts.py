"""Alerts: a command or a webhook of the administrator's, for each queue that was switched off by itself.

The event is kept in the database until the hook has taken it, so that it also goes out for a queue that another process
has switched off, or that was switched off while nobody served the instance.
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
from servicebroker.engine.activation.poison_detection import Alarm, alarms, alerted
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.events import NAMES, QUEUE_DISABLED_CLASS
from servicebroker.model.reporting import report
from servicebroker.model.wording import shown, told
from servicebroker.store.running import run

LOOK = 0.5  # seconds between looks
PATIENCE = 30.0  # seconds that a hook may take
RETRY = 10.0  # seconds until a hook that has failed is tried again

_log = logging.getLogger("servicebroker.activation")


class Alert(NamedTuple):
    """What is told: a command line, whose standard input is the event as JSON, and a URL that it is posted to."""

    command: str | None = None
    webhook: str | None = None


@contextlib.contextmanager
def alerts(instance: Instance, alert: Alert | None) -> Iterator[None]:
    """Tell of every queue that is switched off by itself, as long as the block lasts.

    Raises:
        BrokerError: 402 a webhook that is no HTTP address, a command that cannot be parsed.
    """
    if alert is None or alert == Alert():
        yield
        return
    _check(alert)
    over = threading.Event()
    thread = threading.Thread(target=_watch, args=(instance, alert, over), name="servicebroker alerts", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(LOOK)


def _check(alert: Alert) -> None:
    if alert.webhook is not None and not _is_address(alert.webhook):
        raise BrokerError(402, "the webhook", shown(alert.webhook), "an http:// or https:// address")
    if alert.command is not None:
        try:
            parts = shlex.split(alert.command)
        except ValueError:
            parts = []
        if not parts:
            raise BrokerError(402, "the command", shown(alert.command), "a command line")


def _is_address(webhook: str) -> bool:
    """Whether a request can be sent there: with a host, in ASCII, and without blanks."""
    try:
        parts = urllib.parse.urlsplit(webhook)
        is_complete = parts.scheme in ("http", "https") and bool(parts.hostname) and parts.port != 0
    except ValueError:  # of a port, or brackets
        return False
    return is_complete and all("!" <= character <= "~" for character in webhook)


def _watch(instance: Instance, alert: Alert, over: threading.Event) -> None:
    pause = 0.0
    while not over.wait(pause):
        pause = LOOK
        try:
            with instance.connection() as connection:
                found = run(connection, alarms())
            for alarm in found:
                tell(alert, alarm)
                with instance.connection() as connection:
                    run(connection, alerted(alarm))
        except (psycopg.Error, InstanceError) as problem:
            _log.debug("alerts: %s", problem)
        except Exception as problem:  # also what the other side says, which may be no HTTP
            said = "The alert hook failed, and is tried again in %g seconds: %s"
            report(_log, logging.ERROR, said, RETRY, told(problem))
            pause = RETRY


def tell(alert: Alert, alarm: Alarm) -> None:
    """Hand the event to the hook.

    Raises:
        OSError, http.client.HTTPException: the webhook cannot be reached, refuses, or its answer is no HTTP.
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
            shlex.split(alert.command), input=text, text=True, check=True, timeout=PATIENCE, stdout=subprocess.DEVNULL
        )
    if alert.webhook is not None:
        request = urllib.request.Request(
            alert.webhook, text.encode(), {"Content-Type": "application/json"}, method="POST"
        )
        with urllib.request.urlopen(request, timeout=PATIENCE):
            pass
