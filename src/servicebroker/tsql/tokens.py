"""Lexer: splits text into words, strings, variables, numbers and signs, and a script into batches at its GO lines."""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from typing import NamedTuple

from servicebroker.tsql.statement_errors import TsqlError

WORD, QUOTED, STRING, VARIABLE, NUMBER, SIGN, END = range(7)

_TOKEN = re.compile(
    r"""(?:[\s\ufeff]++|--[^\n]*+)*+(?:
    (?P<s>[nN]?+'[^']*+(?:''[^']*+)*+')
    |(?P<w>[^\W\d][\w$@\#]*+|\#\#?+[\w$@\#]++)
    |(?P<v>@[\w$\#@]*+)
    |(?P<q>\[[^\]]*+(?:\]\][^\]]*+)*+\]|"[^"]*+(?:""[^"]*+)*+")
    |(?P<n>0[xX][0-9a-fA-F]*+|(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?\d++)?+|[$\u00a2-\u00a5\u09f2\u09f3\u0e3f\u17db\u20a0-\u20b1\ufdfc\ufe69\uff04\uffe0\uffe1\uffe5\uffe6]\d++\.?+\d*+)
    |(?P<comment>/\*)
    |(?P<o><=|>=|<>|!=|!<|!>|\+=|-=|\*=|/=|%=|&=|\|=|\^=|::|[-+*/%=<>(),;.&|^~:!?{}\\$`])
    |(?P<end>\Z))
    """,
    re.VERBOSE,
)
# the operator behind each compound assignment
COMPOUND_OPERATORS = {"+=": "+", "-=": "-", "*=": "*", "/=": "/", "%=": "%", "&=": "&", "|=": "|", "^=": "^"}
_BLANK = re.compile(r"(?:[\s\ufeff]++|--[^\n]*+)*+")
_COMMENT_SIGN = re.compile(r"/\*|\*/")
_LITERAL_KINDS = {"v": (VARIABLE, "@"), "s": (STRING, "'"), "q": (QUOTED, "["), "n": (NUMBER, "0")}


class Tokens(NamedTuple):
    """The tokens of a batch, stored column by column. The last token is END.

    `words` holds a plain word in upper case and a sign as it is. Other tokens have a marker: "@" for a variable, "'"
    for a string, "[" for a quoted name, "0" for a number, "" at the end. `starts` and `ends` are offsets into `source`.
    """

    source: str
    words: list[str]
    kinds: list[int]
    starts: list[int]
    ends: list[int]
    lines: list[int]  # offsets of the line breaks of the source

    def line(self, index: int) -> int:
        """Return the line of a token, counted from 1."""
        return bisect_right(self.lines, self.starts[index]) + 1

    def text(self, index: int) -> str:
        """Return the source text of a token."""
        return self.source[self.starts[index] : self.ends[index]]


def find_closing(words: Sequence[str], opening: int) -> int | None:
    """Return the index of the parenthesis that closes the one at `opening`, or None if it stays open."""
    depth = 0
    for place in range(opening, len(words)):
        depth += {"(": 1, ")": -1}.get(words[place], 0)
        if depth == 0:
            return place
    return None


class Batch(NamedTuple):
    """The text between two GO lines, to be run `times` times."""

    tokens: Tokens
    times: int = 1


def batches(source: str) -> Iterator[Batch]:
    """Yield the batches of a script one by one, so that an unreadable batch does not stop those before it.

    Raises:
        TsqlError: 105 a string or name without its end, 113 a comment without its end, 102 a character outside the
            language.
    """
    lines = [match.start() for match in re.finditer("\n", source)]
    place = 0
    while place < len(source) or place == 0:
        tokens, place, times = _read_batch(source, lines, place)
        if len(tokens.words) > 1:
            yield Batch(tokens, times)
        if place >= len(source):
            return


def tokenize(source: str) -> Tokens:
    """Return the tokens of a text in which GO has no special meaning.

    Raises:
        TsqlError: see `batches`.
    """
    lines = [match.start() for match in re.finditer("\n", source)]
    return _read_batch(source, lines, 0, separate=False)[0]


_GO = re.compile(r"[ \t]*+([0-9]{1,9}+)?+[ \t]*+;?+[ \t]*+(?:--[^\n]*+)?+\r?+(?:\n|\Z)")


def _read_batch(source: str, lines: list[int], place: int, *, separate: bool = True) -> tuple[Tokens, int, int]:
    """Read tokens from `place` up to GO or the end. Return them, the start of the next batch, and the repeat count."""
    words: list[str] = []
    kinds: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    match = _TOKEN.match
    length = len(source)
    batch_start = place
    times = 1
    while True:
        token = match(source, place)
        if token is None:
            raise _lexical_error(source, lines, place)
        group = token.lastgroup
        start, end = token.span(token.lastindex)  # type: ignore[arg-type] # each alternative of the pattern is named
        if group == "w":
            word = source[start:end].upper()
            if word == "GO" and separate and _is_first_on_line(source, start, batch_start):
                separator = _GO.match(source, end)
                if separator:
                    times = int(separator[1] or 1)
                    place = separator.end()
                    break
            kinds.append(WORD)
            words.append(word)
        elif group == "o":
            kinds.append(SIGN)
            words.append(source[start:end])
        elif group == "comment":
            place = _comment_end(source, lines, start)
            continue
        elif group == "end":
            place = length
            break
        else:
            kind, word = _LITERAL_KINDS[group]  # type: ignore[index]
            kinds.append(kind)
            words.append(word)
        starts.append(start)
        ends.append(end)
        place = end
    words.append("")
    kinds.append(END)
    starts.append(min(place, length))
    ends.append(min(place, length))
    return Tokens(source, words, kinds, starts, ends, lines), place, times


def _is_first_on_line(source: str, place: int, batch_start: int) -> bool:
    """Check that only blanks precede `place` on its line, which GO requires."""
    before = source[max(source.rfind("\n", 0, place) + 1, batch_start) : place]
    return not before.strip(" \t\r\ufeff")


def _comment_end(source: str, lines: list[int], place: int) -> int:
    """Return the index behind a comment. Comments nest."""
    depth, at = 1, place + 2
    while depth:
        sign = _COMMENT_SIGN.search(source, at)
        if sign is None:
            line = bisect_right(lines, place) + 1
            raise TsqlError(113, "Missing end comment mark '*/'.", severity=15, line=line)
        depth += 1 if sign.group() == "/*" else -1
        at = sign.end()
    return at


def _lexical_error(source: str, lines: list[int], place: int) -> TsqlError:
    """Build the error for text at `place` that starts no token."""
    blank = _BLANK.match(source, place)
    place = blank.end() if blank else place
    line = bisect_right(lines, place) + 1
    if source[place : place + 2].upper() == "N'":
        place += 1
    if source[place] in "'\"[":
        excerpt = source[place + 1 : place + 31].split("\n")[0]
        text = f"Unclosed quotation mark after the character string '{excerpt}'."
        return TsqlError(105, text, severity=15, line=line)
    return TsqlError(102, f"Incorrect syntax near '{source[place]}'.", severity=15, line=line)


def unquote(text: str) -> str:
    """Return a name without its brackets or quotation marks."""
    if text[0] == "[":
        return text[1:-1].replace("]]", "]")
    if text[0] == '"':
        return text[1:-1].replace('""', '"')
    return text


def string_value(text: str) -> str:
    """Return the value of a string literal, without quotation marks and the N prefix."""
    return text[text.index("'") + 1 : -1].replace("''", "'")
