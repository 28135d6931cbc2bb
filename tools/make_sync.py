"""Makes the blocking form of the API from the asyncio form: `src/servicebroker/X/name.py` from `X/aio/name.py`.

    python tools/make_sync.py           writes what has changed
    python tools/make_sync.py --check   fails when something is out of date

The words `async` and `await` go, `AsyncName` becomes `Name`, an `aio` module becomes the one beside the folder, and
`Awaitable[T]` becomes T; comments stay. What has no mechanical counterpart is written twice by hand, in the modules
of BY_HAND.
"""

from __future__ import annotations

import ast
import io
import re
import subprocess
import sys
import tokenize
from pathlib import Path

SOURCE = Path(__file__).parent.parent / "src" / "servicebroker"
BY_HAND = {"__init__.py", "concurrency.py", "direct.py", "scripts.py"}
NAMES = {
    "AbstractAsyncContextManager": "AbstractContextManager",
    "asynccontextmanager": "contextmanager",
    "__aenter__": "__enter__",
    "__aexit__": "__exit__",
}


def main(arguments: list[str]) -> int:
    """Write the files, or with --check only look; 1 when they were to be written."""
    only_look = "--check" in arguments
    stale = {target: text for target, text in made().items() if not target.exists() or target.read_text() != text}
    for target, text in stale.items():
        print("out of date:" if only_look else "written:", target.relative_to(SOURCE.parent.parent))
        if not only_look:
            target.write_text(text)
    return 1 if only_look and stale else 0


def made() -> dict[Path, str]:
    """Each file that is made, and its text."""
    sources = [path for path in sorted(SOURCE.glob("*/aio/*.py")) if path.name not in BY_HAND]
    return {path.parent.parent / path.name: tidy(note(path) + blocking(path.read_text()), path) for path in sources}


def note(path: Path) -> str:
    """The first line of what is made from `path`."""
    return f"# Made from aio/{path.name} by tools/make_sync.py: change that file, then run `make sync`.\n"


def blocking(text: str) -> str:
    """The same program without asyncio."""
    return without_words(without_wrappers(text))


def without_wrappers(text: str) -> str:
    """`Awaitable[T]` becomes T, `finish(work)`, `shelter(work)` and `in_greenlet(work)` work; `__await__` goes."""
    lines = text.splitlines(keepends=True)
    cuts: list[tuple[int, int, str]] = []  # from, to, what stands there then

    def cut(node: ast.expr | ast.stmt, inner: ast.expr | None) -> None:
        before = lines[node.lineno - 1].encode()[: node.col_offset].decode()  # ast counts bytes
        start = sum(map(len, lines[: node.lineno - 1])) + len(before)
        whole = ast.get_source_segment(text, node) or ""
        cuts.append((start, start + len(whole), "" if inner is None else ast.get_source_segment(text, inner) or ""))

    for node in ast.walk(ast.parse(text)):
        match node:
            case ast.Subscript(value=ast.Name("Awaitable"), slice=inner):
                cut(node, inner)
            case ast.Call(func=ast.Name("finish" | "shelter" | "in_greenlet"), args=[inner]):
                cut(node, inner)
            case ast.FunctionDef("__await__"):
                cut(node, None)
    for start, end, inner in sorted(cuts, reverse=True):
        text = text[:start] + inner + text[end:]
    return text


def without_words(text: str) -> str:
    """`async` and `await` go, and names lose their Async."""
    lines = text.splitlines(keepends=True)
    for token in reversed(list(tokenize.generate_tokens(io.StringIO(text).readline))):
        if token.type != tokenize.NAME:
            continue
        (row, start), (_, end) = token.start, token.end
        line = lines[row - 1]
        if token.string in ("async", "await"):
            lines[row - 1] = line[:start] + line[end:].lstrip(" ")
        else:
            lines[row - 1] = line[:start] + renamed(token.string) + line[end:]
    return re.sub(r"(?m)^( *from servicebroker\.\w+)\.aio\b", r"\1", "".join(lines))


def renamed(name: str) -> str:
    """The blocking counterpart of a name."""
    return NAMES.get(name) or re.sub(r"^(_?)Async(?=[A-Z])", r"\1", name)


def tidy(text: str, path: Path) -> str:
    """Imports sorted, without those that nobody needs any more, and the layout of the project."""
    for command in (["check", "--quiet", "--select", "I,F401,SIM117", "--fix-only"], ["format", "--quiet"]):
        ruff = [sys.executable, "-m", "ruff", *command, "--stdin-filename", str(path.parent.parent / path.name), "-"]
        text = subprocess.run(ruff, input=text, capture_output=True, text=True, check=True).stdout
    return text


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
