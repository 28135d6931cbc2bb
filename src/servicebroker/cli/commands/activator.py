"""`servicebroker activator`: starts programs when queues need readers (external activation).

An event notification reports that a queue needs a reader. The activator receives these notifications from the queue
of their service. Each starts one more process of the queue's program, up to a maximum; a minimum always runs. The
programs receive from their queue, and exit when it is empty.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer

from servicebroker.api.database import Database
from servicebroker.api.instance import CONNECTION_TIMEOUT_S
from servicebroker.api.processing import process
from servicebroker.api.transaction import Transaction
from servicebroker.cli import shutdown
from servicebroker.cli.existing_instance import open_existing
from servicebroker.cli.health import HEARTBEAT_TIMEOUT_S, serve_health
from servicebroker.cli.log import log_to_standard_error
from servicebroker.cli.options import HEALTH_VARIABLE, HealthOption, PatienceOption
from servicebroker.cli.programs import POLL_S, RETRY_PAUSE_S, ProcessGroup, end
from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.model.event_instances import read_event
from servicebroker.model.event_types import QUEUE_ACTIVATION
from servicebroker.model.messages import Message
from servicebroker.model.named_files import read_argument
from servicebroker.model.toml import parse_toml
from servicebroker.operations.receive import Receive

# of one turn of the loop: its RECEIVE may wait for a free connection twice, before and after waiting for a message
TURN_TIMEOUT_S = 2 * CONNECTION_TIMEOUT_S + HEARTBEAT_TIMEOUT_S

_log = logging.getLogger("servicebroker.activator")


class Program(NamedTuple):
    """A program that reads a queue, and the least and the greatest number of its processes."""

    database: str
    schema: str
    queue: str
    command: tuple[str, ...]
    minimum: int
    maximum: int


class Config(NamedTuple):
    """A configuration: the queue that receives the notifications, and the programs to start."""

    instance: str
    database: str
    queue: str
    programs: tuple[Program, ...]


def read_config(path: Path) -> Config:
    """Read the configuration in a TOML file.

    Raises:
        InstanceError: the file cannot be read, or is not a configuration. The text names the wrong entry.
    """
    try:
        document = parse_toml(read_argument(path).decode())
    except (OSError, ValueError) as problem:  # ValueError: also for text that is not in UTF-8
        reason = getattr(problem, "strerror", None) or problem
        raise InstanceError(f"The configuration '{path}' cannot be read: {reason}.") from None
    location = f"The configuration '{path}'"
    tables = document.pop("program", None)
    settings = _read_strings(location, document, {"instance": "servicebroker-data", "database": None, "queue": None})
    if not isinstance(tables, list) or not tables:
        raise InstanceError(f"{location} has no [[program]].")
    programs = tuple(_read_program(f"{location}, program {number},", table) for number, table in enumerate(tables, 1))
    if len({program[:3] for program in programs}) < len(programs):
        raise InstanceError(f"{location} has two programs for one queue.")
    return Config(settings["instance"], settings["database"], settings["queue"], programs)


def _read_program(location: str, table: Any) -> Program:
    """Return the program of a [[program]] table. `location` begins the text of an error."""
    if not isinstance(table, dict):
        raise InstanceError(f"{location} is not a TOML table.")
    table = dict(table)
    command, low, high = table.pop("command", None), table.pop("min", 0), table.pop("max", 1)
    if not isinstance(command, list) or not command or not all(isinstance(part, str) for part in command):
        raise InstanceError(f"{location} needs `command`, a list of strings.")
    has_valid_limits = type(low) is int and type(high) is int and 0 <= low <= high and high >= 1
    if not has_valid_limits:
        raise InstanceError(f"{location} needs 0 <= min <= max, and a max of 1 or more; it has {low!r} and {high!r}.")
    settings = _read_strings(location, table, {"database": None, "schema": "dbo", "queue": None})
    return Program(settings["database"], settings["schema"], settings["queue"], tuple(command), low, high)


def _read_strings(location: str, table: Mapping[str, Any], defaults: Mapping[str, str | None]) -> dict[str, str]:
    """Return the strings of a table by key, with defaults; a key whose default is None is required."""
    if unknown := sorted(table.keys() - defaults.keys()):
        raise InstanceError(f"{location} has the unknown key '{unknown[0]}': remove it.")
    strings = {name: table.get(name, default) for name, default in defaults.items()}
    for name, value in strings.items():
        if not isinstance(value, str) or not value:
            raise InstanceError(f"{location} needs '{name}', a text.")
    return strings


def _process_group(program: Program, instance: str) -> ProcessGroup:
    name = f"{program.schema}.{program.queue}"
    environment = {
        "SERVICEBROKER_INSTANCE": instance,
        "SERVICEBROKER_DATABASE": program.database,
        "SERVICEBROKER_QUEUE": name,
        HEALTH_VARIABLE: "",  # the probes of this command use the port
    }
    log_name = f"The program of {program.database}.{name}"
    group = ProcessGroup(log_name, program.command, environment, program.minimum, program.maximum)
    group.to_start = max(1, program.minimum)  # messages that wait already send no new notification
    return group


class Activator:
    """Starts and restarts the programs of a configuration, until `stop`."""

    def __init__(self, database: Database, config: Config, shutdown_timeout_s: float) -> None:
        self._shutdown_timeout_s = shutdown_timeout_s
        self._must_kill = False
        self._database = database
        self._queue = config.queue
        self._groups = {
            (program.database.lower(), program.schema.lower(), program.queue.lower()): _process_group(
                program, config.instance
            )
            for program in config.programs
        }
        self._stop_requested = threading.Event()

    def stop(self) -> None:
        """Let `run` end the programs and return."""
        self._stop_requested.set()

    def is_stopping(self) -> bool:
        """Return whether `stop` was called."""
        return self._stop_requested.is_set()

    def terminate_now(self) -> None:
        """Kill programs that have not ended yet, after `stop`."""
        self._must_kill = True

    def run(self, record_heartbeat: Callable[[], None] = lambda: None) -> None:
        """Receive notifications and keep the programs running. Each turn calls `record_heartbeat`."""
        operation = Receive(self._queue, top=1, wait=POLL_S)
        try:
            while not self._stop_requested.is_set():
                record_heartbeat()
                self._update_groups()
                try:
                    process(self._database, operation, self._handle, stopping=self._stop_requested.is_set)
                except InstanceError as problem:
                    _log.warning("%s", problem)
                    self._stop_requested.wait(RETRY_PAUSE_S)
        finally:
            end(self._groups.values(), self._shutdown_timeout_s, lambda: self._must_kill)

    def _update_groups(self) -> None:
        for group in self._groups.values():
            group.update()

    def _handle(self, transaction: Transaction, messages: list[Message]) -> None:
        (message,) = messages
        if message.is_end_dialog or message.is_error:
            _log.warning("A conversation of event notifications has ended.")
            transaction.end_conversation(message.conversation_handle)
        elif message.message_type_name == names.EVENT_NOTIFICATION:
            self._start_reader(message)
        self._update_groups()

    def _start_reader(self, message: Message) -> None:
        """Request one more process for the queue that an event notification names."""
        try:
            event = read_event(message.message_body)
        except ValueError as problem:
            _log.error("A message of conversation %s is ignored: %s", message.conversation_handle, problem)
            return
        key = (event.database_name.lower(), event.schema_name.lower(), event.object_name.lower())
        group = self._groups.get(key)
        if event.event_type != QUEUE_ACTIVATION or group is None:
            _log.warning("No program is configured for %s on %s.%s.%s.", event.event_type, *key)
        else:
            group.request_one()


def activator(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration, in TOML.")],
    patience: PatienceOption = shutdown.SHUTDOWN_TIMEOUT_S,
    health: HealthOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object on each line.")] = False,
) -> None:
    """Start programs when event notifications report that queues need readers, until SIGTERM or Ctrl-C."""
    log_to_standard_error(as_json=as_json)
    config = read_config(file)
    with open_existing(config.instance) as instance:
        runner = Activator(instance.database(config.database), config, patience)
        shutdown.at_signal(runner.stop, runner.terminate_now, timeout_s=patience)
        with serve_health(health, runner.is_stopping, TURN_TIMEOUT_S) as probes:
            _log.info("Programs are started by the notifications in %s.", config.queue)
            probes.begin(instance.url)
            runner.run(probes.record_heartbeat)
