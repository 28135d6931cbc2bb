"""The text of values of type xml in Python. tsql.xml_parsed in store/tsql/xml.sql writes the same text."""

from __future__ import annotations

import re

from servicebroker.model.xml import content_source, content_text, parse_content

_TOKEN = re.compile(r"""<!--.*?-->|<!\[CDATA\[.*?\]\]>|<\?.*?\?>|<(?:[^<>"']|"[^"]*"|'[^']*')*>|[^<]+""", re.DOTALL)
_REWRITTEN = re.compile(r"(?:^|>)[ \t\r\n]+(?:<|$)|&#")  # text that may be white space alone, and references
_WHITE_SPACE = " \t\r\n"
_REFERENCES = {"&#9;": "&#x9;", "&#10;": "&#xA;", "&#13;": "&#x0D;"}  # as lxml writes them, and as SQL Server does


def write_xml(body: bytes) -> str:
    """Return content as SQL Server writes it, without its declaration and without text of white space alone.

    White space stays where references or CDATA sections write it, and in content with xml:space.

    Raises:
        NotXml: as `parse_content`.
    """
    text = content_text(parse_content(body))
    if _REWRITTEN.search(text) is None:
        return text
    source = content_source(body)
    if "xml:space" in source:
        return text
    tokens = (token for token in _TOKEN.findall(source) if token.strip(_WHITE_SPACE))
    text = content_text(parse_content("".join(tokens).encode()))
    return "".join(map(_write_token, _TOKEN.findall(text)))


def _write_token(token: str) -> str:
    """Write a token of lxml's text. The last character of white space alone becomes a reference."""
    if token.startswith(("<!", "<?")):
        return token
    if not token.strip(_WHITE_SPACE):
        return f"{token[:-1]}&#x{ord(token[-1]):02X};"
    for written, reference in _REFERENCES.items():
        token = token.replace(written, reference)
    return token
