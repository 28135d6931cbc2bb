"""Small bodies that would be expensive to decode: each decoder refuses them before its library reads them.

Every attack runs in its own process with 2 GB of memory and a timeout, since it killed the process once.
"""

from __future__ import annotations

import io
import json
import multiprocessing
import resource
import time

import fastavro
import pytest
from google.protobuf import descriptor_pb2

from servicebroker.pipeline.decoding import Column, Undecodable, decoder
from servicebroker.pipeline.decoding.avro_limits import MAX_DECIMAL_BYTES, MAX_DEPTH, AvroLimits
from servicebroker.pipeline.decoding.columns import MAX_VALUES

MEMORY_BYTES = 2 << 30  # bytes of address space
TIMEOUT_S = 20.0

NODE = {"type": "record", "name": "Node", "fields": [{"name": "next", "type": ["null", "Node"]}]}
NULLS = {"type": "record", "name": "Nulls", "fields": [{"name": f"n{i}", "type": "null"} for i in range(200)]}
NULLS["fields"].append({"name": "b", "type": "boolean"})
PRICE = {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}
ANY_PRICE = PRICE | {"precision": 1_200}


def record(**fields):
    return {"type": "record", "name": "A", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}


def avro(schema):
    return {"format_": "avro", "schema": json.dumps(schema).encode()}


def avro_long(value):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, "long", value)
    return sink.getvalue()


def nested_record(levels):
    """Return a record that is nested in itself `levels` times."""
    return b"\x02" * levels + b"\x00"


def protobuf():
    files = descriptor_pb2.FileDescriptorSet()
    message = files.file.add(name="n.proto", syntax="proto3").message_type.add(name="N")
    field = descriptor_pb2.FieldDescriptorProto
    repeated = {"label": field.LABEL_REPEATED}
    message.field.add(name="kids", number=1, type=field.TYPE_MESSAGE, type_name=".N", **repeated)
    message.field.add(name="numbers", number=2, type=field.TYPE_INT32, **repeated)
    message.field.add(name="text", number=3, type=field.TYPE_STRING)
    return {"format_": "protobuf", "schema": files.SerializeToString(), "message": "N"}


def length(count):
    """Return a length in Protobuf's encoding."""
    written = b""
    while count > 127:
        written, count = written + bytes([count & 127 | 128]), count >> 7
    return written + bytes([count])


def deep_messages(levels):
    body = b""
    for _ in range(levels):
        body = b"\x0a" + length(len(body)) + body
    return body


