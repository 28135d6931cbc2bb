"""The lexer: text to words, strings, variables, numbers and signs, and the batches between the GO lines."""

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
    |(?P<n>0[xX][0-9a-fA-F]*+|(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?\d++)?+|[$\u00a2-\u00a5\u20a0-\u20b1]\d++\.?+\d*+)
    |(?P<comment>/\*)
    |(?P<o><=|>=|<>|!=|!<|!>|\+=|-=|\*=|/=|%=|&=|\|=|\^=|::|[-+*/%=<>(),;.&|^~:!?{}\\$`])
    |(?P<end>\Z))
    """,
    re.VERBOSE,
)
# a compound assignment, and what it does with the value before
COMPOUND_OPERATORS = {"+=": "+", "-=": "-", "*=": "*", "/=": "/", "%=": "%", "&=": "&", "|=": "|", "^=": "^"}
_BLANK = re.compile(r"(?:[\s\ufeff]++|--[^\n]*+)*+")
_COMMENT_SIGN = re.compile(r"/\*|\*/")
_LITERAL_KINDS = {"v": (VARIABLE, "@"), "s": (STRING, "'"), "q": (QUOTED, "["), "n": (NUMBER, "0")}


class Tokens(NamedTuple):
    """The tokens of a batch, column by column; the last one is END.

    `words` holds what the parser compares: a plain word in upper case, a sign as it is, "@" for a variable, "'" for a
    string, "[" for a quoted name, "0" for a number, "" at the end. `starts` and `ends` are offsets into `source`.
    """

    source: str
    words: list[str]
    kinds: list[int]
    starts: list[int]
    ends: list[int]
    lines: list[int]  # offsets of the line breaks of the source

    def line(self, index: int) -> int:
        """The line of a token, from 1."""
        return bisect_right(self.lines, self.starts[index]) + 1

    def text(self, index: int) -> str:
        """The token as it is written."""
        return self.source[self.starts[index] : self.ends[index]]


def find_closing(words: Sequence[str], opening: int) -> int | None:
    """The place of the parenthesis that closes the one at `opening`; None where it is not closed."""
    depth = 0
    for place in range(opening, len(words)):
        depth += {"(": 1, ")": -1}.get(words[place], 0)
        if depth == 0:
            return place
    return None


class Batch(NamedTuple):
    """What stands between two lines with GO; to be run `times` times."""

    tokens: Tokens
    times: int = 1


def batches(source: str) -> Iterator[Batch]:
    """The batches of a script one by one, so that one that cannot be read does not stop those before it.

    Raises:
        TsqlError: 105 a string or name without its end, 113 a comment without its end, 102 a sign of no language.
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
    """The tokens of a text in which GO is a word like any other.

    Raises:
        TsqlError: as `batches`.
    """
    lines = [match.start() for match in re.finditer("\n", source)]
    return _read_batch(source, lines, 0, separate=False)[0]


_GO = re.compile(r"[ \t]*+([0-9]{1,9}+)?+[ \t]*+;?+[ \t]*+(?:--[^\n]*+)?+\r?+(?:\n|\Z)")


def _read_batch(source: str, lines: list[int], place: int, *, separate: bool = True) -> tuple[Tokens, int, int]:
    """The tokens from `place` to GO or the end; where the next batch begins; how often to run this one."""
    words: list[str] = []
    kinds: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    match = _TOKEN.match
    length = len(source)
    first = place
    times = 1
    while True:
        found = match(source, place)
        if found is None:
            raise _lexical_error(source, lines, place)
        group = found.lastgroup
        start, end = found.span(found.lastindex)  # type: ignore[arg-type] # each alternative has a name
        if group == "w":
            word = source[start:end].upper()
            if word == "GO" and separate and _is_first_on_line(source, start, first):
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


def _is_first_on_line(source: str, place: int, first: int) -> bool:
    before = source[max(source.rfind("\n", 0, place) + 1, first) : place]
    return not before.strip(" \t\r\ufeff")


def _comment_end(source: str, lines: list[int], place: int) -> int:
    """Comments nest."""
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
    blank = _BLANK.match(source, place)
    place = blank.end() if blank else place
    line = bisect_right(lines, place) + 1
    if source[place : place + 2].upper() == "N'":
        place += 1
    if source[place] in "'\"[":
        shown = source[place + 1 : place + 31].split("\n")[0]
        text = f"Unclosed quotation mark after the character string '{shown}'."
        return TsqlError(105, text, severity=15, line=line)
    return TsqlError(102, f"Incorrect syntax near '{source[place]}'.", severity=15, line=line)


def unquote(text: str) -> str:
    """A name without its brackets or quotation marks."""
    if text[0] == "[":
        return text[1:-1].replace("]]", "]")
    if text[0] == '"':
        return text[1:-1].replace('""', '"')
    return text


def string_value(text: str) -> str:
    """What a string literal says."""
    return text[text.index("'") + 1 : -1].replace("''", "'")
