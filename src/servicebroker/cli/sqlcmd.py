"""Expand the directives of sqlcmd in T-SQL scripts: :setvar and $(name), :r FILE, :on error exit."""

from __future__ import annotations

import os
import re
from bisect import bisect_right
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from servicebroker.model.named_files import read_file
from servicebroker.tsql.statement_errors import TsqlError, unsupported

MAX_DEPTH = 16  # the deepest nesting of files that read files by :r
MAX_SIZE = 100_000_000  # characters of a script with all files that it reads
_DIRECTIVE = re.compile(r"[ \t]*(?::[ \t]*([a-z]+)\b|(!!))[ \t]*(.*?)[ \t\r]*", re.IGNORECASE)
_VARIABLE = re.compile(r"\$\(([A-Za-z_][\w-]*)\)")
_STRING_OR_COMMENT = re.compile(r"'(?:[^']|'')*'|--[^\n]*|/\*")
_COMMENT_DELIMITER = re.compile(r"/\*|\*/")
_NAME = r"([A-Za-z_][\w-]*)"
_SETVAR = re.compile(rf'{_NAME}(?:[ \t]+(?:"((?:[^"]|"")*)"|(\S.*?)))?')
_DIRECTIVES = frozenset(
    {"setvar", "r", "on", "quit", "exit", "connect", "out", "error", "perftrace", "list", "listvar", "reset", "ed"}
    | {"help", "serverlist", "xml"}
)
_ADVICE = {  # the advice for directives that are not supported
    "connect": "Name the instance with --instance.",
    "out": "Redirect the output of the command.",
    "error": "Redirect the errors of the command.",
}


class Script(NamedTuple):
    """A script without directives.

    Attributes:
        text: T-SQL. An empty line replaces each directive, so that line numbers stay the same up to the first :r.
        switches: (line, stops) for each `:on error`: after an error from this line on, stop (True) or go on.
    """

    text: str
    switches: tuple[tuple[int, bool], ...]

    def should_stop_after(self, line: int) -> bool:
        """Return whether an error in a batch that ends at this line ends the script."""
        index = bisect_right(self.switches, (line, True))
        return index > 0 and self.switches[index - 1][1]


def decode_script(data: bytes) -> str:
    """Decode a script file: UTF-8, or UTF-16 with a byte order mark, or else Windows-1252."""
    if data.startswith((b"\xff\xfe", b"\xfe\xff")):
        return data.decode("utf-16", "replace")
    try:
        return data.decode("utf-8-sig")
    except UnicodeDecodeError:
        return data.decode("cp1252", "replace")


