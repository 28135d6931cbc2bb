"""`servicebroker worker`: runs the workers of a module, in threads or as tasks, in one process or several."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Annotated

import typer

from servicebroker.api.aio.instance import AsyncInstance
from servicebroker.api.instance import Instance
from servicebroker.cli import shutdown
from servicebroker.cli.existing_instance import must_exist
from servicebroker.cli.health import Health, health_served
from servicebroker.cli.log import log_to_standard_error
from servicebroker.cli.options import (
    DEFAULT_INSTANCE,
    HEALTH_VARIABLE,
    DatabaseOption,
    HealthOption,
    InstanceOption,
    KeysOption,
    PatienceOption,
)
from servicebroker.cli.programs import POLL_S, Running, end
from servicebroker.model.errors import InstanceError
from servicebroker.model.workers import Worker
from servicebroker.store.connection import is_url

_SPARE_CONNECTIONS = 4  # beside those of readers
_UNWATCHED = {"__pycache__", "node_modules", "site-packages"}  # folders, beside those that begin with a dot

_log = logging.getLogger("servicebroker.worker")


def worker(
    target: Annotated[str, typer.Argument(metavar="MODULE[:NAME]", help="The worker, or all workers of a module.")],
    database: DatabaseOption,
    instance: InstanceOption = DEFAULT_INSTANCE,
    concurrency: Annotated[
        int,
        typer.Option(
            min=1, help="Messages of each worker at a time, in each process; a worker may have its own number."
        ),
    ] = 4,
    processes: Annotated[int, typer.Option(min=1, help="The number of processes.")] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a Python file below this folder changes.")
    ] = False,
    patience: PatienceOption = shutdown.PATIENCE_S,
    keys: KeysOption = None,
    health: HealthOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object on each line.")] = False,
) -> None:
    """Run the workers of a module until SIGTERM or Ctrl-C; messages in progress are finished."""
    log_to_standard_error(as_json=as_json)
    must_exist(instance)
    over = threading.Event()
    if processes > 1 or reload:
        hurries = threading.Event()
        shutdown.at_signal(over.set, hurries.set, patience=patience)
        if not reload:
            find_workers(target)
        with health_served(health, over.is_set) as program:
            _supervise(target, processes, patience, over, hurries, program, instance, reloads=reload)
        return
    workers = find_workers(target)
    shutdown.at_signal(over.set, shutdown.kill_all, patience=patience)
    connections = sum(reader.concurrency or concurrency for reader in workers) + _SPARE_CONNECTIONS
    with health_served(health, over.is_set) as program:
        if workers[0].is_async:
            opening = AsyncInstance(instance, connections=connections, keys=keys)
            asyncio.run(_run_async(opening, database, workers, concurrency, over, program))
            return
        with (
            Instance(instance, connections=connections, keys=keys) as opened,
            opened.database(database).working(*workers, concurrency=concurrency),
        ):
            _tell(workers, database, concurrency)
            program.begin(opened.url)
            over.wait()
            _log.info("Ending: what is in progress is finished first.")


async def _run_async(
    instance: AsyncInstance,
    database: str,
    workers: list[Worker],
    concurrency: int,
    over: threading.Event,
    program: Health,
) -> None:
    async with instance as opened:
        found = await opened.database(database)
        async with found.working(*workers, concurrency=concurrency):
            _tell(workers, database, concurrency)
            program.begin(opened.url)
            while not over.is_set():  # a signal sets it, from outside of the loop
                program.beat()
                await asyncio.sleep(POLL_S)
            _log.info("Ending: what is in progress is finished first.")


def _tell(workers: list[Worker], database: str, concurrency: int) -> None:
    for reader in workers:
        rate = f", at most {reader.rate}" if reader.rate else ""
        _log.info("Reading %s of %s, %d at a time%s.", reader.queue, database, reader.concurrency or concurrency, rate)


def find_workers(target: str) -> list[Worker]:
    """Return the worker of `module:name`, or all workers of a module. A module may be given by its file.

    Raises:
        InstanceError: there is none, or the module cannot be imported.
    """
    place, _, name = target.partition(":")
    module = _imported(place)
    found = {key: value for key, value in vars(module).items() if isinstance(value, Worker)}
    if name and name not in found:
        near = get_close_matches(name, found, 1) or list(found)
        has = f"Did you mean '{near[0]}'?" if near else 'Make one there: stock = servicebroker.Worker("StockQueue").'
        raise InstanceError(f"The module '{place}' has no worker '{name}'. {has}")
    workers = [found[name]] if name else list(dict.fromkeys(found.values()))
    if not workers:
        raise InstanceError(
            f"The module '{place}' has no worker. Make one there: stock = servicebroker.Worker(\"StockQueue\")."
        )
    if len({reader.is_async for reader in workers}) > 1:
        raise InstanceError(
            f"The module '{place}' has workers of both forms, async def and def: run each by name, {place}:NAME."
        )
    return workers


def _imported(place: str) -> ModuleType:
    path = Path(place)
    folder, module = (path.absolute().parent, path.stem) if path.suffix == ".py" else (Path.cwd(), place)
    sys.path.insert(0, str(folder))
    try:
        return import_module(module)
    except Exception as problem:
        if isinstance(problem, ModuleNotFoundError) and problem.name == module:
            raise InstanceError(f"There is no module '{module}' in '{folder}'.") from None
        raise InstanceError(f"'{place}' cannot be imported ({type(problem).__name__}: {problem}).") from problem


def _supervise(
    target: str,
    processes: int,
    patience: float,
    over: threading.Event,
    hurries: threading.Event,
    program: Health,
    instance: str,
    *,
    reloads: bool,
) -> None:
    """Keep `processes` processes running, each a worker with the same options; restart them when a file changes."""
    command = [sys.executable, "-m", "servicebroker.cli.main", *_options_of_a_process(), "--processes", "1"]
    program.begin(instance if is_url(instance) else None)
    while not over.is_set():
        running = Running(f"The worker {target}", command, {HEALTH_VARIABLE: ""}, processes, processes)
        program.is_working = partial(_runs, running, processes)
        before = dict(_changed()) if reloads else {}
        try:
            while not over.is_set() and not (reloads and dict(_changed()) != before):
                running.mind()
                program.beat()
                over.wait(POLL_S)
        finally:
            end([running], patience, hurries.is_set)
        if not over.is_set():
            _log.info("A file has changed: the worker %s restarts.", target)


def _options_of_a_process() -> list[str]:
    """Return this command's options for a child process: only the parent watches files and answers probes."""
    given, options = iter(sys.argv[1:]), []
    for argument in given:
        if argument == "--health":
            next(given, None)  # its value
        elif argument != "--reload" and not argument.startswith("--health="):
            options.append(argument)
    return options


def _runs(program: Running, processes: int) -> bool:
    return program.count == processes


def _changed() -> Iterator[tuple[str, int]]:
    """Yield the Python files below this folder with their times of change."""
    for folder, folders, files in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _UNWATCHED]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with suppress(OSError):  # the file was just removed
                    yield path, os.stat(path).st_mtime_ns
