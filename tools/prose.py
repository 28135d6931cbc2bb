"""Check the language of the code: docstrings, comments, constants, names of modules, commit subjects.

    python tools/prose.py                             # what `make lint` runs: compare with the baseline
    python tools/prose.py --show src/servicebroker/api  # list every finding below a folder
    python tools/prose.py --lower                     # write smaller numbers into the baseline
    python tools/prose.py --message FILE              # check the subject of a commit message, as a hook of Git

The rules hold for each docstring and comment:

* openings: the text begins with a thing or an action, not with a clause ("What ...", "Whether ...", "It ...").
* sentences: a sentence of a docstring has at most 30 words.
* constants: the name of a number has a subject and a unit (`RETRY_DELAY_S`), not one bare word (`SOON`).
* modules: the name of a module does not match `FORBIDDEN_MODULES`.
* subjects: a commit after `origin/main` has a subject of at most 72 characters.

`tools/prose.toml` holds the findings that each folder still has. The check fails if a folder has more of a kind, or
if a number of the file is above the one in `origin/main`, so the numbers only shrink. To lower them, mend findings, run
`python tools/prose.py --lower` and commit the file with the change. A folder that is not listed has no findings.
"""

from __future__ import annotations

import argparse
import ast
import re
import subprocess
import sys
import tomllib
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parents[1]
BASELINE = ROOT / "tools/prose.toml"
SOURCES = ("src", "lab", "tests", "tools", "examples")
FOLDER_PARTS = 3  # of a path name its room: src/servicebroker/api, tests/unit/tsql
KINDS = ("docstrings", "comments", "sentences", "constants", "modules")
MAX_SENTENCE_WORDS = 30
MAX_HEADER_CHARACTERS = 3_000  # of the comments that may stand before the docstring of a module
MAX_SUBJECT_CHARACTERS = 72
MAX_LINE_CHARACTERS = 300  # of the line before a docstring
GENERATED = "# Made from"  # the file it was made from is checked instead

# Words that hold anything; adverbs, participles and images that name no subject.
FORBIDDEN_MODULES = re.compile(
    r"common|helpers?|misc|stuff|things|utils?|various"
    r"|acting|again|apart|arriving|aside|cut|door|existing|faces|foresight|giving_way|guarded|hearing|kept|looks"
    r"|observed|ours|places|remembered|rush|standing|together|waiting|ways"
)

# A clause as a subject, alone ("Who vanishes ...") or after a verb that only reports it ("Say what ...").
CLAUSE = re.compile(
    r"(?:(?:and|but|else|also|of|only|not)\s+)?"
    r"(?:(?:how|it|nobody|nothing|those|what|whatever|where|whether|who|whoever|whom|whose)"
    r"|one\s+(?:that|who)|so\s+(?:many|much)"
    r"|(?:returns?|says?|tells?)\s+(?:that\s+which|what|where|who|whom))\b",
    re.IGNORECASE,
)

# The strings and comments of a file; so a mark within a string is not a comment, and the reverse.
TOKEN = re.compile(
    r'(?P<long>"""(?:[^"\\]|\\.|"(?!""))*"""'
    r"|'''(?:[^'\\]|\\.|'(?!''))*''')"
    r'|"(?:[^"\\\n]|\\.)*"'
    r"|'(?:[^'\\\n]|\\.)*'"
    r"|(?P<comment>#[^\n]*)",
    re.DOTALL,
)
ASSIGNMENT = re.compile(
    r"^(?P<names>_?[A-Z][A-Z0-9_]*(?:, _?[A-Z][A-Z0-9_]*)*)(?:: [^=\n]+)? = (?P<value>[^#\n]+)", re.M
)
LIST_ITEM = re.compile(r"\s*(?:[-*] |\d+\. )")
SENTENCE_END = re.compile(r"(?<=[.!?:;])[\"')\]]*\s+(?=[A-Z`\"'(\d])")


class Finding(NamedTuple):
    """A place that breaks a rule."""

    kind: str
    path: str
    line: int
    text: str


class Document(NamedTuple):
    """The docstrings and comments of a file, each with its line."""

    docstrings: list[tuple[int, str]]
    comments: list[tuple[int, str]]
    strings: list[range]  # positions of strings with several lines


def opens_with_clause(text: str) -> bool:
    """Return whether a text begins with a clause instead of a thing or an action."""
    return CLAUSE.match(text) is not None


