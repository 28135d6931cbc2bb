"""The program `servicebroker`: the table of its commands, its help and its errors.

Exit code 0 is success, 1 an error, printed as one sentence, and 2 wrong usage. The other exit codes are in
docs/reference/cli.md.
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
from servicebroker.model.errors import BrokerError, InstanceError, ServiceBrokerError
from servicebroker.overriding import override


class CommandSource(NamedTuple):
    """The function or the Typer application of a command, in a module that is imported when the command runs.

    `help` is the first sentence of the command's help.
    """

    module: str
    attribute: str
    help: str


COMMANDS = {
    "init": CommandSource("instance", "init", "Create an instance, or upgrade the schema of an existing one."),
    "serve": CommandSource(
        "serve",
        "serve",
        "Run the daemon: start readers of queues, and exchange messages with other instances, until SIGTERM or Ctrl-C.",
    ),
    "worker": CommandSource(
        "worker",
        "worker",
        "Run the workers of a module until SIGTERM or Ctrl-C; messages in progress are finished.",
    ),
    "activator": CommandSource(
        "activator",
        "activator",
        "Start programs when event notifications report that queues need readers, until SIGTERM or Ctrl-C.",
    ),
    "status": CommandSource(
        "status",
        "status",
        "Show every queue: whether it is ON, its messages and dead letters, and its conversations by state.",
    ),
    "check": CommandSource(
        "instance",
        "check",
        "Check the consistency of the stored data; exit code 1 if there are problems or a check has failed.",
    ),
    "watch": CommandSource(
        "watch",
        "watch",
        "Watch a queue (depth, age, rates, failures) or a conversation (states, and why it waits) until Ctrl-C.",
    ),
    "doctor": CommandSource(
        "doctor",
        "doctor",
        "Diagnose an instance: print problems, each with what to do. Exit code 1 if there are problems.",
    ),
    "dashboard": CommandSource(
        "dashboard",
        "dashboard",
        "Serve the dashboard, pages that show and operate instances, until SIGTERM or Ctrl-C.",
    ),
    "people": CommandSource("people", "app", "People who may sign in to the dashboard by name, and their roles."),
    "audit": CommandSource(
        "audit", "audit", "Show the audit log: definitions and actions of operators, the latest first."
    ),
    "trail": CommandSource("trail", "app", "Trails: event logs of conversations."),
    "sql": CommandSource(
        "sql",
        "sql",
        "Run T-SQL: a script, the text of an option, or typed batches. Exit code 1 after an error.",
    ),
    "demo": CommandSource(
        "demo",
        "demo",
        "Send every line of a file as a message, and write them to a Delta table through Spark, exactly once.",
    ),
    "load": CommandSource(
        "load",
        "load",
        "Measure messages per second and latency, in a temporary broker database of the instance.",
    ),
    "certificate": CommandSource(
        "certificate", "app", "Certificates: the identity of this instance, and the peers that may connect."
    ),
    "domain": CommandSource(
        "domain",
        "app",
        "Domains: instances that trust each other by AUTHENTICATION = WINDOWS. Unless it joins another one, an "
        "instance is in the domain of the operating-system user that runs it.",
    ),
    "tsql": CommandSource("tsql", "app", "T-SQL scripts: check which statements run here."),
    "route": CommandSource("route", "app", "Routes: the addresses of services, and why a message takes one."),
    "send": CommandSource("messages", "send", "Send one message on a new or an existing conversation."),
    "receive": CommandSource(
        "messages",
        "receive",
        "Receive messages of one conversation group, print them, and remove them from the queue.",
    ),
    "schedule": CommandSource("delayed", "schedules", "Schedules of workers: list and drop them."),
    "delayed": CommandSource("delayed", "app", "Delayed messages: list and cancel them."),
    "peek": CommandSource(
        "messages", "peek", "Show messages of a queue without receiving them, even while the queue is off."
    ),
    "end": CommandSource(
        "messages", "end", "End a conversation, and delete its messages that still wait in this side's queue."
    ),
    "queue": CommandSource("queue", "app", "Queues: list, create, alter, drop, purge."),
    "service": CommandSource("service", "app", "Services: their queues and contracts."),
    "database": CommandSource("database", "app", "Broker databases: list, create, alter, drop."),
    "endpoint": CommandSource(
        "endpoint",
        "app",
        "The endpoint: the address where `servicebroker serve` accepts connections of other instances.",
    ),
    "define": CommandSource("define", "app", "A whole application as one file: types, contracts, queues, rights."),
    "dead-letters": CommandSource(
        "dead_letters",
        "app",
        "Dead letters, messages that failed too often: list, show, replay (requeue), export, discard.",
    ),
    "poison": CommandSource(
        "poison", "app", "Poison messages: list failing messages, inspect them, end their conversation, retry."
    ),
    "rights": CommandSource(
        "rights", "app", "Rights of restricted PostgreSQL roles, which may use Service Broker and nothing else."
    ),
    "pipeline": CommandSource("pipeline", "app", "Pipelines: write queues to tables of a warehouse, through Spark."),
    "instance": CommandSource("instance", "app", "Instances: dump, restore, adopt a copy."),
}


_ADVICE = {  # the command to run, by error number, where the error itself names a Python method
    911: "List the databases by: servicebroker database list. Create one by: servicebroker database create NAME.",
}
EXTRAS = {  # the extra of `pip install` that has a top-level module
    **dict.fromkeys(("pyspark", "py4j", "pyarrow", "adbc_driver_postgresql", "deltalake", "fastavro"), "spark"),
    **dict.fromkeys(("google", "jsonschema_rs", "pandas"), "spark"),
    **dict.fromkeys(("jinja2", "starlette", "uvicorn"), "dashboard"),
    **dict.fromkeys(("procrastinate", "pgqueuer", "pika"), "bench"),
    **dict.fromkeys(("pyiceberg", "sqlalchemy"), "iceberg"),
    "openlineage": "lineage",
    "opentelemetry": "otel",
}


GROUPS = {  # groups of commands, by their headings in the help
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
    """The commands of `COMMANDS`. The help needs only the table; the command that runs is imported."""

    def __init__(self, **settings: Any) -> None:
        super().__init__(**settings)
        for group, names in GROUPS.items():
            for name in names:
                self.add_command(TyperCommand(name, help=COMMANDS[name].help, rich_help_panel=group))

    @override
    def get_params(self, ctx: Any) -> list[Any]:
        """Return the options of `servicebroker` itself. The help shows no value after a flag."""
        parameters = super().get_params(ctx)
        _hide_values_of_flags(parameters)
        return parameters

    @override
    def list_commands(self, ctx: Any) -> list[str]:
        """Return the commands in the order of the groups, not of the alphabet."""
        return list(self.commands)

    @override
    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Import and return the command that the arguments name, with its name and its own arguments."""
        name, listed, rest = super().resolve_command(ctx, args)
        return name, listed and load(listed.name or ""), rest


