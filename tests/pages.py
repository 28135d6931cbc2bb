"""Runs a page of the documentation: every file, command and snippet as printed, in a new folder.

The meaning of a page's blocks:

- A block whose first line is a comment with a file's name (`# shop.py`, `-- orders.sql`) is saved as that file.
- Other Python is typed, block after block, into one interpreter that the page has.
- `console`: what follows `$ ` is run; what stands below is what it prints. `worker$ ` is another terminal: its command
  goes on while the page does, until `^C` there.
- `text` is what one of them prints within half a minute. `py` is a signature.

Printed and seen may differ where the page says `...`, in UUIDs, in dates and times. A command must end with exit
code 0, unless the page shows what it prints. A page may say in comments that readers do not see:

- `<!-- setup` and Python, or `<!-- setup: shop -->` for `SHOP` below: what the page takes for granted.
- `<!-- not run: why -->` before a block.
"""

from __future__ import annotations

import itertools
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
TIMEOUT_S = 60.0  # seconds: for one command, and for what a terminal prints

SHOP = """
import servicebroker as sb

instance = sb.open("./servicebroker-data")
db = instance.database("Shop", create=True)
db.define({
    "message_types": {"//shop/Order": "NONE", "//shop/Confirmation": "NONE", "EndOfStream": "EMPTY"},
    "contracts": {
        "//shop/Ordering": {"//shop/Order": "INITIATOR", "EndOfStream": "ANY", "//shop/Confirmation": "TARGET"}
    },
    "queues": {"OrderQueue": {}, "StockQueue": {}},
    "services": {
        "//shop/Orders": {"queue": "OrderQueue"},
        "//shop/Stock": {"queue": "StockQueue", "contracts": ["//shop/Ordering"]},
    },
})
with db.transaction() as tx:
    tx.connection.execute("create table shipments (item text)")
handle = db.begin_dialog("//shop/Orders", "//shop/Stock", contract="//shop/Ordering")
"""

_PARTS = re.compile(
    r"^<!-- setup(?:: (?P<named>\w+) -->$|\n(?P<setup>.*?)^-->$)"
    r"|^<!-- not run: (?P<why>.+?) -->$"
    r"|^(?P<indent> *)```(?P<language>\w*)[^\n]*\n(?P<text>.*?)^(?P=indent)```$",
    re.MULTILINE | re.DOTALL,
)
_FILE = re.compile(r"(?:#|--|//) ([\w./-]+\.\w+)\n")
_PROMPT = re.compile(r"(\w*)\$ (.*)")
_VARIES = [  # the escaped text in a pattern, and its replacement
    (re.compile(r"[0-9a-f]{8}\\-(?:[0-9a-f]{4}\\-){3}[0-9a-f]{12}"), r"[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}"),
    (re.compile(r"\d{4}\\-\d\d\\-\d\d"), r"\\d{4}-\\d\\d-\\d\\d"),
    (re.compile(r"(?<!\d)\d\d:\d\d(:\d\d)?(\\\.\d+)?"), r"\\d\\d:\\d\\d(?::\\d\\d)?(?:\\.\\d+)?"),
    (re.compile(r"\\\.\\\.\\\."), r"(?:.|\\n)*?"),
]


class Step(NamedTuple):
    """One block of a page. `why`: the reason if the block is not run."""

    line: int
    kind: str  # setup, file, python, console, text, or the language of a block that cannot run
    text: str
    file: str = ""
    why: str = ""


def steps_of(page: str) -> list[Step]:
    """Return the blocks of a page, in order."""
    source = (ROOT / page).read_text()
    steps, why = [], ""
    for part in _PARTS.finditer(source):
        line = source.count("\n", 0, part.start()) + 1
        if part["named"]:
            steps.append(Step(line, "setup", {"shop": SHOP}[part["named"]]))
        elif part["setup"] is not None:
            steps.append(Step(line, "setup", part["setup"]))
        elif part["why"] is not None:
            why = part["why"]
        else:
            text = re.sub(rf"^{part['indent']}", "", part["text"], flags=re.MULTILINE)
            named = _FILE.match(text)
            kind = "file" if named else part["language"]
            if kind == "text" and steps:
                why = steps[-1].why  # the text is the output of the previous block
            steps.append(Step(line, kind, text, named[1] if named else "", why))
            why = ""
    return steps