def read_document(text: str) -> Document:
    """Collect docstrings and comments without a parser of Python, which would take five times as long."""
    document = Document([], [], [])
    for token in TOKEN.finditer(text):
        if (comment := token["comment"]) is not None:
            document.comments.append((line_of(text, token.start()), comment.lstrip("#!: ")))
        elif (string := token["long"]) is not None:
            document.strings.append(range(token.start(), token.end()))
            if is_docstring(text, token.start()):
                column = token.start() - text.rfind("\n", 0, token.start()) - 1
                lines = [line[column:] if line[:column].isspace() else line for line in string[3:-3].splitlines()]
                document.docstrings.append((line_of(text, token.start()), "\n".join(lines).strip()))
    return document


def line_of(text: str, position: int) -> int:
    """Return the number of the line at a position."""
    return text.count("\n", 0, position) + 1


def is_docstring(text: str, start: int) -> bool:
    """Return whether a string of three quotes begins a module, a class or a function."""
    line_start = text.rfind("\n", 0, start) + 1
    if text[line_start:start].strip(" rR"):
        return False
    before = text[max(0, line_start - MAX_LINE_CHARACTERS) : line_start].rstrip()
    last_line = before[before.rfind("\n") + 1 :]
    ends_header = before.endswith(":") or re.search(r":  # [^\n]*$", last_line) is not None
    return ends_header or (line_start < MAX_HEADER_CHARACTERS and not code_before(text, line_start))


def code_before(text: str, end: int) -> bool:
    """Return whether anything but blank lines and comments stands before a position."""
    return any(line and not line.startswith("#") for line in text[:end].splitlines())


def long_sentences(docstring: str) -> Iterator[str]:
    """Yield the sentences with more than `MAX_SENTENCE_WORDS` words; listings and tables have none."""
    paragraph: list[str] = []
    for line in [*docstring.splitlines(), ""]:
        is_listing = line.startswith("    ") or line.startswith(("|", ">>>"))
        if not line.strip() or is_listing or LIST_ITEM.match(line):
            for sentence in SENTENCE_END.split(" ".join(paragraph)):
                if len(sentence.split()) > MAX_SENTENCE_WORDS:
                    yield sentence
            paragraph = []
        if not is_listing:
            paragraph.append(line.strip())


def bare_constants(text: str, strings: list[range]) -> Iterator[tuple[int, str]]:
    """Yield each name of one word that a module gives to a number, also `A, B = 1, 2` and `HOUR = 60 * 60`."""
    for found in ASSIGNMENT.finditer(text):
        names = found["names"].split(", ")
        if any(found.start() in string for string in strings) or all("_" in name.strip("_") for name in names):
            continue
        try:
            value = ast.parse(found["value"].strip(), mode="eval").body
        except SyntaxError:  # an expression of several lines is not a number
            continue
        values = value.elts if isinstance(value, ast.Tuple) and len(names) == len(value.elts) else [value]
        for name, number in zip(names, values, strict=False):
            if "_" not in name.strip("_") and is_number(number):
                yield line_of(text, found.start()), name


def is_number(value: ast.expr) -> bool:
    """Return whether an expression consists of numbers alone."""
    if isinstance(value, ast.BinOp):
        return is_number(value.left) and is_number(value.right)
    if isinstance(value, ast.UnaryOp):
        return is_number(value.operand)
    return isinstance(value, ast.Constant) and type(value.value) in (int, float)


def check_text(path: str, text: str) -> Iterator[Finding]:
    """Yield the findings of one file."""
    name = Path(path).stem.removeprefix("test_")
    if FORBIDDEN_MODULES.fullmatch(name):
        yield Finding("modules", path, 1, name)
    document = read_document(text)
    for line, docstring in document.docstrings:
        if opens_with_clause(docstring):
            yield Finding("docstrings", path, line, docstring.partition("\n")[0])
        for sentence in long_sentences(docstring):
            yield Finding("sentences", path, line, sentence)
    for line, comment in document.comments:
        if opens_with_clause(comment):
            yield Finding("comments", path, line, comment)
    for line, constant in bare_constants(text, document.strings):
        yield Finding("constants", path, line, constant)


