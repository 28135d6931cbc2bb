"""The reason why a text is not well-formed XML, with SQL Server's numbers and texts.

A parser has refused the text. `find_problem` reads it again up to the first violation. A place is the character at
which SQL Server's reader stops; if the input ends too early, the last one. PostgreSQL has the same
rules in `store/tsql/xml.sql`; one table of tests holds both together.
"""

from __future__ import annotations

import re
from typing import NamedTuple

MAXIMUM_DEPTH = 128  # nested elements in the type xml

TEXTS = {
    9400: "unexpected end of input",
    9402: "unable to switch the encoding",
    9410: "whitespace expected",
    9411: "semicolon expected",
    9412: "'>' expected",
    9413: "A string literal was expected",
    9414: "equal expected",
    9415: "well formed check: no '<' in attribute value",
    9416: "hexadecimal digit expected",
    9417: "decimal digit expected",
    9420: "illegal xml character",
    9421: "illegal name character",
    9422: "incorrect document syntax",
    9423: "incorrect CDATA section syntax",
    9424: "incorrect comment syntax",
    9436: "end tag does not match start tag",
    9437: "duplicate attribute",
    9438: "text/xmldecl not at the beginning of input",
    9441: "incorrect xml declaration syntax",
    9448: "well formed check: undeclared entity",
    9451: "incorrect processing instruction syntax",
    9454: "no ']]>' in element content",
    9455: "illegal qualified name character",
    9456: "multiple colons in qualified name",
    9458: "redeclared prefix",
    9459: "undeclared prefix",
    9460: "non default namespace with empty uri",
}
TOO_DEEP = (6335, f"Elements are nested more than {MAXIMUM_DEPTH} deep.")
DTD = (6359, "A DTD is not allowed.")

_NAME = r"[^\W\d.\-:][\w.\-\u00b7]*"
_QUALIFIED_NAME = re.compile(rf"{_NAME}(?::{_NAME})?")
_SPACE = re.compile(r"[ \t\r\n]*")
_ATTRIBUTE = re.compile(rf"[ \t\r\n]+({_QUALIFIED_NAME.pattern})[ \t\r\n]*=[ \t\r\n]*(\"[^\"<]*\"|'[^'<]*')")
_REFERENCE = re.compile(rf"&(?:#x([0-9A-Fa-f]*)|#([0-9]*)|({_QUALIFIED_NAME.pattern})?)")
_INSTRUCTION = re.compile(rf"<\?({_QUALIFIED_NAME.pattern})?")
DECLARATION = re.compile(
    r"""<\?xml\s+version\s*=\s*(?:"1\.0"|'1\.0')(?:\s+encoding\s*=\s*(?:"[^"<>]*"|'[^'<>]*'))?"""
    r"""(?:\s+standalone\s*=\s*(?:"(?:yes|no)"|'(?:yes|no)'))?\s*\?>"""
)
_ILLEGAL = "[^\t\n\r\x20-\ud7ff\ue000-\ufffd\U00010000-\U0010ffff]"
_ILLEGAL_CHARACTER = re.compile(_ILLEGAL)
_SUSPECT_IN_TEXT = re.compile(rf"&|\]\]>|{_ILLEGAL}")
_SUSPECT_IN_VALUE = re.compile(rf"&|{_ILLEGAL}")
_ENTITIES = frozenset({"lt", "gt", "amp", "quot", "apos"})
_LONGEST_CODE = 7  # digits of the highest code point, 1114111


class XmlProblem(NamedTuple):
    """The first violation in a text: its number in SQL Server, and the text of the error."""

    number: int
    text: str


class _Violation(Exception):
    """A violation at the character `place`, counted from 0."""

    def __init__(self, number: int, place: int) -> None:
        super().__init__(number)
        self.number, self.place = number, place


def describe(number: int, text: str, place: int) -> XmlProblem:
    """Return the problem of this number at a character of the text."""
    if number not in TEXTS:
        return XmlProblem(*(TOO_DEEP if number == TOO_DEEP[0] else DTD))
    before = text[: max(0, min(place, len(text) - 1))]
    line = before.count("\n") + 1
    character = len(before) - (before.rfind("\n") + 1) + 1
    return XmlProblem(number, f"XML parsing: line {line}, character {character}, {TEXTS[number]}")