def load(name: str) -> Any:
    """Import and return the command with this name."""
    source = COMMANDS[name]
    function_or_app = getattr(import_module(f"servicebroker.cli.commands.{source.module}"), source.attribute)
    app = function_or_app if isinstance(function_or_app, typer.Typer) else single_command(function_or_app, name)
    command = typer.main.get_command(app)
    _finish_help(name, command)
    return command


def single_command(command: Callable[..., None], name: str | None = None) -> typer.Typer:
    """Return an application with this function as its only command."""
    program = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    program.command(name)(command)
    return program


def _finish_help(name: str, command: Any) -> None:
    """Add the example to the help of a command and of its subcommands, and hide the values of flags."""
    parameters = command.get_params(typer.Context(command))
    _hide_values_of_flags(parameters)
    command.epilog = f"Example: servicebroker {_example(name, parameters)}" if name in EXAMPLES else None
    for subcommand_name, subcommand in getattr(command, "commands", {}).items():
        _finish_help(f"{name} {subcommand_name}", subcommand)


def _example(name: str, parameters: list[Any]) -> str:
    """Return the example of a command, with `--database` if it needs one. The page sets a variable instead."""
    example = EXAMPLES[name]
    has_database = {"-d", "--database"}.intersection(example.split())
    needs_database = any(parameter.name == "database" and parameter.required for parameter in parameters)
    return f"{example} --database Shop" if needs_database and not has_database else example


def _hide_values_of_flags(parameters: list[Any]) -> None:
    """Show no value after a flag in the help, since flags take none."""
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
    """Run `servicebroker`. This is the entry point of the package."""
    _run(app)


def run_alone(command: Callable[..., None]) -> NoReturn:
    """Run one function as a program, with the signal handling and the errors of `servicebroker`."""
    _run(single_command(command))


def _run(program: typer.Typer) -> NoReturn:
    clean_tracebacks()
    log_own_warnings()
    shutdown.start_watchdog()
    try:
        with errors_as_sentences(), entered_by("command"):
            program()
    finally:
        shutdown.end_children_and_threads()
    sys.exit(0)


def log_own_warnings() -> None:
    """Print warnings of this package, and of no other: Spark's driver logs a traceback at Ctrl-C."""
    handler = log_handler()
    handler.setFormatter(Lines("servicebroker: {text}"))
    handler.addFilter(logging.Filter("servicebroker"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


@contextmanager
def errors_as_sentences() -> Iterator[None]:
    """Print an expected error of the block as one sentence, without a traceback, and end the program.

    The exit code is the error's `exit_code`, else 1.
    """
    try:
        yield
    except Exception as problem:
        from psycopg import Error  # imported only after an error, since the driver takes long to import

        if isinstance(problem, ModuleNotFoundError) and (extra := EXTRAS.get((problem.name or "").partition(".")[0])):
            problem = InstanceError(f"{problem.name} is not installed: pip install 'servicebroker[{extra}]'.")
        if not isinstance(problem, ServiceBrokerError | OSError | Error):
            raise
        say(f"servicebroker: {_sentence(problem)}", error=True)
        sys.exit(getattr(problem, "exit_code", 1))


def _sentence(problem: Exception) -> str:
    """Return an error as one sentence. For an OSError, the files and the system's text, without its number."""
    if isinstance(problem, BrokerError) and problem.hint and (advice := _ADVICE.get(problem.number)):
        return str(problem).replace(problem.hint, advice)
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
