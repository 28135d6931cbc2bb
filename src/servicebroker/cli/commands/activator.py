"""`servicebroker activator`: starts programs when event notifications say that their queues want readers.

It reads the queue of the service that the notifications go to. Each notification starts one more program for its queue,
up to a maximum; a minimum is always kept. Programs receive from their queue and exit by themselves when it is empty.
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
from servicebroker.cli.health import BEAT_TIMEOUT_S, health_served
from servicebroker.cli.log import log_to_standard_error
from servicebroker.cli.options import HEALTH_VARIABLE, HealthOption, PatienceOption
from servicebroker.cli.programs import POLL_S, RETRY_PAUSE_S, Running, end
from servicebroker.model import names
from servicebroker.model.errors import InstanceError
from servicebroker.model.event_instances import read_event
from servicebroker.model.event_types import QUEUE_ACTIVATION
from servicebroker.model.messages import Message
from servicebroker.model.named_files import read_argument
from servicebroker.model.toml import parse_toml
from servicebroker.operations.receive import Receive

# of a turn: if no connection is free, its first RECEIVE and the one after the wait each wait for one
TURN_TIMEOUT_S = 2 * CONNECTION_TIMEOUT_S + BEAT_TIMEOUT_S

_log = logging.getLogger("servicebroker.activator")


class Program(NamedTuple):
    """A program that reads a queue, and the number of its processes."""

    database: str
    schema: str
    queue: str
    command: tuple[str, ...]
    minimum: int
    maximum: int


class Config(NamedTuple):
    """A configuration: the queue of the notifications, and the programs."""

    instance: str
    database: str
    queue: str
    programs: tuple[Program, ...]


def read_config(path: Path) -> Config:
    """Read the configuration in a TOML file.

    Raises:
        InstanceError: it cannot be read, or says something else than a configuration; the message says what.
    """
    try:
        given = parse_toml(read_argument(path).decode())
    except (OSError, ValueError) as problem:  # ValueError: also for text that is not in UTF-8
        said = getattr(problem, "strerror", None) or problem
        raise InstanceError(f"The configuration '{path}' cannot be read: {said}.") from None
    where = f"The configuration '{path}'"
    programs = given.pop("program", None)
    texts = _texts(where, given, {"instance": "servicebroker-data", "database": None, "queue": None})
    if not isinstance(programs, list) or not programs:
        raise InstanceError(f"{where} has no [[program]].")
    found = tuple(_program(f"{where}, program {number},", program) for number, program in enumerate(programs, 1))
    if len({program[:3] for program in found}) < len(found):
        raise InstanceError(f"{where} has two programs for one queue.")
    return Config(texts["instance"], texts["database"], texts["queue"], found)


def _program(where: str, given: Any) -> Program:
    if not isinstance(given, dict):
        raise InstanceError(f"{where} is no table.")
    given = dict(given)
    command, low, high = given.pop("command", None), given.pop("min", 0), given.pop("max", 1)
    if not isinstance(command, list) or not command or not all(isinstance(part, str) for part in command):
        raise InstanceError(f"{where} has no command: a list of texts.")
    numbers_are_right = type(low) is int and type(high) is int and 0 <= low <= high and high >= 1
    if not numbers_are_right:
        raise InstanceError(f"{where} needs 0 <= min <= max, and a max of 1 or more; it has {low!r} and {high!r}.")
    texts = _texts(where, given, {"database": None, "schema": "dbo", "queue": None})
    return Program(texts["database"], texts["schema"], texts["queue"], tuple(command), low, high)


def _texts(where: str, given: Mapping[str, Any], known: Mapping[str, str | None]) -> dict[str, str]:
    """Return these keys and no others, each a text; the default None stands for a required one."""
    if unknown := sorted(given.keys() - known.keys()):
        raise InstanceError(f"{where} says '{unknown[0]}', which means nothing here.")
    texts = {name: given.get(name, default) for name, default in known.items()}
    for name, value in texts.items():
        if not isinstance(value, str) or not value:
            raise InstanceError(f"{where} needs '{name}', a text.")
    return texts


def _program_of(program: Program, instance: str) -> Running:
    name = f"{program.schema}.{program.queue}"
    environment = {
        "SERVICEBROKER_INSTANCE": instance,
        "SERVICEBROKER_DATABASE": program.database,
        "SERVICEBROKER_QUEUE": name,
        HEALTH_VARIABLE: "",  # this command has that port
    }
    called = f"The program of {program.database}.{name}"
    running = Running(called, program.command, environment, program.minimum, program.maximum)
    running.wanted = max(1, program.minimum)  # no notification comes again for messages that waited before
    return running


class Activator:
    """Starts and watches the programs of a configuration, until `stop`."""

    def __init__(self, database: Database, config: Config, patience: float) -> None:
        self._patience = patience
        self._hurries = False
        self._database = database
        self._queue = config.queue
        self._programs = {
            (program.database.lower(), program.schema.lower(), program.queue.lower()): _program_of(
                program, config.instance
            )
            for program in config.programs
        }
        self._stopped = threading.Event()

    def stop(self) -> None:
        """End `run` soon."""
        self._stopped.set()

    def is_stopped(self) -> bool:
        """Return whether `run` is to end."""
        return self._stopped.is_set()

    def hurry(self) -> None:
        """Wait for no program any more."""
        self._hurries = True

    def run(self, beat: Callable[[], None] = lambda: None) -> None:
        """Read notifications and mind the programs. `beat` is called in each turn."""
        operation = Receive(self._queue, top=1, wait=POLL_S)
        try:
            while not self._stopped.is_set():
                beat()
                self._mind()
                try:
                    process(self._database, operation, self._take, stopping=self._stopped.is_set)
                except InstanceError as problem:
                    _log.warning("%s", problem)
                    self._stopped.wait(RETRY_PAUSE_S)
        finally:
            end(self._programs.values(), self._patience, lambda: self._hurries)

    def _mind(self) -> None:
        for running in self._programs.values():
            running.mind()

    def _take(self, transaction: Transaction, messages: list[Message]) -> None:
        (message,) = messages
        if message.is_end_dialog or message.is_error:
            _log.warning("A conversation of event notifications has ended.")
            transaction.end_conversation(message.conversation_handle)
        elif message.message_type_name == names.EVENT_NOTIFICATION:
            self._notify(message)
        self._mind()

    def _notify(self, message: Message) -> None:
        try:
            event = read_event(message.message_body)
        except ValueError as problem:
            _log.error("A message of conversation %s is passed over: %s", message.conversation_handle, problem)
            return
        key = (event.database_name.lower(), event.schema_name.lower(), event.object_name.lower())
        running = self._programs.get(key)
        if event.event_type != QUEUE_ACTIVATION or running is None:
            _log.warning("No program is configured for %s on %s.%s.%s.", event.event_type, *key)
        else:
            running.notify()


def activator(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration, in TOML.")],
    patience: PatienceOption = shutdown.PATIENCE_S,
    health: HealthOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object on each line.")] = False,
) -> None:
    """Start programs when event notifications ask for readers of their queues, until SIGTERM or Ctrl-C."""
    log_to_standard_error(as_json=as_json)
    config = read_config(file)
    with open_existing(config.instance) as instance:
        found = Activator(instance.database(config.database), config, patience)
        shutdown.at_signal(found.stop, found.hurry, patience=patience)
        with health_served(health, found.is_stopped, TURN_TIMEOUT_S) as program:
            _log.info("Programs are started as the notifications in %s say.", config.queue)
            program.begin(instance.url)
            found.run(program.beat)