def find_problem(text: str) -> XmlProblem | None:
    """Return the first violation in the content of a value of type xml, None if the rules here find none."""
    try:
        _Reader(text).read()
    except _Violation as violation:
        return describe(violation.number, text, violation.place)
    return None


class _Reader:
    """One pass over a text. It raises the first violation."""

    def __init__(self, text: str) -> None:
        self.text = text
        self.open_names: list[str] = []
        self.scopes: list[dict[str, str]] = [{"xml": "http://www.w3.org/XML/1998/namespace"}]
        self.has_content = False

    def read(self) -> None:
        text = self.text
        place = 0
        while place < len(text):
            if text[place] != "<":
                place = self._read_text(place)
            elif text.startswith("<!--", place):
                place = self._read_comment(place)
            elif text.startswith("<![CDATA[", place):
                place = self._read_section(place)
            elif text.startswith("<?", place):
                place = self._read_instruction(place)
            elif text.startswith("<!", place):
                raise self._bad_markup(place)
            elif text.startswith("</", place):
                place = self._read_end_tag(place)
            else:
                place = self._read_start_tag(place)
        if self.open_names:
            raise _Violation(9400, len(text))

    def _read_text(self, place: int) -> int:
        end = self.text.find("<", place)
        end = len(self.text) if end < 0 else end
        self._check_characters(_SUSPECT_IN_TEXT, place, end)
        self.has_content |= not self.text[place:end].isspace()
        return end

    def _check_characters(self, suspect: re.Pattern[str], place: int, end: int) -> None:
        for match in suspect.finditer(self.text, place, end):
            if match[0] == "&":
                self._check_reference(match.start())
            else:
                raise _Violation(9454 if match[0] == "]]>" else 9420, match.start())

    def _check_reference(self, place: int) -> None:
        match = _REFERENCE.match(self.text, place)
        assert match is not None
        hexadecimal, decimal, name = match.groups()
        end = match.end()
        if hexadecimal == "":
            raise _Violation(9416, end)
        if decimal == "":
            raise _Violation(9417, end)
        if name is None and hexadecimal is None and decimal is None:
            raise _Violation(9421, end)
        if not self.text.startswith(";", end):
            raise _Violation(9411, end)
        if name is not None:
            if name not in _ENTITIES:
                raise _Violation(9448, end)
            return
        digits = (hexadecimal or decimal).lstrip("0")
        code = int(digits or "0", 16 if hexadecimal else 10) if len(digits) <= _LONGEST_CODE else -1
        if not 0 < code <= 0x10FFFF or _ILLEGAL_CHARACTER.match(chr(code)):
            raise _Violation(9420, end)

    def _read_comment(self, place: int) -> int:
        begin = place + len("<!--")
        end = self.text.find("--", begin)
        self._check_illegal(begin, end)
        if end < 0:
            raise _Violation(9424, len(self.text))
        if not self.text.startswith(">", end + 2):
            raise _Violation(9412, end + 2)
        return end + 3

    def _read_section(self, place: int) -> int:
        begin = place + len("<![CDATA[")
        end = self.text.find("]]>", begin)
        self._check_illegal(begin, end)
        if end < 0:
            raise _Violation(9423, len(self.text))
        self.has_content = True
        return end + 3

    def _check_illegal(self, begin: int, end: int) -> None:
        illegal = _ILLEGAL_CHARACTER.search(self.text, begin, len(self.text) if end < 0 else end)
        if illegal is not None:
            raise _Violation(9420, illegal.start())

    def _read_instruction(self, place: int) -> int:
        match = _INSTRUCTION.match(self.text, place)
        assert match is not None
        if match[1] is None:
            raise _Violation(9421 if match.end() < len(self.text) else 9400, match.end())
        end = self.text.find("?>", match.end())
        if match[1] == "xml":
            if place:
                raise _Violation(9438, match.end())
            if end < 0:
                raise _Violation(9400, len(self.text))
            if not DECLARATION.match(self.text):
                raise _Violation(9441, end + 1)
            return end + 2
        self._check_illegal(match.end(), end)
        if self.text[match.end() : match.end() + 1] not in ("", "?", " ", "\t", "\r", "\n"):
            raise _Violation(9421, match.end())
        if end < 0:
            raise _Violation(9451, len(self.text))
        return end + 2

    def _bad_markup(self, place: int) -> _Violation:
        """Return the violation of a <! that begins neither a comment nor a section."""
        if self.text.startswith("<!DOCTYPE", place) and not self.open_names:
            return _Violation(DTD[0], place)
        following = self.text[place + 2 : place + 3]
        return _Violation({"-": 9424, "[": 9423}.get(following, 9422), place + (3 if following in ("-", "[") else 2))

    def _read_end_tag(self, place: int) -> int:
        if not self.open_names and not self.has_content:
            raise _Violation(9455, place + 1)
        if place + 2 >= len(self.text):
            raise _Violation(9400, place + 2)
        name, end = self._read_name(place + 2)
        end = self._skip_space(end)
        if not self.text.startswith(">", end):
            raise _Violation(9412, end)
        if not self.open_names or self.open_names.pop() != name:
            raise _Violation(9436, end)
        self.scopes.pop()
        return end + 1

    def _read_name(self, place: int) -> tuple[str, int]:
        """Return the qualified name at a place, and where it ends."""
        match = _QUALIFIED_NAME.match(self.text, place)
        if match is None:
            raise _Violation(9455, place)
        if self.text.startswith(":", match.end()):
            has_colon = ":" in match[0]
            raise _Violation(9456 if has_colon else 9455, match.end() + (not has_colon))
        return match[0], match.end()

    def _skip_space(self, place: int) -> int:
        match = _SPACE.match(self.text, place)
        assert match is not None
        return match.end()

    def _read_start_tag(self, place: int) -> int:
        if place + 1 >= len(self.text):
            raise _Violation(9400, place + 1)
        name, end = self._read_name(place + 1)
        attributes: list[tuple[str, str]] = []
        while (attribute := _ATTRIBUTE.match(self.text, end)) is not None:
            self._check_characters(_SUSPECT_IN_VALUE, attribute.start(2), attribute.end(2))
            attributes.append((attribute[1], attribute[2][1:-1]))
            end = attribute.end()
        close = self._skip_space(end)
        is_empty = self.text.startswith("/>", close)
        if not is_empty and not self.text.startswith(">", close):
            raise self._bad_attribute(end, close, is_first=not attributes)
        close += is_empty
        self._check_namespaces(name, attributes, close)
        if len(self.open_names) >= MAXIMUM_DEPTH:
            raise _Violation(TOO_DEEP[0], close)
        self.has_content = True
        if not is_empty:
            self.open_names.append(name)
        else:
            self.scopes.pop()
        return close + 1

    def _bad_attribute(self, end: int, place: int, *, is_first: bool) -> _Violation:
        """Return the violation after the valid part of a start tag, which ends at `end`, with its space at `place`."""
        text = self.text
        if place >= len(text):
            return _Violation(9400, place)
        if text[place] == "/":
            return _Violation(9412, place + 1)
        if place == end:
            return _Violation(9455 if is_first else 9410, place)
        place = self._skip_space(self._read_name(place)[1])
        if not text.startswith("=", place):
            return _Violation(9414, place)
        place = self._skip_space(place + 1)
        if not text.startswith(("'", '"'), place):
            return _Violation(9413, place)
        # the value is not closed, or a < stands before its end
        bracket, closing = text.find("<", place), text.find(text[place], place + 1)
        if bracket >= 0 and (closing < 0 or bracket < closing):
            return _Violation(9415, bracket)
        return _Violation(9400, len(text))

    def _check_namespaces(self, name: str, attributes: list[tuple[str, str]], place: int) -> None:
        """Check the names of a start tag that ends at a place, and open the scope of its namespaces."""
        declared: dict[str, str] = {}
        for attribute, value in attributes:
            first, _, prefix = attribute.partition(":")
            if first != "xmlns":
                continue
            if prefix and not value:
                raise _Violation(9460, place)
            if prefix in declared:
                raise _Violation(9458, place)
            declared[prefix] = value
        self.scopes.append({**self.scopes[-1], **declared} if declared else self.scopes[-1])
        self._expand(name, place)
        expanded = [self._expand(attribute, place) for attribute, _ in attributes if attribute.split(":")[0] != "xmlns"]
        if len(set(expanded)) < len(expanded):
            raise _Violation(9437, place)

    def _expand(self, name: str, place: int) -> tuple[str, str]:
        """Return a name as namespace and local name; '' for a name without a prefix."""
        prefix, colon, local = name.partition(":")
        if not colon:
            return "", name
        if prefix not in self.scopes[-1]:
            raise _Violation(9459, place)
        return self.scopes[-1][prefix], local