def pattern(printed: str) -> re.Pattern[str]:
    """Return a pattern for the output that a page prints."""
    text = re.escape("\n".join(line.rstrip() for line in printed.strip("\n").splitlines()))
    for varies, instead in _VARIES:
        text = varies.sub(instead, text)
    return re.compile(re.sub(r"\\ |\\?\n", lambda gap: r"\s" if gap[0][-1] == "\n" else " ", text))


def _plain(seen: str) -> str:
    """Return the visible text of a terminal's output."""
    return "\n".join(re.sub(r"\x1b\[[\d;?]*[A-Za-z]", "", line).rstrip() for line in seen.splitlines())


_INTERPRETER = """
import ast, asyncio, json, os, sys, traceback
answers, orders = os.fdopen(os.dup(1), "w"), sys.stdin
os.dup2(os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT), 1)
sys.stdout = os.fdopen(1, "w", buffering=1)
sys.path.insert(0, "")
names, loop = {"__name__": "__main__"}, asyncio.new_event_loop()
asyncio.set_event_loop(loop)
for order in orders:
    said = None
    try:
        code = compile(json.loads(order), "<page>", "exec", ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
        done = eval(code, names)
        if done is not None:
            loop.run_until_complete(done)
    except BaseException as problem:
        said = "".join(traceback.format_exception(problem))
        print(said)
    sys.stdout.flush()
    print(json.dumps(said), file=answers, flush=True)
"""


