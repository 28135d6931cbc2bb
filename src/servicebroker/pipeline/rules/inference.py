"""Infers a first rule from sample bodies: columns with the narrowest types that hold every sample."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Container, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import Any

from lxml import etree

from servicebroker.model.errors import InstanceError
from servicebroker.model.xml import parse
from servicebroker.pipeline.decoding import Undecodable
from servicebroker.pipeline.decoding.columns import convert
from servicebroker.pipeline.decoding.json_number import JsonNumber
from servicebroker.pipeline.decoding.kinds import MAX_DEPTH, Array, Field, Kind, Plain, Struct
from servicebroker.pipeline.definition import COLUMN_NAME, ORIGIN
from servicebroker.pipeline.file import parse_pipeline

_FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_LEADING_ZERO = re.compile(r"[+-]?0[0-9]")  # as in a postal code, which must stay a string
_XSI = "{http://www.w3.org/2001/XMLSchema-instance}"
_JSON = Plain("json")
_MAX_LONG = 2**63
_BEFORE_TEXT = b"\xef\xbb\xbf\xfe\xff\x00 \t\r\n"  # bytes of byte order marks (UTF-8, UTF-16), and white space


@dataclass
class Shape:
    """The values at one path in all samples.

    Attributes:
        count: number of values, including nulls.
        plain: types of values that are not arrays, objects or nulls.
        items: items of arrays.
        fields: fields of objects.
        objects: number of objects.
    """

    count: int = 0
    nulls: int = 0
    plain: set[str] = field(default_factory=set)
    items: Shape | None = None
    fields: dict[str, Shape] = field(default_factory=dict)
    objects: int = 0
    is_xml: bool = False

    def kind(self, depth: int = 1) -> Kind:
        """Return the narrowest type that holds all values."""
        kinds = [bool(self.plain), self.items is not None, bool(self.objects)]
        if sum(kinds) != 1 or depth >= MAX_DEPTH:
            return _JSON
        if self.items is not None:
            return Array(Field("", self.items.kind(depth + 1), self.items.nulls > 0))
        if self.objects:
            return self._struct(depth)
        return _plain_kind(self.plain, Plain("string") if self.is_xml else _JSON)

    def _struct(self, depth: int) -> Kind:
        counts = Counter(name.lower() for name in self.fields)
        if not self.fields or any(not _FIELD_NAME.fullmatch(name) or counts[name.lower()] > 1 for name in self.fields):
            return _JSON
        return Struct(
            tuple(Field(name, part.kind(depth + 1), self.is_optional(part)) for name, part in self.fields.items())
        )

    def is_optional(self, part: Shape) -> bool:
        """True if the field `part` is null or missing in an object."""
        return part.nulls > 0 or part.count < self.objects

    def add(self, value: Any) -> None:
        """Add a value of JSON."""
        self.count += 1
        if value is None:
            self.nulls += 1
        elif isinstance(value, dict):
            self.objects += 1
            for name, inner in value.items():
                self.fields.setdefault(name, Shape(is_xml=self.is_xml)).add(inner)
        elif isinstance(value, list):
            self.items = self.items or Shape(is_xml=self.is_xml)
            for item in value:
                self.items.add(item)
        else:
            self.plain.add(_kind_of(value))


def infer_rule(message_type: str, table: str, samples: Sequence[bytes]) -> str:
    """Return a rule as TOML that decodes all samples. `table`: "" for a name derived from the message type.

    Raises:
        InstanceError: there is no sample, or a sample is neither JSON nor XML.
    """
    if not samples:
        raise InstanceError("A rule needs at least one sample.")
    is_xml = samples[0].lstrip(_BEFORE_TEXT)[:1] == b"<"
    shape = Shape(is_xml=is_xml)
    try:
        for value in _read_xml(samples) if is_xml else _read_json(samples):
            shape.add(value)
    except RecursionError:
        raise InstanceError("A sample is nested too deeply.") from None
    table = table or re.sub(r"[^a-z0-9]+", "_", message_type.lower()).strip("_") or "messages"
    columns = _columns(shape, is_xml=is_xml)
    lines = ["[[message]]", f"type = {_text(message_type)}", f'format = "{"xml" if is_xml else "json"}"']
    lines += [
        f"table = {_text(table)}",
        *([] if is_xml else ['rescue = "_rescued"']),
        "",
        "[message.columns]",
        *columns,
    ]
    rule = "\n".join(lines) + "\n"
    _check(rule, samples)
    return rule


def _read_json(samples: Sequence[bytes]) -> list[Any]:
    values = []
    for number, sample in enumerate(samples, 1):
        try:
            values.append(json.loads(sample, parse_float=JsonNumber))
        except (ValueError, RecursionError) as problem:
            raise InstanceError(f"Sample {number} is not JSON: {problem}.") from None
    return values


def _read_xml(samples: Sequence[bytes]) -> list[Any]:
    """Return documents as values of JSON. An element that is repeated in any document is an array in all."""
    roots = []
    for number, sample in enumerate(samples, 1):
        try:
            roots.append(parse(sample))
        except (ValueError, etree.XMLSyntaxError) as problem:
            raise InstanceError(f"Sample {number} is not XML: {problem}.") from None
    repeated = {path for root in roots for path in _repeated(root, ())}
    return [_fields(root, (), repeated) for root in roots]


def _repeated(element: etree._Element, path: tuple[str, ...]) -> Iterator[tuple[str, ...]]:
    counts = Counter(_local_name(child) for child in element.iterchildren("*"))
    yield from ((*path, name) for name, count in counts.items() if count > 1)
    for child in element.iterchildren("*"):
        yield from _repeated(child, (*path, _local_name(child)))


def _fields(element: etree._Element, path: tuple[str, ...], repeated: Container[tuple[str, ...]]) -> dict[str, Any]:
    """Return the attributes and elements in an element, by name. Names of the root's attributes begin with "@"."""
    attributes = {
        etree.QName(key).localname: text for key, text in element.attrib.items() if not str(key).startswith(_XSI)
    }
    fields: dict[str, Any] = {name if path else f"@{name}": _typed(str(text)) for name, text in attributes.items()}
    for child in element.iterchildren("*"):
        name = _local_name(child)
        inner = (*path, name)
        has_parts = len(child) > 0 or (child.attrib and not (child.text or "").strip())
        value = _fields(child, inner, repeated) if has_parts else _typed("".join(map(str, child.itertext())))
        if child.get(f"{_XSI}nil") in ("true", "1"):
            value = None
        if inner in repeated:
            fields.setdefault(name, []).append(value)
        else:
            fields[name] = value
    return fields