XML = {"format_": "xml", "columns": [Column("a", "string")]}
JSON = {"format_": "json", "columns": [Column("a", "json")]}
ATTACKS = {
    "avro, a record in itself 5,000 times": (avro(NODE), nested_record(5_000), "too deep"),
    "avro, records of 200 nulls": (
        avro(record(x={"type": "array", "items": NULLS})), avro_long(100_000) + b"\x00" * 100_000 + b"\x00",
        "too many values",
    ),
    "avro, a map of records of 200 nulls": (
        avro(record(x={"type": "map", "values": NULLS})), avro_long(100_000) + b"\x00\x00" * 100_000 + b"\x00",
        "too many values",
    ),
    "avro, a decimal of a megabyte": (avro(record(x=PRICE)), avro_long(1 << 20) + b"\x7f" * (1 << 20), "wrong type"),
    "avro, a megabyte for any precision": (
        avro(record(x=ANY_PRICE)), avro_long(1 << 20) + b"\x7f" * (1 << 20), "wrong type"
    ),
    "avro, many numbers": (
        avro(record(x={"type": "array", "items": "int"})), avro_long(5_000_000) + bytes(5_000_001), "too many values"
    ),
    "protobuf, many empty messages": (protobuf(), b"\x0a\x00" * 3_000_000, "too many values"),
    "protobuf, many packed numbers": (protobuf(), b"\x12" + length(5_000_000) + bytes(5_000_000), "too many values"),
    "protobuf, many numbers": (protobuf(), b"\x10\x01" * 3_000_000, "too many values"),
    "protobuf, messages in each other": (protobuf(), deep_messages(20_000), "malformed"),
    "json, many empty arrays": (JSON, b'{"a":[' + b"[]," * 5_000_000 + b"0]}", "too many values"),
    "json, many keys": (JSON, b'{"a":1' + b',"b":1' * 2_000_000 + b"}", "too many values"),
    "json, arrays in each other": (JSON, b'{"a":' + b"[" * 900_000, "too deep"),
    "xml, many elements": (XML, b"<r>" + b"<b/>" * 3_000_000 + b"<a>1</a></r>", "too many values"),
    "xml, many attributes": (XML, b"<r>" + b'<b c="1" d="2"/>' * 1_000_000 + b"<a>1</a></r>", "too many values"),
    "xml, elements in UTF-7": (
        XML, b'<?xml version="1.0" encoding="UTF-7"?><r>' + b"+ADw-b/+AD4-" * 3_000_000 + b"</r>", "wrong encoding"
    ),
    "json, a key twice behind many": (
        JSON, b'{"a":1' + b"".join(b',"%d":1' % number for number in range(400_000)) + b',"399999":1}', "duplicate key"
    ),
    "json, a text of quotes that does not end": (JSON, b'{"a":"' + b'\\"' * 1_000_000, "malformed"),
    "json, a number of a million digits": (JSON, b'{"a":' + b"1" * 1_000_000 + b"}", "malformed"),
}  # fmt: skip


def attack(given, body, channel):
    """Decode in a process with little memory, and report the reason of the refusal."""
    resource.setrlimit(resource.RLIMIT_AS, (MEMORY_BYTES, MEMORY_BYTES))
    try:
        decoder(**given).decode(body)
        channel.send("decoded")
    except Undecodable as error:
        channel.send(error.reason)
    except BaseException as other:
        channel.send(repr(other))


@pytest.mark.sampled(8)
@pytest.mark.parametrize("name", ATTACKS)
def test_a_body_that_would_cost_much_is_refused(name):
    given, body, reason = ATTACKS[name]
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=attack, args=(given, body, theirs))
    process.start()
    theirs.close()
    try:
        told = ours.recv() if ours.poll(TIMEOUT_S) else f"still busy after {TIMEOUT_S} s"
    except EOFError:
        told = "the process has ended"
    finally:
        process.kill()
        process.join()
    assert told == reason


def test_a_deep_value_within_the_limit_is_read():
    reader = decoder(columns=[Column("next", "json")], **avro(NODE))
    inner = reader.decode(nested_record(MAX_DEPTH - 2))[0]
    assert inner.count("{") == MAX_DEPTH - 2
    with pytest.raises(Undecodable, match="too deep"):
        reader.decode(nested_record(MAX_DEPTH))


def test_large_bodies_with_few_values_are_read():
    text = "[{:," * MAX_VALUES
    assert decoder("json", [Column("a", "string")]).decode(json.dumps({"a": text}).encode()) == [text]
    assert decoder(**avro(record(a="string"))).decode(avro_long(len(text)) + text.encode()) == [text]
    body = b"\x1a" + length(len(text)) + text.encode()
    assert decoder(columns=[Column("text", "string")], **protobuf()).decode(body) == [text]