class Sqlcmd:
    """The variables of a script, or of a session at the prompt. The environment has those that are not set here."""

    def __init__(self, variables: Mapping[str, str] | None = None) -> None:
        self.variables = {name.lower(): value for name, value in (variables or {}).items()}

    def expand(self, text: str, folder: Path) -> Script:
        """Execute the directives of a script. File names are relative to `folder`.

        Raises:
            TsqlError: a variable is not set, a file cannot be read, or a directive is not supported. It has the line.
        """
        lines: list[str] = []
        switches: list[tuple[int, bool]] = []
        self._expand(text, folder, 0, lines, switches)
        return Script("\n".join(lines), tuple(switches))

    def _expand(self, text: str, folder: Path, depth: int, lines: list[str], switches: list[tuple[int, bool]]) -> None:
        comment_depth = 0
        for number, line in enumerate(text.split("\n"), 1):
            match = None if comment_depth else _DIRECTIVE.fullmatch(line)
            if match is None or (match[1] and match[1].lower() not in _DIRECTIVES):
                parts, comment_depth = _split_comments(line, comment_depth)
                lines.append("".join(self._substitute(part, number) if is_code else part for part, is_code in parts))
                continue
            word, argument_text = (match[1] or match[2]).lower(), match[3]
            if word in ("quit", "exit"):
                return
            if word == "setvar":
                self._set(argument_text, number)
            elif word == "on":
                switches.append((len(lines) + 1, _stops_at_error(argument_text, number)))
            elif word == "r":
                self._read(self._substitute(argument_text, number), folder, depth, number, lines, switches)
                continue
            else:
                raise unsupported(f":{word}" if word != "!!" else "!! (a command of the system)",
                                  _ADVICE.get(word, "Leave it out."), number)  # fmt: skip
            lines.append("")

    def _substitute(self, line: str, number: int) -> str:
        """Replace the variables in a line, which has this number."""
        if "$(" not in line:
            return line

        def value(match: re.Match[str]) -> str:
            name = match[1].lower()
            if name in self.variables:
                return self.variables[name]
            if match[1] in os.environ:
                return os.environ[match[1]]
            raise TsqlError(
                40515, f"'{match[1]}' scripting variable not defined. Write :setvar {match[1]} value, or give "
                f"-v {match[1]}=value.", line=number,
            )  # fmt: skip

        return _VARIABLE.sub(value, line)

    def _set(self, argument_text: str, number: int) -> None:
        """Execute :setvar; without a value, remove the variable."""
        match = _SETVAR.fullmatch(argument_text)
        if match is None:
            raise TsqlError(102, "Incorrect syntax near ':setvar'. Write :setvar name value.", line=number)
        name = match[1].lower()
        quoted, plain = match[2], match[3]
        if quoted is None and plain is None:
            self.variables.pop(name, None)
        else:
            self.variables[name] = self._substitute(quoted.replace('""', '"') if plain is None else plain, number)

    def _read(
        self,
        argument_text: str,
        folder: Path,
        depth: int,
        number: int,
        lines: list[str],
        switches: list[tuple[int, bool]],
    ) -> None:
        """Execute :r, which appends the expanded lines of a file to `lines`."""
        if depth >= MAX_DEPTH:
            raise TsqlError(217, f"Files read each other more than {MAX_DEPTH} levels deep.", line=number)
        file = folder / argument_text.strip().strip('"').replace("\\", "/")
        try:
            text = decode_script(read_file(file, MAX_SIZE))
        except OSError as problem:
            reason = problem.strerror or type(problem).__name__
            raise TsqlError(40515, f"The file '{file}' cannot be read: {reason}.", line=number) from None
        if sum(map(len, lines)) + len(text) > MAX_SIZE:
            raise TsqlError(40515, "The script is too long with the files that it reads.", line=number)
        self._expand(text.removesuffix("\n"), file.parent, depth + 1, lines, switches)


def _stops_at_error(argument_text: str, number: int) -> bool:
    """Return True for `:on error exit`, False for `:on error ignore`."""
    words = argument_text.lower().split()
    if words[:1] != ["error"] or words[1:] not in (["exit"], ["ignore"]):
        raise TsqlError(102, "Incorrect syntax near ':on'. Write :on error exit, or :on error ignore.", line=number)
    return words[1] == "exit"


def _split_comments(line: str, depth: int) -> tuple[list[tuple[str, bool]], int]:
    """Split a line into code and comments: return (part, is_code) for each part, and the comment depth at its end.

    `depth` counts the nested comments that are open at the beginning of the line.
    """
    parts: list[tuple[str, bool]] = []
    start = position = 0
    while match := (_COMMENT_DELIMITER if depth else _STRING_OR_COMMENT).search(line, position):
        position = match.end()
        if match[0] == "/*":
            if not depth:
                parts.append((line[start : match.start()], True))
                start = match.start()
            depth += 1
        elif match[0] == "*/":
            depth -= 1
            if not depth:
                parts.append((line[start:position], False))
                start = position
        elif match[0].startswith("--"):
            return [*parts, (line[start : match.start()], True), (match[0], False)], 0
    return [*parts, (line[start:], not depth)], depth


def variables_of(options: list[str]) -> dict[str, str]:
    """Return the variables of the options -v name=value.

    Raises:
        ValueError: an option is not name=value.
    """
    variables = {}
    for option in options:
        name, sign, value = option.partition("=")
        if not sign or not re.fullmatch(_NAME, name):
            raise ValueError(f"'{option}' is not a variable definition: write -v name=value.")
        variables[name] = value
    return variables
