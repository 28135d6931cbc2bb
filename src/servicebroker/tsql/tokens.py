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
    |(?P<n>0[xX][0-9a-fA-F]*+|(?:\d++\.?+\d*+|\.\d++)(?:[eE][+-]?\d*+)?+|[$\u00a2-\u00a5\u09f2\u09f3\u0e3f\u17db\u20a0-\u20b1\ufdfc\ufe69\uff04\uffe0\uffe1\uffe5\uffe6]\d++\.?+\d*+)
    |(?P<comment>/\*)
    |(?P<o><=|>=|<>|!=|!<|!>|\+=|-=|\*=|/=|%=|&=|\|=|\^=|::|[-+*/%=<>(),;.&|^~:!?{}\\$`])
    |(?P<end>\Z))
    """,
    re.VERBOSE,
)
# the operator of each compound assignment
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


def complete_exponent(number: str) -> str:
    """Return a number literal with digits in its exponent: 2E and 2E+ are 2E0."""
    return f"{number}0" if number[-1] in "eE+-" and number[:2].lower() != "0x" else number


def find_closing(words: Sequence[str], opening: int) -> int | None:
    """Return the index of the closing parenthesis for the parenthesis at `opening`; None if there is none."""
    depth = 0
    for index in range(opening, len(words)):
        depth += {"(": 1, ")": -1}.get(words[index], 0)
        if depth == 0:
            return index
    return None


class Batch(NamedTuple):
    """The text between two GO lines, to be run `times` times."""

    tokens: Tokens
    times: int = 1


def batches(source: str) -> Iterator[Batch]:
    """Yield the batches of a script one by one, so that batches before an unreadable one can run.

    Raises:
        TsqlError: 105 a string or name without its end, 113 a comment without its end, 102 a character outside the
            language.
    """
    lines = [match.start() for match in re.finditer("\n", source)]
    offset = 0
    while offset < len(source) or offset == 0:
        tokens, offset, times = _read_batch(source, lines, offset)
        if len(tokens.words) > 1:
            yield Batch(tokens, times)
        if offset >= len(source):
            return


def tokenize(source: str) -> Tokens:
    """Return the tokens of a text in which GO has no special meaning.

    Raises:
        TsqlError: see `batches`.
    """
    lines = [match.start() for match in re.finditer("\n", source)]
    return _read_batch(source, lines, 0, separate=False)[0]


_GO = re.compile(r"[ \t]*+([0-9]{1,9}+)?+[ \t]*+;?+[ \t]*+(?:--[^\n]*+)?+\r?+(?:\n|\Z)")


def _read_batch(source: str, lines: list[int], offset: int, *, separate: bool = True) -> tuple[Tokens, int, int]:
    """Read tokens from `offset` up to GO or the end. Return them, the start of the next batch, and the repeat count."""
    words: list[str] = []
    kinds: list[int] = []
    starts: list[int] = []
    ends: list[int] = []
    match = _TOKEN.match
    length = len(source)
    batch_start = offset
    times = 1
    while True:
        token = match(source, offset)
        if token is None:
            raise _lexical_error(source, lines, offset)
        group = token.lastgroup
        start, end = token.span(token.lastindex)  # type: ignore[arg-type] # each alternative of the pattern is named
        if group == "w":
            word = source[start:end].upper()
            if word == "GO" and separate and _is_first_on_line(source, start, batch_start):
                separator = _GO.match(source, end)
                if separator:
                    times = int(separator[1] or 1)
                    offset = separator.end()
                    break
            kinds.append(WORD)
            words.append(word)
        elif group == "o":
            kinds.append(SIGN)
            words.append(source[start:end])
        elif group == "comment":
            offset = _comment_end(source, lines, start)
            continue
        elif group == "end":
            offset = length
            break
        else:
            kind, word = _LITERAL_KINDS[group]  # type: ignore[index]
            kinds.append(kind)
            words.append(word)
        starts.append(start)
        ends.append(end)
        offset = end
    words.append("")
    kinds.append(END)
    starts.append(min(offset, length))
    ends.append(min(offset, length))
    return Tokens(source, words, kinds, starts, ends, lines), offset, times


def _is_first_on_line(source: str, offset: int, batch_start: int) -> bool:
    """Check that only blanks precede `offset` on its line, which GO requires."""
    before = source[max(source.rfind("\n", 0, offset) + 1, batch_start) : offset]
    return not before.strip(" \t\r\ufeff")


def _comment_end(source: str, lines: list[int], offset: int) -> int:
    """Return the index after a comment. Comments nest."""
    depth, position = 1, offset + 2
    while depth:
        sign = _COMMENT_SIGN.search(source, position)
        if sign is None:
            line = bisect_right(lines, offset) + 1
            raise TsqlError(113, "Missing end comment mark '*/'.", severity=15, line=line)
        depth += 1 if sign.group() == "/*" else -1
        position = sign.end()
    return position


def _lexical_error(source: str, lines: list[int], offset: int) -> TsqlError:
    """Build the error for text at `offset` that starts no token."""
    blank = _BLANK.match(source, offset)
    offset = blank.end() if blank else offset
    line = bisect_right(lines, offset) + 1
    if source[offset : offset + 2].upper() == "N'":
        offset += 1
    if source[offset] in "'\"[":
        excerpt = source[offset + 1 : offset + 31].split("\n")[0]
        text = f"Unclosed quotation mark after the character string '{excerpt}'."
        return TsqlError(105, text, severity=15, line=line)
    return TsqlError(102, f"Incorrect syntax near '{source[offset]}'.", severity=15, line=line)


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