class Newcomer:
    """A simulated reader who follows a page in a new folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._output = folder.parent / f"{folder.name}-output"
        self._output.mkdir()
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("SERVICEBROKER_")}
        self._environment |= {"NO_COLOR": "1", "TERM": "dumb", "COLUMNS": "100", "PYTHONUNBUFFERED": "1"}
        self._environment["PATH"] = f"{_bin(self._output)}:{self._environment['PATH']}"
        self._terminals: dict[str, subprocess.Popen[bytes]] = {}
        self._seen: dict[str, int] = {}  # the length of each output that the page has shown
        self._interpreter: subprocess.Popen[str] | None = None

    def do(self, page: str) -> None:
        """Run the whole page.

        Raises:
            AssertionError: an output differs from the page.
        """
        steps = [step for step in steps_of(page) if not step.why]
        for step, after in itertools.zip_longest(steps, steps[1:]):
            try:
                self._do(step, shown=after is not None and after.kind == "text")
            except AssertionError as problem:
                raise AssertionError(f"{page}:{step.line}: {problem}") from None

    def _do(self, step: Step, *, shown: bool) -> None:
        """Run one step. `shown`: the next step is its output."""
        match step.kind:
            case "file":
                path = self.folder / step.file
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(step.text)
            case "setup" | "python":
                problem = self._type(step.text)
                assert problem is None or shown, problem
            case "console":
                self._console(step.text)
            case "text":
                self._wait_for(step.text)
            case "py":
                pass
            case language:
                raise AssertionError(f"nobody can run '{language or 'a block without a language'}'")

    def _type(self, program: str) -> str | None:
        """Type into the page's interpreter. Return the traceback of an exception."""
        if self._interpreter is None:
            with (self._output / "python").open("a") as output:
                self._interpreter = subprocess.Popen(
                    ["python", "-c", _INTERPRETER, output.name],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=output,
                    text=True,
                    cwd=self.folder,
                    env=self._environment,
                )
        pipe = self._interpreter
        assert pipe.stdin is not None
        assert pipe.stdout is not None
        print(json.dumps(program), file=pipe.stdin, flush=True)
        answer = pipe.stdout.readline()
        assert answer, f"the interpreter ended: {self._unshown()}"
        document: str | None = json.loads(answer)
        return document

    def _console(self, block: str) -> None:
        """Run the commands of a block, and compare the output of each."""
        commands: list[tuple[str, str, list[str]]] = []
        for line in block.splitlines():
            if prompt := _PROMPT.match(line):
                commands.append((prompt[1], prompt[2], []))
            elif commands and commands[-1][1].endswith("\\"):
                terminal, begun, printed = commands[-1]
                commands[-1] = (terminal, f"{begun}\n{line}", printed)
            else:
                assert commands, f"a console block begins with a prompt, not with {line!r}"
                commands[-1][2].append(line)
        for terminal, command, lines in commands:
            self._run(terminal, command, "\n".join(lines))

    def _run(self, terminal: str, command: str, printed: str) -> None:
        if command == "^C":
            self._end(terminal)
        elif match := re.match(r"export (\w+)=(.*)", command):
            self._environment[match[1]] = match[2].strip("'\"")
        elif terminal:
            with (self._output / terminal).open("ab") as output:
                self._terminals[terminal] = subprocess.Popen(
                    ["bash", "-c", f"exec {command}"],
                    cwd=self.folder,
                    env=self._environment,
                    stdout=output,
                    stderr=output,
                    start_new_session=True,
                )
            if printed:
                self._wait_for(printed)
        else:
            result = subprocess.run(
                ["bash", "-c", command],
                cwd=self.folder,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=5 * TIMEOUT_S,
                check=False,
            )
            seen = _plain(result.stdout)
            if printed:
                assert pattern(printed).fullmatch(seen.strip("\n")), f"$ {command}\nprints\n{seen}\nnot\n{printed}"
            else:
                assert result.returncode == 0, f"$ {command}\nends with {result.returncode}: {seen}"

    def _end(self, terminal: str) -> None:
        process = self._terminals.pop(terminal)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGINT)
        process.wait(TIMEOUT_S)

    def _unshown(self) -> str:
        return "".join(path.read_text()[self._seen.get(path.name, 0) :] for path in self._outputs())

    def _outputs(self) -> list[Path]:
        """Return the files with the output of the interpreter and of each terminal so far."""
        return sorted(path for path in self._output.iterdir() if path.is_file())

    def _wait_for(self, printed: str) -> None:
        """Wait until an interpreter or a terminal has printed new output that matches."""
        wanted, until = pattern(printed), time.monotonic() + TIMEOUT_S / 2
        while True:
            for path in self._outputs():
                if match := wanted.search(_plain(path.read_text()), self._seen.get(path.name, 0)):
                    self._seen[path.name] = match.end()
                    return
            assert time.monotonic() < until, f"seen is\n{self._unshown()}\nnot\n{printed}"
            time.sleep(0.05)

    def leave(self) -> None:
        """End the interpreter and all running commands."""
        if self._interpreter is not None:
            self._interpreter.communicate()
        for terminal in list(self._terminals):
            self._end(terminal)


def _bin(folder: Path) -> Path:
    """Return a folder with `python` and `servicebroker`, as in a new virtual environment."""
    made = folder / "bin"
    made.mkdir()
    interpreter = os.environ.get("NEWCOMER_PYTHON", sys.executable)
    for name, arguments in (("python", ""), ("servicebroker", "-m servicebroker.cli.main ")):
        (made / name).write_text(f'#!/bin/sh\nexec {interpreter} {arguments}"$@"\n')
        (made / name).chmod(0o755)
    return made


@contextmanager
def newcomer(folder: Path) -> Iterator[Newcomer]:
    """Yield a newcomer in this folder, whose commands end after the block."""
    one = Newcomer(folder)
    try:
        yield one
    finally:
        one.leave()
