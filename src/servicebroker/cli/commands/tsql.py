"""`servicebroker tsql check`: checks, without a database, which statements of T-SQL scripts run here."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from servicebroker.cli.options import JsonOption
from servicebroker.cli.output import say, say_json
from servicebroker.model.named_files import read_argument

if TYPE_CHECKING:
    from servicebroker.tsql.check import Finding

app = typer.Typer(no_args_is_help=True, add_completion=False, help="T-SQL scripts: check which statements run here.")


@app.callback()
def _commands() -> None:
    """T-SQL scripts: check which statements run here."""


@app.command("check")
def check_files(
    files: Annotated[list[Path], typer.Argument(metavar="FILE...", help="Scripts.")],
    as_json: JsonOption = False,
    show_all: Annotated[bool, typer.Option("--all", help="Include the statements that run unchanged.")] = False,
    variables: Annotated[
        list[str],
        typer.Option(
            "--variable", "-v", metavar="NAME=VALUE", help="The value of $(NAME) in the scripts; may be repeated."
        ),
    ] = [],  # noqa: B006 # typer reads it
) -> None:
    """Report for each statement: runs as in SQL Server, runs with a difference, or does not run (exit code 1)."""
    from servicebroker.cli.sqlcmd import variables_of
    from servicebroker.tsql.check import Verdict  # slow to import

    try:
        values = variables_of(variables)
    except ValueError as wrong:
        raise typer.BadParameter(str(wrong)) from None
    counts: Counter[Verdict] = Counter()
    reported = []
    for file in files:
        for finding in _findings(file, values):
            counts[finding.verdict] += 1
            if not show_all and finding.verdict is Verdict.RUNS:
                continue
            if as_json:
                reported.append({"file": str(file), **finding._asdict()})
            else:
                say(f"{file}:{finding.line}: {_sentence(finding)}")
    total = sum(counts.values())
    percent = {verdict: round(100 * counts[verdict] / total, 1) if total else 0.0 for verdict in Verdict}
    if as_json:
        totals = {verdict.value: {"statements": counts[verdict], "percent": percent[verdict]} for verdict in Verdict}
        say_json({"found": reported, "statements": total, **totals})
    else:
        summary = ", ".join(f"{percent[verdict]} % {verdict.value} ({counts[verdict]})" for verdict in Verdict)
        say(f"{total} statements: {summary}.")
    if counts[Verdict.REFUSED]:
        raise typer.Exit(1)


def _findings(file: Path, variables: dict[str, str]) -> Iterator[Finding]:
    """Yield the findings of a file. Directives of sqlcmd are expanded first, as in `servicebroker sql`.

    If a file cannot be read or checked, that is a finding too, and the next file is checked.
    """
    from servicebroker.cli.sqlcmd import MAX_SIZE, Sqlcmd, decode_script
    from servicebroker.tsql.check import Finding, Verdict, check
    from servicebroker.tsql.statement_errors import TsqlError

    try:
        script = Sqlcmd(variables).expand(decode_script(read_argument(file, MAX_SIZE)), file.parent)
    except OSError as error:
        yield Finding(0, "file", Verdict.REFUSED, f"It cannot be read: {error.strerror or type(error).__name__}.")
        return
    except TsqlError as error:
        yield Finding(error.line, "directive", Verdict.REFUSED, f"{error.number}: {error.text}")
        return
    line = 0
    try:
        for finding in check(script.text):
            line = finding.line
            yield finding
    except Exception as error:  # a bug of the checker; the other files are still checked
        note = f"The checker failed after this line: {type(error).__name__}: {error}. Please report the script."
        yield Finding(line, "text", Verdict.REFUSED, note)


def _sentence(finding: Finding) -> str:
    return f"{finding.statement} {finding.verdict.value}{': ' + finding.note if finding.note else ''}"
