"""Texts of T-SQL made from real scripts."""

from __future__ import annotations

import random
import re
from collections.abc import Callable, Iterable
from pathlib import Path

from servicebroker.cli.sqlcmd import decode_script
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.tokens import NUMBER, STRING, VARIABLE, batches

Piece = list[str]  # tokens, each with the blanks before it

_ROOT = Path(__file__).parents[3]
_SNIPPET = re.compile(r"```sql\n(.*?)```", re.DOTALL)
MAX_TOKENS = 400  # the most tokens of a batch; longer ones are cut
MAX_TEXT_CHARS = 100_000
_TYPES = (
    "int",
    "bigint",
    "tinyint",
    "bit",
    "decimal(38, 10)",
    "money",
    "float",
    "real",
    "nvarchar(max)",
    "varchar(3)",
    "char(1)",
    "varbinary(max)",
    "binary(2)",
    "uniqueidentifier",
    "xml",
    "sql_variant",
    "datetime",
    "datetime2(7)",
    "datetimeoffset",
    "date",
    "time(0)",
    "smalldatetime",
    "sysname",
    "rowversion",
    "text",
    "image",
    "hierarchyid",
    "geography",
)
_LITERALS = (
    "0",
    "-1",
    "2147483648",
    "9223372036854775808",
    "1" * 39,
    "1e308",
    "1e999",
    ".",
    "0x",
    "0x" + "F" * 20,
    "$1",
    "1.5",
    "NULL",
    "''",
    "N''",
    "' '",
    "'\u00e4\U0001f600'",
    "'x'",
    "'1'",
    "'2020-02-30'",
    "'20200101'",
    "'<a>'",
    "N'<a/>'",
    "'[1'",
    "'{}'",
    "'" + "y" * 9000 + "'",
    "'\0'",
    "'\ud800'",
    "'00000000-0000-0000-0000-000000000000'",
    "DEFAULT",
    "@@ROWCOUNT",
    "@undeclared",
)
_ODD_TEXTS = (
    "\0",
    "\u00a7",
    "\ufeff",
    "\u2028",
    "\ud800",
    "\U0001f600",
    "'",
    '"',
    "[",
    "]",
    "/*",
    "*/",
    "--",
    "\nGO\n",
    ";",
    ";;",
    "(",
    ")",
    "@",
    "#",
    "##",
    "$",
    "{",
    "}",
    "::",
    ".",
    "..",
    "\\",
    "$(x)",
    "\n:r nowhere.sql\n",
    "\nGO 99999\n",
    "\r",
    "\u0663",
)


class Corpus:
    """Batches of real scripts, as tokens."""

    def __init__(self, texts: Iterable[str]) -> None:
        self.pieces: list[Piece] = []
        self.literals: set[str] = set()
        for text in texts:
            self._add(text)
        self.tokens = sorted({token.strip() for piece in self.pieces for token in piece})
        if not self.pieces:
            raise ValueError("The scripts have no batch that can be read.")

    def _add(self, text: str) -> None:
        """Add the batches of a script up to the first one that cannot be read."""
        try:
            for batch in batches(text):
                tokens = batch.tokens
                ends = [tokens.starts[0], *tokens.ends]
                piece = [tokens.source[ends[index] : tokens.ends[index]] for index in range(len(tokens.words) - 1)]
                kinds = zip(piece, tokens.kinds, strict=False)
                self.literals |= {token.strip() for token, kind in kinds if kind in (NUMBER, STRING, VARIABLE)}
                self.pieces.append(piece)
        except TsqlError:
            return

    def make_text(self, number: int) -> str:
        """Return the text of the case with this number, the same one each time."""
        draw = random.Random(f"script {number}")
        parts = []
        for _ in range(draw.choice((1, 1, 2, 3))):
            piece = self._draw_piece(draw)
            for _ in range(draw.choice((0, 1, 1, 2, 4))):
                piece = draw.choice(_CHANGES)(self, piece, draw) or [" "]
            parts.append("".join(piece))
        return draw.choice(("\n", "\n", ";\n", "\nGO\n")).join(parts)[:MAX_TEXT_CHARS]

    def _draw_piece(self, draw: random.Random) -> Piece:
        piece = draw.choice(self.pieces)
        if len(piece) <= MAX_TOKENS:
            return [*piece]
        start = draw.randrange(len(piece) - MAX_TOKENS)
        return piece[start : start + MAX_TOKENS]

    def draw_token(self, draw: random.Random) -> str:
        """Return a token of any script, a literal or a type."""
        return " " + draw.choice((draw.choice(self.tokens), draw.choice(_LITERALS), draw.choice(_TYPES)))


