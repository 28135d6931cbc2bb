"""XML: columns of all types, at times an XSD, and a document with values that fit or do not."""

from __future__ import annotations

import random
from typing import Any

from servicebroker.pipeline.decoding.columns import Column
from servicebroker_lab.fuzzing.json_cases import columns_of

XSD = (
    b'<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="r"><xs:complexType><xs:sequence>'
    b'<xs:any minOccurs="0" maxOccurs="unbounded" processContents="lax"/></xs:sequence>'
    b'<xs:anyAttribute processContents="skip"/></xs:complexType></xs:element></xs:schema>'
)
TEXTS = ("", "1", "-7.25", "true", "2030-01-02", "text", "&amp;&lt;", "<![CDATA[<a>]]>", "<!-- - -->", "<?p i?>", "é")
PROLOGS = (
    "",
    "<?xml version='1.0'?>",
    "<!DOCTYPE r [<!ENTITY e 'x'><!ENTITY f '&e;&e;&e;'>]>",  # the only one that declares the entity f
    "<?xml version='1.1'?>",
)
ENCODINGS = ("utf-8", "utf-8", "utf-8-sig", "utf-16", "utf-16-be", "latin-1")


def make(draw: random.Random) -> tuple[dict[str, Any], bytes]:
    """Return options of the decoder, and a body."""
    columns = [_with_random_source(column, draw) for column in columns_of(draw)]
    options: dict[str, Any] = {"columns": columns}
    if draw.random() < 0.4:
        options["schema"] = XSD
    parts = "".join(_element(column.name, draw, 3) for column in columns for _ in range(draw.choice((0, 1, 1, 2))))
    text = f"{draw.choice(PROLOGS)}<r{_attributes(draw)}>{parts}</r>"
    return options, text.encode(draw.choice(ENCODINGS), "xmlcharrefreplace")


def _with_random_source(column: Column, draw: random.Random) -> Column:
    """Return the column with a random path to an element or attribute."""
    source = draw.choice((column.name, column.name, f"@{column.name}", f"{column.name}/x", f"{column.name}/@c0"))
    return column._replace(source=source)


def _element(name: str, draw: random.Random, levels: int) -> str:
    inner = draw.choice(TEXTS)
    if levels and draw.random() < 0.4:
        inner += "".join(_element("x", draw, levels - 1) for _ in range(draw.randint(1, 3)))
    if draw.random() < 0.05:
        inner += "&f;"  # undeclared in most documents
    return f"<{name}{_attributes(draw)}>{inner}</{name}>"


def _attributes(draw: random.Random) -> str:
    return "".join(f' c{number}="{draw.choice(("1", "a", "&lt;"))}"' for number in range(draw.choice((0, 0, 1, 3))))