def check_tree(root: Path) -> list[Finding]:
    """Return the findings of all sources below a folder, in the order of their paths."""
    findings: list[Finding] = []
    for path in sorted(path for source in SOURCES for path in (root / source).rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        if not text.startswith(GENERATED):
            findings += check_text(path.relative_to(root).as_posix(), text)
    return findings


def folder_of(path: str) -> str:
    """Return the room of a file, by which findings are counted."""
    return "/".join(path.split("/")[:-1][:FOLDER_PARTS])


def count(findings: list[Finding]) -> Counter[tuple[str, str]]:
    """Return the number of findings for each folder and kind."""
    return Counter((folder_of(finding.path), finding.kind) for finding in findings)


def read_baseline(text: str) -> Counter[tuple[str, str]]:
    """Return the numbers of a baseline file."""
    folders = tomllib.loads(text)
    return Counter({(folder, kind): number for folder, kinds in folders.items() for kind, number in kinds.items()})


def write_baseline(numbers: Counter[tuple[str, str]]) -> str:
    """Return the text of a baseline file; a folder without findings is left out."""
    lines = ["# Findings of tools/prose.py that are left. Numbers only shrink: python tools/prose.py --lower"]
    for folder in sorted({folder for folder, _ in numbers}):
        kept = [f"{kind} = {numbers[folder, kind]}" for kind in KINDS if numbers[folder, kind]]
        lines += ["", f'["{folder}"]', *kept] if kept else []
    return "\n".join(lines) + "\n"


def lower(baseline: Counter[tuple[str, str]], found: Counter[tuple[str, str]]) -> Counter[tuple[str, str]]:
    """Return the baseline with each number that has become smaller."""
    return baseline & found


def excess(baseline: Counter[tuple[str, str]], found: Counter[tuple[str, str]]) -> list[tuple[str, str]]:
    """Return the folders and kinds that have more findings than the baseline allows."""
    return sorted((found - baseline).keys())


def git(*arguments: str) -> str | None:
    """Return the output of a Git command; None if it fails or Git is missing."""
    try:
        done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    except OSError:
        return None
    return done.stdout if done.returncode == 0 else None


def branch_subjects() -> list[str]:
    """Return the subjects of the commits that `origin/main` lacks; none where there is no such branch."""
    return (git("log", "--no-merges", "--format=%s", "origin/main..HEAD") or "").splitlines()


def subject_failures(subjects: list[str]) -> list[str]:
    """Return a line for each subject over `MAX_SUBJECT_CHARACTERS`."""
    too_long = [subject for subject in subjects if len(subject) > MAX_SUBJECT_CHARACTERS]
    return [f"subject over {MAX_SUBJECT_CHARACTERS} characters: {subject}" for subject in too_long]


def report(findings: list[Finding]) -> None:
    """Print a line for each finding."""
    for finding in findings:
        print(f"{finding.path}:{finding.line}: {finding.kind}: {finding.text}")


def main(arguments: list[str]) -> int:
    """Check, list or lower, as the options say; return the exit status."""
    parser = argparse.ArgumentParser(prog="prose.py", description="Check the language of the code.")
    parser.add_argument("--show", metavar="FOLDER", help="list every finding below a folder")
    parser.add_argument("--lower", action="store_true", help="write smaller numbers into the baseline")
    parser.add_argument("--message", metavar="FILE", help="check the subject of a commit message")
    options = parser.parse_args(arguments)
    if options.message is not None:
        subject = Path(options.message).read_text(encoding="utf-8").partition("\n")[0]
        for failure in (failures := subject_failures([subject])):
            print(failure)
        return 1 if failures else 0
    findings = check_tree(ROOT)
    if options.show is not None:
        report([finding for finding in findings if finding.path.startswith(options.show.rstrip("/"))])
        return 0
    baseline, found = read_baseline(BASELINE.read_text()), count(findings)
    if options.lower:
        BASELINE.write_text(write_baseline(lower(baseline, found)))
        return 0
    failures = []
    for folder, kind in excess(baseline, found):
        report([finding for finding in findings if (folder_of(finding.path), finding.kind) == (folder, kind)])
        failures.append(f"{folder} has {found[folder, kind]} {kind}; tools/prose.toml allows {baseline[folder, kind]}")
    if (landed := git("show", "origin/main:tools/prose.toml")) is not None:
        raised = excess(read_baseline(landed), baseline)
        failures += [f"tools/prose.toml: {kind} of {folder} are above those of origin/main" for folder, kind in raised]
    failures += subject_failures(branch_subjects())
    for failure in failures:
        print(failure)
    if not failures and lower(baseline, found) != baseline:
        print("There are fewer findings than tools/prose.toml allows: python tools/prose.py --lower")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
