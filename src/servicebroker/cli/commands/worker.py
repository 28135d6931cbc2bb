"""`servicebroker worker`: runs the workers of a module, in threads or as asyncio tasks, in one process or several."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import sys
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from difflib import get_close_matches
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from tempfile import TemporaryDirectory
from types import ModuleType
from typing import Annotated, Any

import typer

from servicebroker.api.aio.instance import AsyncInstance
from servicebroker.api.instance import Instance
from servicebroker.api.shared import in_progress
from servicebroker.api.shared.in_progress import NotedMessage, read_notes
from servicebroker.cli import shutdown
from servicebroker.cli.existing_instance import check_exists
from servicebroker.cli.health import Health, serve_health
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
from servicebroker.cli.programs import POLL_S, ProcessGroup, end
from servicebroker.model.errors import InstanceError
from servicebroker.model.workers import Worker
from servicebroker.overriding import override
from servicebroker.store.connection import is_url

_SPARE_CONNECTIONS = 4  # beside one for each running handler
_UNWATCHED_FOLDERS = {"__pycache__", "node_modules", "site-packages"}  # beside those that begin with a dot

_MAX_FATAL = 100  # messages that the next process is told of

_log = logging.getLogger("servicebroker.worker")


class WorkerProcesses(ProcessGroup):
    """Processes of `--processes`, whose messages in progress are known after they have died.

    A message is fatal if it was the only one in progress, or in progress at two deaths. The next process counts a
    failure of it, instead of running its handler again.
    """

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        self._folder = TemporaryDirectory(prefix="servicebroker-worker-")
        self._files: dict[int, Path] = {}  # of the messages in progress, by process id
        self._numbers = count()
        self._next_file = Path()
        self._deaths: Counter[NotedMessage] = Counter()
        self._fatal: list[NotedMessage] = []  # to tell the next process

    def close(self) -> None:
        """Remove the files of messages in progress. The processes have ended."""
        self._folder.cleanup()

    @override
    def _variables_of_next(self) -> dict[str, str]:
        self._next_file = Path(self._folder.name, str(next(self._numbers)))
        return {
            in_progress.FILE_VARIABLE: str(self._next_file),
            in_progress.FATAL_VARIABLE: json.dumps(self._fatal[-_MAX_FATAL:]),
        }

    @override
    def _note_start(self, process_id: int) -> None:
        self._files[process_id] = self._next_file
        self._fatal = []

    @override
    def _describe_end(self, process_id: int) -> str:
        file = self._files.pop(process_id, None)
        notes = read_notes(file) if file else []
        if file:
            file.unlink(missing_ok=True)
        if len(self._deaths) > _MAX_FATAL:
            self._deaths.clear()
        self._deaths.update(notes)
        self._fatal += [note for note in notes if len(notes) == 1 or self._deaths[note] > 1]
        if not notes:
            return ""
        deaths = max(self._deaths[note] for note in notes)
        others = f" and {len(notes) - 1} more" if len(notes) > 1 else ""
        return f" while it handled {notes[0]}{others}, death {deaths} with it"


def worker(
    target: Annotated[str, typer.Argument(metavar="MODULE[:NAME]", help="The worker, or all workers of a module.")],
    database: DatabaseOption,
    instance: InstanceOption = DEFAULT_INSTANCE,
    concurrency: Annotated[
        int,
        typer.Option(
            min=1,
            help="Messages that each worker handles at a time in each process. `concurrency` in the code takes "
            "precedence.",
        ),
    ] = 4,
    processes: Annotated[int, typer.Option(min=1, help="The number of processes.")] = 1,
    reload: Annotated[
        bool, typer.Option("--reload", help="Restart when a Python file below the current folder changes.")
    ] = False,
    patience: PatienceOption = shutdown.SHUTDOWN_TIMEOUT_S,
    keys: KeysOption = None,
    health: HealthOption = None,
    as_json: Annotated[bool, typer.Option("--json", help="Write the log as JSON, one object on each line.")] = False,
) -> None:
    """Run the workers of a module until SIGTERM or Ctrl-C; messages in progress are finished."""
    log_to_standard_error(as_json=as_json)
    check_exists(instance)
    stop_requested = threading.Event()
    if processes > 1 or reload:
        kill_requested = threading.Event()
        shutdown.at_signal(stop_requested.set, kill_requested.set, timeout_s=patience)
        if not reload:
            find_workers(target)  # raises an error in this process, before children are started
        with serve_health(health, stop_requested.is_set) as probes:
            _supervise(target, processes, patience, stop_requested, kill_requested, probes, instance, reloads=reload)
        return
    workers = find_workers(target)
    if file := os.environ.pop(in_progress.FILE_VARIABLE, ""):  # not for processes that a handler starts
        in_progress.enable(file, os.environ.pop(in_progress.FATAL_VARIABLE, ""))
    shutdown.at_signal(stop_requested.set, shutdown.kill_all, timeout_s=patience)
    connections = sum(worker.concurrency or concurrency for worker in workers) + _SPARE_CONNECTIONS
    with serve_health(health, stop_requested.is_set) as probes:
        if any(worker.is_async for worker in workers):
            unopened = AsyncInstance(instance, connections=connections, keys=keys)
            asyncio.run(_run_async(unopened, database, workers, concurrency, stop_requested, probes))
            return
        with (
            Instance(instance, connections=connections, keys=keys) as opened,
            opened.database(database).working(*workers, concurrency=concurrency),
        ):
            _log_start(workers, database, concurrency)
            probes.begin(opened.url)
            stop_requested.wait()
            _log.info("Stopping after the messages in progress.")


async def _run_async(
    instance: AsyncInstance,
    database: str,
    workers: list[Worker],
    concurrency: int,
    stop_requested: threading.Event,
    probes: Health,
) -> None:
    async with instance as opened:
        broker_database = await opened.database(database)
        async with broker_database.working(*workers, concurrency=concurrency):
            _log_start(workers, database, concurrency)
            probes.begin(opened.url)
            while not stop_requested.is_set():  # polled: a signal handler sets it, outside of the event loop
                probes.record_heartbeat()
                await asyncio.sleep(POLL_S)
            _log.info("Stopping after the messages in progress.")


def _log_start(workers: list[Worker], database: str, concurrency: int) -> None:
    for worker in workers:
        rate = f", at most {worker.rate}" if worker.rate else ""
        _log.info("Reading %s of %s, %d at a time%s.", worker.queue, database, worker.concurrency or concurrency, rate)


def find_workers(target: str) -> list[Worker]:
    """Return the worker `module:name`, or all workers of a module. The module may be the path of a .py file.

    Raises:
        InstanceError: there is no such worker, or the module cannot be imported.
    """
    module_or_file, _, name = target.partition(":")
    module = _import(module_or_file)
    workers_by_name = {key: value for key, value in vars(module).items() if isinstance(value, Worker)}
    if name and name not in workers_by_name:
        similar = get_close_matches(name, workers_by_name, 1) or list(workers_by_name)
        advice = (
            f"Did you mean '{similar[0]}'?"
            if similar
            else 'Make one there: stock = servicebroker.Worker("StockQueue").'
        )
        raise InstanceError(f"The module '{module_or_file}' has no worker '{name}'. {advice}")
    workers = [workers_by_name[name]] if name else list(dict.fromkeys(workers_by_name.values()))
    if not workers:
        raise InstanceError(
            f"The module '{module_or_file}' has no worker. "
            'Make one there: stock = servicebroker.Worker("StockQueue").'
        )
    if len({worker.is_async for worker in workers if worker.has_handlers}) > 1:
        raise InstanceError(
            f"The module '{module_or_file}' has workers of both forms, async def and def: run each by name, "
            f"{module_or_file}:NAME."
        )
    return workers


def _import(module_or_file: str) -> ModuleType:
    path = Path(module_or_file)
    folder, module = (path.absolute().parent, path.stem) if path.suffix == ".py" else (Path.cwd(), module_or_file)
    sys.path.insert(0, str(folder))
    try:
        return import_module(module)
    except Exception as problem:
        if isinstance(problem, ModuleNotFoundError) and problem.name == module:
            raise InstanceError(f"There is no module '{module}' in '{folder}'.") from None
        raise InstanceError(
            f"'{module_or_file}' cannot be imported ({type(problem).__name__}: {problem})."
        ) from problem


def _supervise(
    target: str,
    processes: int,
    timeout_s: float,
    stop_requested: threading.Event,
    kill_requested: threading.Event,
    probes: Health,
    instance: str,
    *,
    reloads: bool,
) -> None:
    """Keep `processes` child processes running, each with this command's options. Restart them when a file changes."""
    command = [sys.executable, "-m", "servicebroker.cli.main", *_child_options(), "--processes", "1"]
    probes.begin(instance if is_url(instance) else None)
    while not stop_requested.is_set():
        children = WorkerProcesses(f"The worker {target}", command, {HEALTH_VARIABLE: ""}, processes, processes)
        probes.is_working = partial(_are_all_running, children, processes)
        files_at_start = dict(_file_times()) if reloads else {}
        try:
            while not stop_requested.is_set() and not (reloads and dict(_file_times()) != files_at_start):
                children.update()
                probes.record_heartbeat()
                stop_requested.wait(POLL_S)
        finally:
            end([children], timeout_s, kill_requested.is_set)
            children.close()
        if not stop_requested.is_set():
            _log.info("A file has changed: the worker %s restarts.", target)


def _child_options() -> list[str]:
    """Return this command's arguments for a child, without --reload and --health: only the parent needs these."""
    arguments, options = iter(sys.argv[1:]), []
    for argument in arguments:
        if argument == "--health":
            next(arguments, None)  # skip its value
        elif argument != "--reload" and not argument.startswith("--health="):
            options.append(argument)
    return options


def _are_all_running(children: ProcessGroup, processes: int) -> bool:
    return children.count == processes


def _file_times() -> Iterator[tuple[str, int]]:
    """Yield the path and the modification time, in nanoseconds, of each Python file below the current folder."""
    for folder, folders, files in os.walk("."):
        folders[:] = [name for name in folders if not name.startswith(".") and name not in _UNWATCHED_FOLDERS]
        for name in files:
            if name.endswith(".py"):
                path = os.path.join(folder, name)
                with suppress(OSError):  # the file was just removed
                    yield path, os.stat(path).st_mtime_ns