def test_a_decimal_of_all_its_digits_is_read():
    for precision in (1, 9, 38, 1_200):
        kind = PRICE | {"precision": precision, "scale": 0}
        largest = 10**precision - 1
        for value in (largest, -largest):
            content = value.to_bytes((value.bit_length() + 8) // 8, signed=True)
            values = decoder(**avro(record(a=kind))).decode(avro_long(len(content)) + content)
            assert [str(item) for item in values] == [str(value)]


REFUSED_SCHEMAS = {
    "types in each other": "deep",
    "a decimal of a megabyte": f"more than {MAX_DECIMAL_BYTES} bytes",
    "a fixed decimal of a megabyte": f"more than {MAX_DECIMAL_BYTES} bytes",
    "brackets": "nested",
}


def wrong_schema(name):
    inner = "int"
    if name == "types in each other":
        for level in range(MAX_DEPTH + 1):
            inner = {"type": "record", "name": f"R{level}", "fields": [{"name": "x", "type": inner}]}
    elif name == "a decimal of a megabyte":
        inner = PRICE | {"precision": 3_000_000}
    elif name == "a fixed decimal of a megabyte":
        inner = {"type": "fixed", "name": "F", "size": 1 << 20, "logicalType": "decimal", "precision": 9}
    elif name == "brackets":
        for _ in range(900):
            inner = [inner]
    return record(x=inner)


@pytest.mark.parametrize("name", REFUSED_SCHEMAS)
def test_a_schema_whose_bodies_have_no_bound_is_refused(name):
    with pytest.raises(ValueError, match=REFUSED_SCHEMAS[name]):
        decoder(**avro(wrong_schema(name)))


def test_a_schema_that_uses_each_type_twice_is_checked_in_no_time():
    """Twenty records each have two fields of the previous type: 2^20 paths lead to the innermost one."""
    inner = {"type": "record", "name": "R0", "fields": [{"name": "a", "type": "int"}, {"name": "b", "type": "int"}]}
    for level in range(1, 21):
        again = {"name": "b", "type": f"R{level - 1}"}
        inner = {"type": "record", "name": f"R{level}", "fields": [{"name": "a", "type": inner}, again]}
    started_at = time.monotonic()
    reader = decoder(**avro(inner))
    assert time.monotonic() - started_at < 1
    with pytest.raises(Undecodable, match="too many values"):
        reader.decode(bytes(2**21))


def test_the_walk_agrees_with_the_library(seeded_random):
    """The walk ends where the library does, or refuses the bodies that the library refuses."""
    kinds = ["int", "string", "bytes", "double", "boolean", ["null", "float"], {"type": "array", "items": "long"},
             {"type": "map", "values": ["null", "string"]}, {"type": "fixed", "name": "F", "size": 3},
             {"type": "enum", "name": "E", "symbols": ["X", "Y"]}]  # fmt: skip
    for _ in range(200):
        chosen = {f"f{i}": kind for i, kind in enumerate(seeded_random.sample(kinds, 4))}
        schema = record(**chosen)
        named = {}
        parsed = fastavro.parse_schema(schema, named)
        limits = AvroLimits(parsed, named)
        body = seeded_random.randbytes(seeded_random.randrange(60))
        source = io.BytesIO(body)
        try:
            fastavro.schemaless_reader(source, parsed, None)
        except Exception:
            continue
        limits._walk(body)


def test_the_cost_of_protobuf_does_not_grow_with_empty_columns():
    files = descriptor_pb2.FileDescriptorSet()
    message = files.file.add(name="w.proto", syntax="proto3").message_type.add(name="W")
    field = descriptor_pb2.FieldDescriptorProto
    for number in range(1, 61):
        kind = {"type": field.TYPE_MESSAGE, "type_name": ".W", "label": field.LABEL_REPEATED}
        message.field.add(name=f"f{number}", number=number, **kind)
    values = {"format_": "protobuf", "schema": files.SerializeToString(), "message": "W"}
    body = b"\x0a\x00" * 20_000

    def seconds(columns):
        reader = decoder(columns=columns, **values)
        started_at = time.process_time()
        assert len(reader.decode(body)[0]) == 60_001
        return time.process_time() - started_at

    one_column = [Column("f1", "json")]
    all_ = [Column(f"f{number}", "json", is_optional=True) for number in range(1, 61)]
    assert min(seconds(all_) for _ in range(3)) < 5 * min(seconds(one_column) for _ in range(3))
