"""WITH XMLNAMESPACES: prefixes for the XML methods and FOR XML of a statement."""

from __future__ import annotations

from servicebroker.tsql.statement_errors import TsqlError, syntax_error
from servicebroker.tsql.tokens import STRING, string_value, unquote
from servicebroker.tsql.translation.reading.syntax_tree import Slice
from servicebroker.tsql.translation.text_writer import Writer


def take_namespaces(writer: Writer, piece: Slice) -> Slice:
    """Return the statement after WITH XMLNAMESPACES (...), and store its prefixes in the writer."""
    words = piece.words
    if words[:3] != ["WITH", "XMLNAMESPACES", "("]:
        return piece
    end = piece.closing(2)
    for part in piece.part(3, end).split():
        _declare(writer, part)
    rest = piece.part(end + 1, len(words))
    if rest.words[:1] != [","]:
        return rest
    return _with_common(rest)


def _with_common(rest: Slice) -> Slice:
    """Turn `, name AS (...) SELECT` into WITH name AS (...) SELECT."""
    from servicebroker.tsql.translation.reading.syntax_tree import slice_text  # at run time: the text is parsed anew

    return slice_text("WITH " + rest.part(1, len(rest.words)).text)


def _declare(writer: Writer, declaration: Slice) -> None:
    """Store one prefix in the writer."""
    words = declaration.words
    if len(words) == 2 and words[0] == "DEFAULT":
        prefix, place = "", 1
    elif len(words) == 3 and words[1] == "AS":
        prefix, place = unquote(declaration.tokens.text(declaration.first + 2)), 0
    else:
        raise syntax_error(declaration.text[:40], declaration.line())
    if declaration.tokens.kinds[declaration.first + place] != STRING:
        raise syntax_error(declaration.text[:40], declaration.line())
    if prefix in writer.namespaces:
        raise TsqlError(2341, f"WITH XMLNAMESPACES: the prefix '{prefix}' is declared twice.")
    writer.namespaces[prefix] = string_value(declaration.tokens.text(declaration.first + place))
