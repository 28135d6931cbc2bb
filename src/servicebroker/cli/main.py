"""`servicebroker` and its commands. Exit code 0, 1 for an error said in one sentence, 2 for wrong usage."""

from __future__ import annotations

import json
import logging
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict
from datetime import datetime
from importlib.metadata import version
from pathlib import Path
from typing import Annotated, NoReturn

import psycopg
import typer
from rich import box
from rich.console import Console
from rich.table import Table

from servicebroker.api.open import open_instance
from servicebroker.cli import certificate, domain, pipeline, poison, rights, route, tsql
from servicebroker.cli import instance as whole_instance
from servicebroker.cli.doctor import doctor
from servicebroker.cli.existing import must_exist
from servicebroker.cli.options import DEFAULT_INSTANCE, InstanceOption, JsonOption, KeysOption
from servicebroker.engine.diagnosis.queue_counts import COUNT_LIMIT, connections, is_standby, refusals
from servicebroker.engine.security.certificate_ages import certificates_in_use
from servicebroker.model.errors import ServiceBrokerError
from servicebroker.model.wording import counted
from servicebroker.store.migrations import mend as make_anew
from servicebroker.store.running import run

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
    help="Service Broker for Python and PostgreSQL: conversations, exactly once, in order.",
)

app.add_typer(certificate.app, name="certificate")
app.add_typer(domain.app, name="domain")
app.add_typer(tsql.app, name="tsql")
app.add_typer(route.app, name="route")
app.add_typer(poison.app, name="poison")
app.add_typer(rights.app, name="rights")
app.add_typer(pipeline.app, name="pipeline")
app.command("doctor")(doctor)
app.add_typer(whole_instance.app, name="instance")


def main() -> NoReturn:
    """The entry point of the command."""
    warnings_of_our_own()
    with said_in_one_sentence():
        app()
    sys.exit(0)


def warnings_of_our_own() -> None:
    """Show what we warn of; Spark's driver logs a traceback at Ctrl-C, which is none of our user's business."""
    handler = logging.StreamHandler()
    handler.setFormatter(logging.Formatter("servicebroker: %(message)s"))
    handler.addFilter(logging.Filter("servicebroker"))
    logging.basicConfig(handlers=[handler], level=logging.WARNING)


@contextmanager
def said_in_one_sentence() -> Iterator[None]:
    """What is expected to go wrong ends the program with one sentence and exit code 1, never a traceback."""
    try:
        yield
    except (ServiceBrokerError, OSError, psycopg.Error) as problem:
        sentence = " ".join(str(problem).split()) or type(problem).__name__
        print(f"servicebroker: {sentence}", file=sys.stderr)  # noqa: T201 # the terminal is our user's
        sys.exit(1)


@app.callback(invoke_without_command=True)
def options(
    show_version: Annotated[bool, typer.Option("--version", help="Print the version and exit.")] = False,
) -> None:
    """Service Broker for Python and PostgreSQL: conversations, exactly once, in order."""
    if show_version:
        typer.echo(f"servicebroker {version('servicebroker')}")
        raise typer.Exit


