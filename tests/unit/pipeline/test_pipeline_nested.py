"""Arrays, maps and structs as columns, fields that no column takes, and lenient columns. No Spark, no server."""

import io
import json
from dataclasses import replace
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("fastavro")

import fastavro
import pyarrow as pa
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pipeline_tables import ORDER, batch, land, message, pipeline, table
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding import Column, Undecodable, decoder
from servicebroker.pipeline.decoding.kinds import parse_kind
from servicebroker.pipeline.definition import DefinitionError
from servicebroker.pipeline.sinks.evolution import merged_type
from servicebroker.pipeline.sinks.target import target
from servicebroker.pipeline.sorting import arrow_type, kind_of

LINES = Column("lines", "array<struct<sku: string, qty: long?, tags: array<string>?>>", True)
NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)


def decode(reader, body):
    """Return the values of a body, or the text of the error."""
    try:
        return reader.decode(body if isinstance(body, bytes) else json.dumps(body).encode())
    except Undecodable as problem:
        return str(problem)


@pytest.mark.parametrize(
    "kind", ["array<long>", "map<string, array<decimal(9,2)>>", "struct<a: long, b: struct<c: json>>", LINES.kind]
)
def test_a_nested_type_has_one_form_in_the_file_and_in_a_table(kind):
    parsed = parse_kind(kind.replace(" ", ""))
    assert parsed == parse_kind(kind)
    plain = kind.replace("?", "").replace("json", "string")
    assert kind_of(arrow_type(parsed)) == plain


@pytest.mark.parametrize(
    ("kind", "expected_text"),
    [
        ("array<>", "'>' is not a type"),
        ("array<long", "it breaks off at 'its end'"),
        ("array<long>>", "'>' follows it"),
        ("map<long, long>", "the keys of a map are of type string"),
        ("struct<a long>", "':' is missing before 'long'"),
        ("struct<a: long, A: long>", "the field 'A' occurs twice"),
        ("array<decimal(39,0)>", "precision goes from 1 to 38"),
        ("array<" * 30 + "long" + ">" * 30, "nested more than 20 deep"),
    ],
)
def test_a_nested_type_that_is_none_is_refused(kind, expected_text):
    with pytest.raises(ValueError, match=expected_text):
        parse_kind(kind)


@pytest.mark.parametrize(
    ("lines", "value"),
    [
        ([{"sku": "a", "qty": 2, "tags": ["x"]}, {"sku": "b"}], None),
        ([], []),
        ({}, "wrong type: 'lines' is not of type array<"),
        ([{"qty": 1}], "missing field: 'lines[0].sku' is missing"),
        ([{"sku": "a"}, {"sku": "b", "qty": "2"}], "wrong type: 'lines[1].qty' is not of type long: '2'"),
        ([{"sku": "a", "tags": [None]}], "missing field: 'lines[0].tags[0]' is null"),
    ],
)
def test_a_nested_value_of_json_is_read_or_its_place_is_said(lines, value):
    values = decode(decoder("json", [LINES]), {"lines": lines})
    if value is None:
        value = [{"sku": "a", "qty": 2, "tags": ["x"]}, {"sku": "b", "qty": None, "tags": None}]
    assert values.startswith(value) if isinstance(value, str) else values == [value]


def test_a_body_that_is_an_array_is_a_column():
    reader = decoder("json", [Column("items", "array<struct<id: long>>", source="$")])
    assert decode(reader, [{"id": 1}, {"id": 2}]) == [[{"id": 1}, {"id": 2}]]
    both = decoder("json", [Column("whole", "json", source="$"), Column("id", "long")])
    assert decode(both, {"id": 1}) == ['{"id":1}', 1]
    assert decode(both, [1]) == "wrong type: the body is of type list, not an object"
    with pytest.raises(ValueError, match="only a column of json takes the whole body"):
        decoder("xml", [Column("whole", "string", source="$")])


def test_fields_that_no_column_takes_are_kept():
    reader = decoder(
        "json", [Column("city", "string", True, "customer.city"), LINES, Column("x", "json", True)], rescue="more"
    )
    assert [column.name for column in reader.columns] == ["city", "lines", "x", "more"]
    body = b'{"customer": {"city": "Ulm", "zip": "9"}, "lines": [{"sku": "a"}, {"sku": "b", "n": 1.10}], "x": {"y": 1}}'
    assert decode(reader, body)[-1] == '{"customer":{"zip":"9"},"lines":[{},{"n":1.10}]}'
    assert decode(reader, {"x": {"y": 1}, "lines": []})[-1] is None
    with pytest.raises(ValueError, match="leave one of them out"):
        decoder("json", [LINES], rescue="more", refuse_extra=True)
    with pytest.raises(ValueError, match="xml has no unknown fields"):
        decoder("xml", [LINES], rescue="more")


