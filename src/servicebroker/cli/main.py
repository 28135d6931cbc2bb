"""`servicebroker` and its commands. Exit code 0, 1 for an error said in one sentence, 2 for wrong usage.

All of them: docs/reference/cli.md, "Exit codes".
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from typing import Annotated, Any, NamedTuple, NoReturn

import typer
from typer.core import TyperCommand, TyperGroup

from servicebroker.cli import shutdown
from servicebroker.cli.examples import EXAMPLES
from servicebroker.cli.log import Lines
from servicebroker.cli.output import clean_tracebacks, log_handler, say
from servicebroker.model.client_kind import entered_by
from servicebroker.model.errors import InstanceError, ServiceBrokerError


class Place(NamedTuple):
    """The place of a command, whose module is loaded when it runs. `help` is the first sentence of its help."""

    module: str
    attribute: str
    help: str


COMMANDS = {
    "init": Place("instance", "init", "Make an instance, or bring the schema of an existing one up to date."),
    "serve": Place(
        "serve",
        "serve",
        "Run the daemon: start readers of queues, and exchange messages with other instances, until SIGTERM or Ctrl-C.",
    ),
    "worker": Place(
        "worker",
        "worker",
        "Run the workers of a module until SIGTERM or Ctrl-C; messages in progress are finished.",
    ),
    "activator": Place(
        "activator",
        "activator",
        "Start programs when event notifications ask for readers of their queues, until SIGTERM or Ctrl-C.",
    ),
    "status": Place(
        "status",
        "status",
        "Show every queue: its services, how many messages wait, since when, and its conversations by state.",
    ),
    "check": Place(
        "instance",
        "check",
        "Check the consistency of everything stored; exit code 1 if something is wrong or could not be checked.",
    ),
    "watch": Place(
        "watch",
        "watch",
        "Watch a queue (depth, age, rates, failures) or a conversation (states, and why it waits) until Ctrl-C.",
    ),
    "doctor": Place(
        "doctor", "doctor", "Diagnose an instance: say what is wrong and what to do; exit code 1 if something is found."
    ),
    "dashboard": Place(
        "dashboard",
        "dashboard",
        "Serve the dashboard, pages that show and operate instances, until SIGTERM or Ctrl-C.",
    ),
    "people": Place("people", "app", "People who may sign in to the dashboard by name, and their roles."),
    "audit": Place("audit", "audit", "Show the audit log: definitions and actions of operators, the latest first."),
    "trail": Place("trail", "app", "Trails: a log of what happens to conversations."),
    "sql": Place(
        "sql",
        "sql",
        "Run T-SQL: a script, a text, or typed batches. Exit code 1 after an error.",
    ),
    "demo": Place(
        "demo",
        "demo",
        "Send every line of a file as a message and land them in a Delta table through Spark, exactly once.",
    ),
    "load": Place(
        "load",
        "load",
        "Send and receive for some seconds in a database of its own, and print messages per second and latency.",
    ),
    "certificate": Place(
        "certificate", "app", "Certificates: the identity of this instance, and the peers that it lets in."
    ),
    "domain": Place(
        "domain",
        "app",
        "Domains: instances that trust each other by AUTHENTICATION = WINDOWS. Without one made or joined, an "
        "instance is in the domain of the operating-system user that runs it.",
    ),
    "tsql": Place("tsql", "app", "T-SQL scripts: check which statements run here."),
    "route": Place("route", "app", "Routes: the addresses of services, and why a message takes one."),
    "send": Place("messages", "send", "Send one message, on a new dialog or on a conversation, and print its handle."),
    "receive": Place(
        "messages",
        "receive",
        "Receive messages of one conversation group and print them; they leave the queue.",
    ),
    "schedule": Place("delayed", "schedules", "Schedules of workers: list and drop them."),
    "delayed": Place("delayed", "app", "Delayed messages: list and cancel them."),
    "peek": Place("messages", "peek", "Show messages of a queue without taking them, also while it is off."),
    "end": Place("messages", "end", "End a conversation; messages of it that were not received here are dropped."),
    "queue": Place("queue", "app", "Queues: list, create, alter, drop, purge."),
    "service": Place("service", "app", "Services: their queues and contracts."),
    "database": Place("database", "app", "Broker databases: list, create, alter, drop."),
    "endpoint": Place(
        "endpoint",
        "app",
        "The endpoint: the address where `servicebroker serve` accepts connections of other instances.",
    ),
    "define": Place("define", "app", "A whole application as one file: types, contracts, queues, rights."),
    "dead-letters": Place(
        "dead_letters",
        "app",
        "Dead letters, messages that failed too often: list, look, replay (requeue), export, discard.",
    ),
    "poison": Place(
        "poison", "app", "Poison messages: find those that fail, look at them, end their conversation, try again."
    ),
    "rights": Place("rights", "app", "Rights of PostgreSQL roles that may use Service Broker and nothing else."),
    "pipeline": Place("pipeline", "app", "Queues into tables of a warehouse, through Spark."),
    "instance": Place("instance", "app", "An instance as a whole."),
}


EXTRAS = {  # modules that a command may miss, and what brings them
    **dict.fromkeys(("pyspark", "py4j", "pyarrow", "adbc_driver_postgresql", "deltalake", "fastavro"), "spark"),
    **dict.fromkeys(("google", "jsonschema_rs", "pandas"), "spark"),
    **dict.fromkeys(("jinja2", "starlette", "uvicorn"), "dashboard"),
    **dict.fromkeys(("procrastinate", "pgqueuer", "pika"), "bench"),
    **dict.fromkeys(("pyiceberg", "sqlalchemy"), "iceberg"),
    "openlineage": "lineage",
    "opentelemetry": "otel",
}


GROUPS = {  # as the help shows them
    "Begin": ("init", "define", "demo"),
    "Messages": ("send", "receive", "peek", "end", "delayed", "schedule", "dead-letters", "poison"),
    "Programs": ("worker", "serve", "activator", "pipeline", "dashboard"),
    "See what happens": ("status", "watch", "doctor", "check", "audit", "trail"),
    "Objects": ("database", "queue", "service", "route", "endpoint", "instance"),
    "Access": ("rights", "people", "certificate", "domain"),
    "T-SQL": ("sql", "tsql"),
    "Measure": ("load",),
}


class Commands(TyperGroup):
    """The commands of the table: the help shows what stands there, and the one that runs is loaded."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for group, names in GROUPS.items():
            for name in names:
                self.add_command(TyperCommand(name, help=COMMANDS[name].help, rich_help_panel=group))

    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of `servicebroker` itself, flags without a value."""
        found = super().get_params(ctx)
        _hide_values_of_flags(found)
        return found

    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the groups, not of the alphabet."""
        return list(self.commands)

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Load and return the command that is called."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and load(listed.name or ""), rest