@app.command()
def init(
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: Annotated[str | None, typer.Option(help="A broker database to create in it, if missing.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Make an instance, or bring the schema of an existing one up to date."""
    with open_instance(instance) as opened:
        if database is not None:
            opened.database(database, create=True)
        if as_json:
            typer.echo(json.dumps({"instance": instance, "url": opened.url, "database": database}))
            return
        typer.echo(f"The instance is ready: {instance}")
        typer.echo(f"Its PostgreSQL: {opened.url}")
        if database is not None:
            typer.echo(f"Broker database: {database}")


@app.command()
def serve(
    instance: InstanceOption = DEFAULT_INSTANCE,
    listen: Annotated[
        str | None,
        typer.Option(
            metavar="HOST:PORT", help="Listen there, whatever the stored endpoint says; :4022 for every address."
        ),
    ] = None,
    encryption: Annotated[
        str, typer.Option(metavar="MODE", help="With --listen: REQUIRED, SUPPORTED or DISABLED.")
    ] = "REQUIRED",
    authentication: Annotated[
        str, typer.Option(metavar="METHODS", help="With --listen: CERTIFICATE, WINDOWS, or both in their order.")
    ] = "CERTIFICATE",
    keys: KeysOption = None,
    procedures: Annotated[
        list[str] | None,
        typer.Option(metavar="MODULE", help="A module or .py file with activation procedures; may be repeated."),
    ] = None,
    activation_interval: Annotated[
        float, typer.Option(metavar="SECONDS", help="Between two readers that are started for one queue under load.")
    ] = 5.0,
    alert_command: Annotated[
        str | None,
        typer.Option(
            metavar="COMMAND", help="Run for each queue that is switched off by itself, the event as JSON on its input."
        ),
    ] = None,
    alert_webhook: Annotated[str | None, typer.Option(metavar="URL", help="Gets a POST with the same JSON.")] = None,
    metrics: Annotated[
        str | None, typer.Option(metavar="HOST:PORT", help="Answer http://HOST:PORT/metrics, for Prometheus.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object on each line.")] = False,
) -> None:
    """Start the readers of queues, and carry messages to other instances and theirs in, until SIGTERM or Ctrl-C."""
    from servicebroker.activation.alerts import Alert
    from servicebroker.cli.serve import serve as run_daemon  # the daemon takes its time to import

    run_daemon(
        instance,
        listen,
        encryption,
        authentication,
        keys,
        procedures=procedures or (),
        interval=activation_interval,
        alert=Alert(alert_command, alert_webhook),
        metrics=metrics,
        as_json=as_json,
    )


@app.command()
def activator(
    config: Annotated[Path, typer.Argument(metavar="FILE", help="The configuration, in TOML.")],
    as_json: Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object on each line.")] = False,
) -> None:
    """Start programs when event notifications say that their queues want readers, until SIGTERM or Ctrl-C."""
    from servicebroker.cli.activator import activator as run_activator
    from servicebroker.cli.log import log_to_standard_error

    log_to_standard_error(as_json=as_json)
    run_activator(config)


@app.command()
def status(instance: InstanceOption = DEFAULT_INSTANCE, as_json: JsonOption = False) -> None:
    """Show every queue: its services, how many messages wait, since when, and its conversations by state."""
    must_exist(instance)
    with open_instance(instance) as opened:
        queues, waiting = opened.status()
        with opened.connection() as connection:
            now = opened.clock()
            links, refused = run(connection, connections()), run(connection, refusals())
            mirrors = run(connection, is_standby())
            expiring = [one for one in run(connection, certificates_in_use(now)) if one.is_expiring(now)]
    if as_json:
        told = {
            "is_standby": mirrors,
            "queues": [queue._asdict() for queue in queues],
            "transmission_queue": waiting._asdict(),
            "connections": [link._asdict() for link in links],
            "refused_connections": [one._asdict() for one in refused],
            "expiring_certificates": [one._asdict() for one in expiring],
        }
        typer.echo(json.dumps(told, default=str))
        return
    table = Table(title=f"Queues of {instance}", title_justify="left", box=box.SIMPLE_HEAD, pad_edge=False)
    table.add_column("queue", overflow="fold")
    table.add_column("services", overflow="fold")
    table.add_column("messages", justify="right")
    table.add_column("oldest", justify="right")
    table.add_column("conversations", overflow="fold")
    for queue in queues:
        table.add_row(
            f"{queue.database}.{queue.queue}",
            "\n".join(queue.services),
            f"over {COUNT_LIMIT:,}" if queue.messages >= COUNT_LIMIT else f"{queue.messages:,}",
            _age(queue.oldest, now),
            "  ".join(f"{state} {count:,}" for state, count in queue.conversations.items()),
        )
    console = Console()
    console.print(table if queues else "No queues yet.")
    if mirrors:
        console.print("This server is a standby. What connects and what runs is known to its primary only: ask there.")
    if waiting.messages:
        console.print(
            f"{counted(waiting.messages, 'message waits', 'messages wait')} in the transmission queue; "
            f"the oldest because: {waiting.status}"
        )
    for link in links:
        how = f"certificate {link.principal_name}" if link.principal_name else "no encryption"
        console.print(f"Connection {'from' if link.is_accept else 'to'} {link.peer}: {link.state}, {how}")
    for one in refused:
        console.print(f"{counted(one.times, 'connection')} refused with {one.number}, the last from {one.last_peer}")
    for old in expiring:
        over = "has expired" if old.expires <= now else "expires"
        where = f" of {old.user} in {old.database}" if old.database else ""
        console.print(f"Certificate {old.name}{where} {over} on {old.expires:%Y-%m-%d}: servicebroker doctor")


@app.command()
def check(
    mend: Annotated[bool, typer.Option("--mend", help="First make the broker's views and functions anew.")] = False,
    instance: InstanceOption = DEFAULT_INSTANCE,
    as_json: JsonOption = False,
) -> None:
    """Look whether all that is stored holds together; exit code 1 when something does not."""
    must_exist(instance)
    with open_instance(instance) as opened:
        if mend:
            with opened.connection() as connection:
                make_anew(connection)
        analyzed, findings = opened.check()
    if as_json:
        typer.echo(json.dumps({"analyzed": analyzed, "findings": [finding._asdict() for finding in findings]}))
    else:
        for finding in findings:
            typer.echo(f"Msg {finding.number}: {finding.text}")
        for kind, count in analyzed.items():
            typer.echo(f"{kind} analyzed: {count:,}.")
        typer.echo(f"{counted(len(findings), 'problem')} found.")
    if findings:
        raise typer.Exit(1)


@app.command()
def sql(
    instance: InstanceOption = DEFAULT_INSTANCE,
    database: Annotated[
        str, typer.Option("--database", "-d", metavar="DATABASE", help="Made when missing.")
    ] = "master",
    file: Annotated[Path | None, typer.Option("--input", "-i", metavar="FILE", help="A script to run.")] = None,
    text: Annotated[str | None, typer.Option("--query", "-Q", metavar="TEXT", help="T-SQL to run.")] = None,
    variables: Annotated[
        list[str], typer.Option("--variable", "-v", metavar="NAME=VALUE", help="For $(NAME); may be repeated.")
    ] = [],  # noqa: B006 # typer reads it
    as_json: Annotated[bool, typer.Option("--json", help="One line for each result set and message.")] = False,
) -> None:
    """Run T-SQL: a script, a text, or what is typed. Exit code 1 when something was refused."""
    from servicebroker.cli.sql import read_script, run_sql  # the parser takes its time to import
    from servicebroker.cli.sqlcmd import Sqlcmd, variables_of

    try:
        sqlcmd = Sqlcmd(variables_of(variables))
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None
    folder = Path.cwd() if file is None else file.parent
    if not run_sql(instance, database, read_script(file, text), sqlcmd, folder, as_json=as_json):
        raise typer.Exit(1)


def _age(since: datetime | None, now: datetime) -> str:
    """How long ago, in the largest unit that fits."""
    if since is None:
        return ""
    seconds = max(0, int((now - since).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds // length} {unit}"
    return f"{seconds} s"


@app.command()
def demo(
    source: Annotated[
        Path | None, typer.Option("--input", metavar="FILE", help="The file to send. Default: a log of this machine.")
    ] = None,
    out: Annotated[
        Path, typer.Option(metavar="DIR", help="Where the instance, the checkpoint and the table live.")
    ] = Path("demo-data"),
    as_json: JsonOption = False,
) -> None:
    """Send every line of a file as a message and land them in a Delta table through Spark, exactly once."""
    from servicebroker.cli.demo.run import run_demo, say_nothing, show  # Spark takes a second to import

    try:
        if as_json:
            typer.echo(json.dumps(asdict(run_demo(source, out, say_nothing()))))
        else:
            show(source, out)
    except KeyboardInterrupt:
        typer.echo("\nInterrupted. Nothing is lost: run the same command again and it goes on from here.", err=True)
        raise typer.Exit(130) from None


@app.command()
def bench(
    names: Annotated[list[str], typer.Argument(metavar="NAME...", help="Benchmarks by name, or all.")],
    pgmq_sql: Annotated[
        Path | None, typer.Option(metavar="FILE", help="The SQL file of a pgmq release; without it pgmq is left out.")
    ] = None,
    jdbc_jar: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The jar of PostgreSQL's JDBC driver; without it Spark's JDBC is left out."),
    ] = None,
    scale: Annotated[float, typer.Option(help="Times the standard number of messages.")] = 1.0,
    rounds: Annotated[int, typer.Option(help="How often each line is measured; the median counts.")] = 5,
    write: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Write the page there, and the chart beside it as .svg.")
    ] = None,
    as_json: JsonOption = False,
) -> None:
    """Measure against what you would use instead, on the same server in the same run."""
    from servicebroker import benchmarks

    def progress(sentence: str) -> None:
        typer.echo(sentence, err=True)

    report = benchmarks.run(names, pgmq_sql=pgmq_sql, jdbc_jar=jdbc_jar, scale=scale, rounds=rounds, progress=progress)
    if write is not None:
        report.write(write)
    typer.echo(json.dumps(report.as_json()) if as_json else report.markdown())


@app.command("simulate")
def simulate_command(
    seeds: Annotated[
        str | None,
        typer.Option(metavar="A:B", help="Seeds A up to, not including, B; or one seed. 0:1000, with --fleet 0."),
    ] = None,
    fleet: Annotated[
        str | None,
        typer.Option(
            metavar="INSTANCES:SERVICES",
            help="Instead: a fleet that routes by name while instances die and routes change, such as 1000:100000.",
        ),
    ] = None,
    conversations: Annotated[int, typer.Option(help="With --fleet: how many begin.")] = 100_000,
    mirrors: Annotated[
        bool, typer.Option("--mirrors", help="Instead: mirrored pairs whose primaries fail and come back.")
    ] = False,
    as_json: JsonOption = False,
) -> None:
    """Run brokers over broken links and crashes, one run for each seed, and say which lost a promise."""
    from servicebroker.cli import simulate

    try:
        wanted = simulate.parse_seeds(seeds if seeds is not None else "0" if fleet else "0:1000")
        size = None if fleet is None else simulate.parse_fleet(fleet, conversations)
    except ValueError:
        raise typer.BadParameter("give two numbers as in 0:1000, the second one larger, or one seed") from None
    if mirrors:
        simulate.run_mirrors(wanted, as_json=as_json)
    elif size is not None:
        simulate.run_fleets(wanted, size, as_json=as_json)
    else:
        simulate.run_seeds(wanted, as_json=as_json)


if __name__ == "__main__":
    main()
