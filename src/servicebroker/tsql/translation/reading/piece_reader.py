"""A token reader for a piece of a statement: elements of tables, options, names."""

from __future__ import annotations

from servicebroker.tsql.parser.token_reader import TokenReader
from servicebroker.tsql.tokens import VARIABLE, unquote
from servicebroker.tsql.translation.reading.syntax_tree import Slice


class PieceReader(TokenReader):
    """Reads the tokens of a piece, and returns slices of it for parsing."""

    def __init__(self, piece: Slice) -> None:
        super().__init__(piece.alone())
        self.piece = piece

    def quoted(self) -> str:
        """The next word without brackets, in lower case, "" after the end."""
        return unquote(self.tokens.text(self.at)).lower() if self.word else ""

    def dotted(self) -> Slice:
        """Read a name of several parts, or a variable."""
        start = self.at
        if self.tokens.kinds[start] == VARIABLE:
            self.at += 1
        else:
            self.name()
        return self.piece.part(start, self.at)

    def inside(self) -> Slice:
        """Read parentheses, and return the slice between them."""
        start = self.at
        self.parenthesized()
        return self.piece.part(start + 1, self.at - 1)