def load(name: str) -> Any:
    """Load the command of that name."""
    place = COMMANDS[name]
    found = getattr(import_module(f"servicebroker.cli.commands.{place.module}"), place.attribute)
    command = typer.main.get_command(found if isinstance(found, typer.Typer) else alone(found, name))
    _finish(name, command)
    return command


def alone(command: Callable[..., None], name: str | None = None) -> typer.Typer:
    """Return a program that has this function as its only command."""
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command(name)(command)
    return program


def _finish(words: str, command: Any) -> None:
    """Add an example to the end of a command's help."""
    _hide_values_of_flags(command.get_params(typer.Context(command)))
    command.epilog = f"Example: servicebroker {EXAMPLES[words]}" if words in EXAMPLES else None
    for word, one in getattr(command, "commands", {}).items():
        _finish(f"{words} {word}", one)


def _hide_values_of_flags(parameters: list[Any]) -> None:
    """Show no value of flags in the help, since they take none."""
    for parameter in parameters:
        if getattr(parameter, "is_flag", False):
            parameter.metavar = ""


app = typer.Typer(
    cls=Commands,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=True,
    help="Service Broker for Python and PostgreSQL: conversations, exactly once, in order.",
)


def main() -> NoReturn:
    """The entry point of the command."""
    _run(app)


def run_alone(command: Callable[..., None]) -> NoReturn:
    """Run a function as a program of its own, with the signals and the errors of `servicebroker`."""
    _run(alone(command))


def _run(program: typer.Typer) -> NoReturn:
    clean_tracebacks()
    warnings_of_our_own()
    shutdown.guard()
    try:
        with said_in_one_sentence(), entered_by("command"):
            program()
    finally:
        shutdown.leave_nothing()
    sys.exit(0)


def warnings_of_our_own() -> None:
    """Show warnings of this package only: Spark's driver logs a traceback at Ctrl-C."""
    handler = log_handler()
    handler.setFormatter(Lines("servicebroker: {text}"))
    handler.addFilter(logging.Filter("servicebroker"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


@contextmanager
def said_in_one_sentence() -> Iterator[None]:
    """Print an expected error as one sentence, without a traceback, and end the program.

    The exit code is 1, or the one that the error names.
    """
    try:
        yield
    except Exception as problem:
        from psycopg import Error  # when something has gone wrong, not before: the driver takes its time to load

        if isinstance(problem, ModuleNotFoundError) and (extra := EXTRAS.get((problem.name or "").partition(".")[0])):
            problem = InstanceError(f"{problem.name} is not installed: pip install 'servicebroker[{extra}]'.")
        if not isinstance(problem, ServiceBrokerError | OSError | Error):
            raise
        say(f"servicebroker: {_sentence(problem)}", error=True)
        sys.exit(getattr(problem, "exit_code", 1))


def _sentence(problem: Exception) -> str:
    """Return an error as a sentence; for a file its name and the system's words, without an error number."""
    if isinstance(problem, OSError) and problem.strerror:
        files = [repr(str(name)) for name in (problem.filename, problem.filename2) if name is not None]
        return f"{', '.join(files)}: {problem.strerror}." if files else f"{problem.strerror}."
    return " ".join(str(problem).split()) or type(problem).__name__


@app.callback(invoke_without_command=True)
def options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Service Broker for Python and PostgreSQL: conversations, exactly once, in order."""
    if show_version:
        from importlib.metadata import version

        say(f"servicebroker {version('servicebroker')}")
        raise typer.Exit


if __name__ == "__main__":
    main()
