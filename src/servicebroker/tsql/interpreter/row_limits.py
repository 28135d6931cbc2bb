"""SET ROWCOUNT: how many rows a statement gives or changes at most."""

from __future__ import annotations

from servicebroker.tsql.relational import Translated
from servicebroker.tsql.tokens import closing_place, tokenize

_CHANGES = ("INSERT", "UPDATE", "DELETE", "MERGE")


def limited_change(text: str, most: int) -> str:
    """A statement that changes rows, with TOP; one that says TOP itself takes the smaller number. Others stay."""
    tokens = tokenize(text)
    if not tokens.words or tokens.words[0] not in (*_CHANGES, "WITH"):
        return text  # ON DELETE CASCADE changes nothing yet
    depth = 0
    for place, word in enumerate(tokens.words):
        depth += (word == "(") - (word == ")")
        if depth or word not in (*_CHANGES, "SELECT"):
            continue
        if word == "SELECT":
            return text
        start = end = tokens.ends[place]
        number = str(most)
        close = closing_place(tokens.words, place + 2) if tokens.words[place + 1] == "TOP" else None
        if close is not None:
            own = text[tokens.starts[place + 2] : tokens.ends[close]]
            number, end = f"IIF({own} < {most}, {own}, {most})", tokens.ends[close]
        return f"{text[:start]} TOP ({number}){text[end:]}"
    return text


def limited_query(done: Translated, most: int) -> Translated:
    """A query, translated, that ends after so many rows."""
    return done._replace(sql=f"SELECT * FROM ({done.sql}) AS tsql_limited LIMIT {most}")