def test_nested_values_of_avro_and_protobuf_are_read():
    line = {
        "name": "L",
        "type": "record",
        "fields": [{"name": "sku", "type": "string"}, {"name": "qty", "type": "long"}],
    }
    schema = {
        "type": "record",
        "name": "O",
        "fields": [
            {"name": "lines", "type": {"type": "array", "items": line}},
            {"name": "rates", "type": {"type": "map", "values": "double"}},
            {"name": "other", "type": "int"},
        ],
    }
    columns = [Column("lines", "array<struct<sku: string, qty: long>>"), Column("rates", "map<string, double>")]
    sink = io.BytesIO()
    record = {"lines": [{"sku": "a", "qty": 2**40}], "rates": {"EUR": 1.5}, "other": 3}
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), record)
    avro = decoder("avro", columns, schema=json.dumps(schema).encode(), rescue="more")
    expected = [[{"sku": "a", "qty": 2**40}], [("EUR", 1.5)], '{"other":3}']
    assert avro.decode(sink.getvalue()) == expected

    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="o.proto", syntax="proto3")
    kinds = descriptor_pb2.FieldDescriptorProto
    inner = file.message_type.add(name="L")
    inner.field.add(name="sku", number=1, type=kinds.TYPE_STRING, label=kinds.LABEL_OPTIONAL)
    inner.field.add(name="qty", number=2, type=kinds.TYPE_INT64, label=kinds.LABEL_OPTIONAL)
    outer = file.message_type.add(name="O")
    outer.field.add(name="lines", number=1, type=kinds.TYPE_MESSAGE, type_name=".L", label=kinds.LABEL_REPEATED)
    outer.field.add(name="other", number=2, type=kinds.TYPE_INT32, label=kinds.LABEL_OPTIONAL)
    pool = descriptor_pool.DescriptorPool()
    pool.Add(file)
    made = message_factory.GetMessageClass(pool.FindMessageTypeByName("O"))
    body = made(lines=[{"sku": "a", "qty": 2**40}, {"sku": "b"}], other=3).SerializeToString()
    protobuf = decoder("protobuf", columns[:1], schema=files.SerializeToString(), message="O", rescue="more")
    assert protobuf.decode(body) == [[{"sku": "a", "qty": 2**40}, {"sku": "b", "qty": 0}], '{"other":3}']


def test_repeated_elements_of_xml_are_read():
    columns = [
        Column("skus", "array<string>", source="line/sku"),
        Column("lines", "array<struct<id: integer, sku: string?, note: array<string>>>", source="line"),
        Column("none", "array<string>", True),
        Column("empty", "array<string>"),
        Column("head", "struct<at: timestamp>"),
    ]
    body = (
        b'<o xmlns="urn:x"><head at="2026-01-02T12:00:00Z"/>'
        b'<line id="1"><sku> a </sku><note>x</note><note>y</note></line>'
        b'<line><id>2</id><sku xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:nil="true"/></line></o>'
    )
    skus, lines, none, empty, head = decoder("xml", columns).decode(
        body.replace(b' xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:nil="true"/', b">b</sku")
    )
    assert (skus, none, empty, head) == ([" a ", "b"], None, [], {"at": NOON})
    assert lines == [{"id": 1, "sku": " a ", "note": ["x", "y"]}, {"id": 2, "sku": "b", "note": []}]
    (lines,) = decoder("xml", columns[1:2]).decode(body)
    assert lines[1] == {"id": 2, "sku": None, "note": []}
    once = decode(decoder("xml", [Column("sku", "string", source="line/sku")]), body)
    assert once == "wrong type: 'line/sku' occurs 2 times: an array<string> takes all of them"
    with pytest.raises(ValueError, match="xml has no maps"):
        decoder("xml", [Column("a", "map<string, long>")])