def read_scripts(paths: Iterable[Path]) -> Iterable[str]:
    """Yield the scripts of files, and of the .sql files in folders."""
    for path in paths:
        for file in sorted(path.rglob("*.sql")) if path.is_dir() else [path]:
            yield decode_script(file.read_bytes())


def own_scripts() -> Iterable[str]:
    """Yield the scripts of the repository: tests, pages and examples."""
    yield from read_scripts([_ROOT / "tests" / "grammar", _ROOT / "tests" / "tsql_scripts", _ROOT / "examples"])
    for page in sorted((_ROOT / "docs").rglob("*.md")):
        yield from _SNIPPET.findall(page.read_text())


def _delete(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    start, end = _part(piece, draw)
    return piece[:start] + piece[end:]


def _repeat(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    start, end = _part(piece, draw)
    return piece[:start] + piece[start:end] * draw.choice((2, 2, 3, 100)) + piece[end:]


def _move(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    start, end = _part(piece, draw)
    rest = piece[:start] + piece[end:]
    index = draw.randint(0, len(rest))
    return rest[:index] + piece[start:end] + rest[index:]


def _replace(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    index = draw.randrange(len(piece))
    return [*piece[:index], corpus.draw_token(draw), *piece[index + 1 :]]


def _replace_literal(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    places = [place for place, token in enumerate(piece) if token.strip() in corpus.literals]
    if not places:
        return _replace(corpus, piece, draw)
    place = draw.choice(places)
    return [*piece[:place], " " + draw.choice(_LITERALS), *piece[place + 1 :]]


def _insert(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    index = draw.randint(0, len(piece))
    return [*piece[:index], corpus.draw_token(draw), *piece[index:]]


def _insert_odd(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    index = draw.randint(0, len(piece))
    return [*piece[:index], draw.choice(_ODD_TEXTS), *piece[index:]]


def _cut(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    return piece[: draw.randint(1, len(piece))]


def _splice(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    inserted = draw.choice(corpus.pieces)
    start, end = _part(inserted, draw)
    index = draw.randint(0, len(piece))
    return [*piece[:index], *inserted[start:end], *piece[index:]]


def _nest(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    start, end = _part(piece, draw)
    opening, closing = draw.choice(
        (("(", ")"), (" BEGIN ", " END "), (" CASE WHEN 1 = 1 THEN ", " END "), (" (SELECT ", ")"), (" NOT ", ""))
    )
    times = draw.choice((1, 1, 5, 300))
    return [*piece[:start], *[opening] * times, *piece[start:end], *[closing] * times, *piece[end:]]


def _change_characters(corpus: Corpus, piece: Piece, draw: random.Random) -> Piece:
    text = "".join(piece)
    for _ in range(draw.randint(1, 3)):
        index = draw.randrange(len(text)) if text else 0
        text = (
            text[:index] + draw.choice(("", chr(draw.randrange(1, 0x250)), draw.choice(_ODD_TEXTS))) + text[index + 1 :]
        )
    return [text]


def _part(piece: Piece, draw: random.Random) -> tuple[int, int]:
    start = draw.randrange(len(piece))
    return start, min(len(piece), start + draw.choice((1, 1, 2, 3, 8, 40)))


_CHANGES: tuple[Callable[[Corpus, Piece, random.Random], Piece], ...] = (
    _delete,
    _repeat,
    _move,
    _replace,
    _replace,
    _replace_literal,
    _replace_literal,
    _insert,
    _insert_odd,
    _cut,
    _splice,
    _splice,
    _nest,
    _change_characters,
)
