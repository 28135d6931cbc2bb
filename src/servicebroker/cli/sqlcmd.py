"""Directives of sqlcmd in scripts: :setvar and $(name), :r FILE, :on error exit. The other text is T-SQL."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from servicebroker.model.named_files import read_file
from servicebroker.tsql.statement_errors import TsqlError, unsupported

MAXIMUM_DEPTH = 16  # of files that read files
MAXIMUM_SIZE = 100_000_000  # characters of a script with all that it reads
_DIRECTIVE = re.compile(r"[ \t]*(?::[ \t]*([a-z]+)\b|(!!))[ \t]*(.*?)[ \t\r]*", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\(([A-Za-z_][\w-]*)\)")
_TEXT = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*")
_SIGN = re.compile(r"/\*|\*/")
_NAME = r"([A-Za-z_][\w-]*)"
_SETVAR = re.compile(rf'{_NAME}(?:[ \t]+(?:"((?:[^"]|"")*)"|(\S.*?)))?')
_KNOWN = frozenset(
    {"setvar", "r", "on", "quit", "exit", "connect", "out", "error", "perftrace", "list", "listvar", "reset", "ed"}
    | {"help", "serverlist", "xml"}
)
_INSTEAD = {
    "connect": "Name the instance with --instance.",
    "out": "Redirect the output of the command.",
    "error": "Redirect the errors of the command.",
}


class Script(NamedTuple):
    """T-SQL without directives.

    Attributes:
        text: a directive has left an empty line, so that lines keep their numbers up to the first file that is read.
        switches: the lines from which an error ends the script, or does so no longer.
    """

    text: str
    switches: tuple[tuple[int, bool], ...]

    def should_stop_after(self, line: int) -> bool:
        """Return whether an error in a batch that ends in this line ends the script."""
        place = bisect_right(self.switches, (line, True))
        return place > 0 and self.switches[place - 1][1]


def decoded(data: bytes) -> str:
    """Decode a script file: UTF-8, or UTF-16 with a byte order mark, or else Windows-1252."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


class Sqlcmd:
    """The variables of a script, or of a session at the prompt; others are taken from the environment."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self.variables = {name.lower(): value for name, value in (variables or {}).items()}

    def expand(self, text: str, folder: Path) -> Script:
        """Carry out the directives; names of files are relative to `folder`.

        Raises:
            TsqlError: with its line: a variable that is not set, a file that cannot be read, an unknown directive.
        """
        lines: list[str] = []
        switches: list[tuple[int, bool]] = []
        self._expand(text, folder, 0, lines, switches)
        return Script("\n".join(lines), tuple(switches))

    def _expand(self, text: str, folder: Path, depth: int, lines: list[str], switches: list[tuple[int, bool]]) -> None:
        depth_of_comments = 0
        for number, line in enumerate(text.split("\n"), 1):
            found = None if depth_of_comments else _DIRECTIVE.fullmatch(line)
            if found is None or (found[1] and found[1].lower() not in _KNOWN):
                parts, depth_of_comments = _parts(line, depth_of_comments)
                lines.append("".join(self._filled(part, number) if is_text else part for part, is_text in parts))
                continue
            word, rest = (found[1] or found[2]).lower(), found[3]
            if word in ("quit", "exit"):
                return
            if word == "setvar":
                self._set(rest, number)
            elif word == "on":
                switches.append((len(lines) + 1, _ends(rest, number)))
            elif word == "r":
                self._read(self._filled(rest, number), folder, depth, number, lines, switches)
                continue
            else:
                raise unsupported(f":{word}" if word != "!!" else "!! (a command of the system)",
                                  _INSTEAD.get(word, "Leave it out."), number)  # fmt: skip
            lines.append("")

    def _filled(self, line: str, number: int) -> str:
        if "$(" not in line:
            return line

        def value(found: re.Match[str]) -> str:
            name = found[1].lower()
            if name in self.variables:
                return self.variables[name]
            if found[1] in os.environ:
                return os.environ[found[1]]
            raise TsqlError(
                40515, f"'{found[1]}' scripting variable not defined. Write :setvar {found[1]} value, or give "
                f"-v {found[1]}=value.", line=number,
            )  # fmt: skip

        return _VARIABLE.sub(value, line)

    def _set(self, rest: str, number: int) -> None:
        found = _SETVAR.fullmatch(rest)
        if found is None:
            raise TsqlError(102, "Incorrect syntax near ':setvar'. Write :setvar name value.", line=number)
        name = found[1].lower()
        if found[2] is None and found[3] is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = self._filled(found[2].replace('""', '"') if found[3] is None else found[3], number)

    def _read(
        self, rest: str, folder: Path, depth: int, number: int, lines: list[str], switches: list[tuple[int, bool]]
    ) -> None:
        if depth >= MAXIMUM_DEPTH:
            raise TsqlError(217, f"Files read each other more than {MAXIMUM_DEPTH} levels deep.", line=number)
        file = folder / rest.strip().strip('"').replace("\\", "/")
        try:
            text = decoded(read_file(file, MAXIMUM_SIZE))
        except OSError as problem:
            reason = problem.strerror or type(problem).__name__
            raise TsqlError(40515, f"The file '{file}' cannot be read: {reason}.", line=number) from None
        if sum(map(len, lines)) + len(text) > MAXIMUM_SIZE:
            raise TsqlError(40515, "The script is too long with the files that it reads.", line=number)
        self._expand(text.removesuffix("\n"), file.parent, depth + 1, lines, switches)


def _ends(rest: str, number: int) -> bool:
    words = rest.lower().split()
    if words[:1] != ["error"] or words[1:] not in (["exit"], ["ignore"]):
        raise TsqlError(102, "Incorrect syntax near ':on'. Write :on error exit, or :on error ignore.", line=number)
    return words[1] == "exit"


def _parts(line: str, depth: int) -> tuple[list[tuple[str, bool]], int]:
    """Split a line into parts, each with whether it is code; and return how many comments are open behind it."""
    parts: list[tuple[str, bool]] = []
    start = place = 0
    while found := (_SIGN if depth else _TEXT).search(line, place):
        place = found.end()
        if found[0] == "/*":
            if not depth:
                parts.append((line[start : found.start()], True))
                start = found.start()
            depth += 1
        elif found[0] == "*/":
            depth -= 1
            if not depth:
                parts.append((line[start:place], False))
                start = place
        elif found[0].startswith("--"):
            return [*parts, (line[start : found.start()], True), (found[0], False)], 0
    return [*parts, (line[start:], not depth)], depth


def variables_of(given: list[str]) -> dict[str, str]:
    """Return the variables of the options -v name=value.

    Raises:
        ValueError: an option is not written so.
    """
    found = {}
    for variable in given:
        name, sign, value = variable.partition("=")
        if not sign or not re.fullmatch(_NAME, name):
            raise ValueError(f"'{variable}' is no variable: write -v name=value.")
        found[name] = value
    return found
