"""Cases: a decoder's options and a body, from a number."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any, NamedTuple

from servicebroker_lab.fuzzing import avro_cases, json_cases, protobuf_cases, xml_cases
from servicebroker_lab.fuzzing.mutations import mutate


class Case(NamedTuple):
    """Options of `servicebroker.pipeline.decoding.decoder`, and a body."""

    options: dict[str, Any]
    body: bytes


Maker = Callable[[random.Random], tuple[dict[str, Any], bytes]]

MAKERS: dict[str, Maker] = {
    "avro": avro_cases.make,
    "protobuf": protobuf_cases.make,
    "json": json_cases.make,
    "xml": xml_cases.make,
}


def make_case(format_: str, number: int) -> Case:
    """Return the case of a format with this number. It is the same each time."""
    draw = random.Random(f"{format_} {number}")
    options, body = MAKERS[format_](draw)
    return Case({"format_": format_, **options}, mutate(body, draw))