def _local_name(element: etree._Element) -> str:
    return etree.QName(element).localname


def _typed(text: str) -> Any:
    """Return the text of an element as a boolean or number, if it has the form of one; otherwise as it is."""
    plain = text.strip()
    if plain in ("true", "false"):
        return plain == "true"
    if re.fullmatch(r"[+-]?[0-9]{1,38}", plain) and not _LEADING_ZERO.match(plain):
        return int(plain)
    is_number = re.fullmatch(r"[+-]?[0-9]+\.[0-9]+([eE][+-]?[0-9]{1,3})?", plain) and not _LEADING_ZERO.match(plain)
    return JsonNumber(plain) if is_number else text


def _check(rule: str, samples: Iterable[bytes]) -> None:
    """Read the samples by the rule.

    Raises:
        InstanceError: the rule does not read one.
    """
    head = '[pipeline]\nname = "x"\nwarehouse = "x"\n[[queue]]\ninstance = "x"\ndatabase = "x"\nqueue = "x"\n'
    decoder = parse_pipeline(head + rule, Path()).messages[0].decoder()
    for number, sample in enumerate(samples, 1):
        try:
            decoder.decode(sample)
        except Undecodable as problem:
            raise InstanceError(f"No rule reads sample {number}: {problem}.") from None


def _columns(shape: Shape, *, is_xml: bool) -> list[str]:
    if shape.items is not None or shape.plain or not shape.objects:
        return [f'body = {{ type = {_text(str(shape.kind()))}, from = "$" }}']
    lines = []
    used = {column.name.lower() for column in ORIGIN} | {"_rescued"}
    for key, part in shape.fields.items():
        name = re.sub(r"\W", "_", key.removeprefix("@"), flags=re.ASCII) or "_"
        name = name if COLUMN_NAME.fullmatch(name) else f"_{name}"[:100]
        while name.lower() in used:
            name += "_"
        used.add(name.lower())
        kind = _text(f"{part.kind(2)}{'?' if shape.is_optional(part) else ''}")
        source = _text(key) if is_xml else f"[{_text(key)}]"
        lines.append(f"{name} = {kind}" if name == key else f"{name} = {{ type = {kind}, from = {source} }}")
    return lines


def _kind_of(value: Any) -> str:
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int):
        return "long" if -_MAX_LONG <= value < _MAX_LONG else "decimal(38,0)"
    if isinstance(value, JsonNumber | float):
        return "double"
    for kind in ("date", "timestamp"):
        try:
            converted = convert(kind, value)
        except (ValueError, TypeError, ArithmeticError):
            continue
        if isinstance(converted, date) and len(value) >= len("2026-01-02") and "-" in value:
            return kind
    return "string"


def _plain_kind(kinds: set[str], fallback: Plain) -> Plain:
    """Return the plain type that holds values of all `kinds`; `fallback` if there is none."""
    if len(kinds) == 1:
        return Plain(next(iter(kinds)))
    if kinds <= {"date", "timestamp"}:
        return Plain("timestamp")
    if kinds <= {"date", "timestamp", "string"}:
        return Plain("string")
    if kinds <= {"long", "double"}:
        return Plain("double")
    if kinds <= {"long", "decimal(38,0)"}:
        return Plain("decimal(38,0)")
    return fallback


def _text(text: str) -> str:
    """Return a TOML string for a pipeline file. `${`, which would begin a variable, is escaped."""
    return json.dumps(text.replace("${", "$${"), ensure_ascii=False)