LENIENT = [
    # type, epoch, text of JSON, strict, lenient; None is refused
    ("string", "", "1.10", None, "1.10"),
    ("string", "", "true", None, "true"),
    ("string", "", "[1]", None, None),
    ("long", "", "1.0", None, 1),
    ("long", "", "1e3", None, 1000),
    ("long", "", '" 42 "', None, 42),
    ("long", "", "1.5", None, None),
    ("long", "", "1e999999999", None, None),
    ("integer", "", "true", None, None),
    ("double", "", '"1.5"', None, 1.5),
    ("decimal(9,2)", "", '" 1.5"', None, Decimal("1.50")),
    ("decimal(9,2)", "", '"1.555"', None, None),
    ("boolean", "", '"TRUE"', None, True),
    ("boolean", "", "0", None, False),
    ("boolean", "", '"yes"', None, None),
    ("date", "", '"2026-01-02T00:00:00Z"', None, date(2026, 1, 2)),
    ("date", "", '"2026-01-02T12:00:00Z"', None, None),
    ("timestamp", "", '"2026-01-02t12:00:00z"', NOON, NOON),
    ("timestamp", "", '"2026-01-02T12:00:00.123456789Z"', None, NOON.replace(microsecond=123457)),
    ("timestamp", "", "1767355200", None, None),
    ("timestamp", "s", "1767355200", NOON, NOON),
    ("timestamp", "s", '"1767355200.5"', NOON.replace(microsecond=500000), NOON.replace(microsecond=500000)),
    ("timestamp", "ms", "1767355200000", NOON, NOON),
    ("timestamp", "ns", "1767355200000000001", None, NOON),
    ("timestamp", "us", '"2026-01-02T12:00:00Z"', NOON, NOON),
    ("binary", "", '"-_8"', None, b"\xfb\xff"),
    ("array<long>", "", '["1"]', None, [1]),
]


@pytest.mark.parametrize(("kind", "epoch", "text", "strict", "lenient"), LENIENT)
def test_a_lenient_column_takes_other_spellings_of_a_value(kind, epoch, text, strict, lenient):
    for coerces, expected in ((False, strict), (True, lenient)):
        values = decode(decoder("json", [Column("x", kind, coerces=coerces, epoch=epoch)]), f'{{"x": {text}}}'.encode())
        assert values == [expected] if expected is not None else values.startswith("wrong type"), coerces


def test_a_lenient_column_reads_numbers_and_times_of_xml():
    columns = [Column("n", "long", coerces=True), Column("t", "timestamp", coerces=True, epoch="s")]
    assert decoder("xml", columns).decode(b"<a><n> 1.0 </n><t>1767355200</t></a>") == [1, NOON]


def test_nested_columns_land_and_grow():
    old, new = (arrow_type(parse_kind(kind)) for kind in ("struct<a: integer, b: long>", "struct<a: long, c: string>"))
    assert kind_of(merged_type(old, new)) == "struct<a: long, b: long, c: string>"
    assert merged_type(old, arrow_type(parse_kind("struct<a: string>"))) is None
    assert merged_type(pa.list_(old), pa.list_(old)) == pa.list_(old)


@pytest.mark.parametrize("key", ["key", "partition_by"])
def test_a_nested_column_is_no_key(tmp_path, key):
    with pytest.raises(DefinitionError, match="which has no order"):
        pipeline(tmp_path, replace(ORDER, columns=(Column("id", "array<long>"),), **{key: ("id",)}))


def test_a_nested_column_of_a_table_gets_fields_and_keeps_those_that_a_rule_leaves_out(tmp_path):
    def rule(kind):
        return replace(ORDER, columns=(Column("id", "long"), Column("part", kind, True)), rescue="more")

    def body(number, **part):
        return batch(message(number, json.dumps({"id": number, "part": part}).encode()))

    first = pipeline(tmp_path, rule("struct<a: integer, b: string>"))
    land(first, "q", 0, body(1, a=1, b="b"))
    second = pipeline(tmp_path, rule("struct<a: long, c: array<long>?>"))
    (sentence,) = target(second, "orders").plan_schema_change().sentences()
    assert "gets its column part as struct<a: long, b: string, c: array<long>>, which is" in sentence
    land(second, "q", 1, body(2, a=2**40, b="left", c=[1]))
    land(pipeline(tmp_path, rule("struct<a: long, b: string>")), "q", 2, body(3, a=3, b="c"))
    rows = {row["id"]: (row["part"], row["more"]) for row in table(first, "orders")}
    assert rows == {
        1: ({"a": 1, "b": "b", "c": None}, None),
        2: ({"a": 2**40, "b": None, "c": [1]}, '{"part":{"b":"left"}}'),
        3: ({"a": 3, "b": "c", "c": None}, None),
    }
    with pytest.raises(InstanceError, match="cannot become struct<a: string>"):
        target(pipeline(tmp_path, rule("struct<a: string>")), "orders").plan_schema_change()
