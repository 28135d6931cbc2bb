"""Decoding: values of valid bodies, and the error texts for all others. No Spark, no server."""

import io
import json
import pickle
import random
import uuid
from datetime import UTC, date, datetime
from decimal import Decimal

import pytest

pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")
pytest.importorskip("jsonschema_rs")

import fastavro
from google.protobuf import any_pb2, descriptor_pb2, descriptor_pool, message_factory, struct_pb2, timestamp_pb2

from servicebroker.pipeline.decoding import FORMATS, Column, Undecodable, decoder
from servicebroker.pipeline.decoding.kinds import parse_kind

ORDER = (
    Column("id", "long"),
    Column("price", "decimal(9,2)"),
    Column("note", "string", is_optional=True),
    Column("city", "string", is_optional=True, source="customer.city"),
)
XSD = b"""<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="order"><xs:complexType><xs:sequence>
<xs:element name="id" type="xs:long"/><xs:element name="note" type="xs:string" minOccurs="0"/></xs:sequence>
<xs:attribute name="at" type="xs:dateTime"/></xs:complexType></xs:element></xs:schema>"""
AVRO = {
    "type": "record",
    "name": "Order",
    "fields": [
        {"name": "id", "type": "long"},
        {"name": "note", "type": ["null", "string"]},
        {"name": "at", "type": {"type": "long", "logicalType": "timestamp-micros"}},
        {"name": "day", "type": {"type": "int", "logicalType": "date"}},
        {"name": "price", "type": {"type": "bytes", "logicalType": "decimal", "precision": 9, "scale": 2}},
        {"name": "key", "type": {"type": "string", "logicalType": "uuid"}},
        {"name": "lines", "type": {"type": "array", "items": "string"}},
    ],
}


def json_reader(**more):
    return decoder("json", ORDER, **more)


def reason(reader, body):
    with pytest.raises(Undecodable) as error:
        reader.decode(body)
    assert str(error.value)
    return error.value.reason


def test_json_is_read():
    body = b'{"id": 1, "price": 2.50, "note": "\\u00e4", "customer": {"city": "Bern"}, "extra": 1}'
    assert json_reader().decode(body) == [1, Decimal("2.50"), "ä", "Bern"]
    assert json_reader().decode(b'{"id": 1, "price": "2.5"}') == [1, Decimal("2.50"), None, None]


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-16-le", "utf-16-be", "utf-32"])
def test_json_is_read_in_every_encoding_that_json_has(encoding):
    assert json_reader().decode('{"id": 1, "price": 1, "note": "ä"}'.encode(encoding))[2] == "ä"


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, "empty"),
        (b"", "empty"),
        (b" ", "malformed"),
        (b'{"id": 1, "price"', "malformed"),
        (b'{"id": 1, "price": 1} x', "malformed"),
        (b'{"id": NaN, "price": 1}', "malformed"),
        (b'{"id": 1' + b"0" * 5000 + b', "price": 1}', "malformed"),
        (b'{"id": 1, "price": 1, "note": "\xff"}', "wrong encoding"),
        (b'{"id": 1, "price": 1, "note": "\\ud800"}', "wrong type"),
        ("{".encode("utf-16")[:3], "wrong encoding"),
        (b"[" * 100_000, "too deep"),
        (b"[1]", "wrong type"),
        (b"1", "wrong type"),
        (b'{"price": 1}', "missing field"),
        (b'{"id": null, "price": 1}', "missing field"),
        (b'{"id": "1", "price": 1}', "wrong type"),
        (b'{"id": true, "price": 1}', "wrong type"),
        (b'{"id": 1.0, "price": 1}', "wrong type"),
        (b'{"id": 9223372036854775808, "price": 1}', "wrong type"),
        (b'{"id": 1, "price": 1.005}', "wrong type"),
        (b'{"id": 1, "price": 10000000}', "wrong type"),
        (b'{"id": 1, "price": "NaN"}', "wrong type"),
        (b'{"id": 1, "price": 1e400000}', "wrong type"),
        (b'{"id": 1, "price": 1, "note": 5}', "wrong type"),
        (b'{"id": 1, "price": 1e1000000000000000000}', "wrong type"),
        (b'{"id": 1, "price": 1, "id": 2}', "duplicate key"),
        (b'{"id": 1, "price": 1, "lines": [{"a": 1, "a": 1}]}', "duplicate key"),
        (b'{"id": 1, "price": 1, "customer": "Bern"}', "wrong type"),
        (b'{"id": 1, "price": 1, "customer": [{"city": "Bern"}]}', "wrong type"),
        (b'{"id": 1, "price": 1, "customer.city": "Bern"}', "ambiguous path"),
        (b'{"id": 1, "price": "1_0"}', "wrong type"),
        (b'{"id": 1, "price": "\xef\xbc\x91"}', "wrong type"),
        (b'{"id": 1, "price": "1e1000000000000000000"}', "wrong type"),
        (b'{"id": 1, "price": 1, "x": ' + b'{"x":' * 100_000, "too deep"),
        (b'{"id": 1, "price": 1, "x": 1' + b"0" * 5000 + b"}", "malformed"),
        (b'{"id": 1, "price": 1, "note": "\x00"}', "malformed"),
    ],
)
def test_invalid_json_has_a_reason(body, expected):
    assert reason(json_reader(), body) == expected


def test_extra_fields_are_refused_where_that_is_wanted():
    assert reason(json_reader(refuse_extra=True), b'{"id": 1, "price": 1, "colour": "red"}') == "extra field"
    assert json_reader(refuse_extra=True).decode(b'{"id": 1, "price": 1, "customer": {}}') == [
        1,
        Decimal("1.00"),
        None,
        None,
    ]


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("integer", "-2147483648", -(2**31)),
        ("double", "1", 1.0),
        ("double", "1e3", 1000.0),
        ("boolean", "false", False),
        ("date", '"2026-02-28"', date(2026, 2, 28)),
        ("timestamp", '"2026-02-28T12:00:00+02:00"', datetime(2026, 2, 28, 10, tzinfo=UTC)),
        ("timestamp", '"2026-02-28T12:00:00"', datetime(2026, 2, 28, 12, tzinfo=UTC)),
        ("binary", '"AP8="', b"\x00\xff"),
        ("json", '{"a": [1, 2.5, null]}', '{"a":[1,2.5,null]}'),
        ("json", "[1e-9999999, 1e3, 1E+20, 1e9999999]", "[1e-9999999,1e3,1E+20,1e9999999]"),
        ("json", "12345678901234567890.123456789", "12345678901234567890.123456789"),
        (
            "json",
            '{"a": 1.10, "b": [-0.0, -0, 0], "\\u00e4\\n": "\\u00e4\\n"}',
            '{"a":1.10,"b":[-0.0,-0,0],"ä\\n":"ä\\n"}',
        ),
        ("json", '[true, null, 1.5, "x", {}, []]', '[true,null,1.5,"x",{},[]]'),
        ("long", "-0", 0),
        ("double", "-0", 0.0),
        ("decimal(5,2)", "-0", Decimal("0.00")),
        ("timestamp", '"2026-02-28T12:00:00.123456000Z"', datetime(2026, 2, 28, 12, 0, 0, 123456, tzinfo=UTC)),
        ("string", '"a\\u0000b"', "a\0b"),
        ("decimal(38,0)", "1" * 38, Decimal("1" * 38)),
    ],
)
def test_every_type_is_read_from_json(kind, text, value):
    reader = decoder("json", [Column("x", kind)])
    assert reader.decode(b'{"x": %b}' % text.encode()) == [value]


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        ("integer", "2147483648"),
        ("double", "1e999"),
        ("double", '"1"'),
        ("boolean", "0"),
        ("date", '"28.2.2026"'),
        ("date", "5"),
        ("timestamp", '"yesterday"'),
        ("timestamp", "5"),
        ("timestamp", '"0001-01-01T00:00:00+23:00"'),
        ("binary", '"%"'),
        ("binary", "5"),
        ("json", '["\\ud800"]'),
        ("json", '["\\ud800", 1.0]'),
        ("timestamp", '"2026-02-28T12:00:00.1234567Z"'),
        ("timestamp", '"2026-02-28T12:00:00.1234567+01:00:00.1234567"'),
        ("string", "1.5"),
        ("binary", "1e10"),
        ("decimal(3,1)", "[]"),
    ],
)
def test_a_value_of_another_type_is_said(kind, text):
    assert reason(decoder("json", [Column("x", kind)]), b'{"x": %b}' % text.encode()) == "wrong type"


@pytest.mark.parametrize(
    ("kind", "text", "value"),
    [
        ("decimal(5,2)", "1.005", Decimal("1.01")),
        ("decimal(5,2)", "-1.005", Decimal("-1.01")),
        ("decimal(5,2)", '"1.0049"', Decimal("1.00")),
        ("timestamp", '"2026-02-28T12:00:00.1234565Z"', datetime(2026, 2, 28, 12, 0, 0, 123457, tzinfo=UTC)),
        ("timestamp", '"2026-02-28T23:59:59.9999999"', datetime(2026, 3, 1, tzinfo=UTC)),
        ("timestamp", '"2026-02-28T12:00:00.12345649Z"', datetime(2026, 2, 28, 12, 0, 0, 123456, tzinfo=UTC)),
    ],
)
def test_digits_without_a_place_are_rounded_where_that_is_wanted(kind, text, value):
    body = b'{"x": %b}' % text.encode()
    assert decoder("json", [Column("x", kind, rounds=True)]).decode(body) == [value]
    assert reason(decoder("json", [Column("x", kind)]), body) == "wrong type"


def test_values_that_do_not_fit_after_rounding_are_refused():
    assert reason(decoder("json", [Column("x", "decimal(3,1)", rounds=True)]), b'{"x": 99.95}') == "wrong type"
    assert reason(
        decoder("json", [Column("x", "timestamp", rounds=True)]), b'{"x": "9999-12-31T23:59:59.9999999"}'
    ) == ("wrong type")


def test_a_dot_goes_a_level_down_and_a_list_names_each_key():
    nested, literal = Column("x", "long", True, "a.b"), Column("x", "long", True, ("a.b",))
    both = b'{"a": {"b": 1}, "a.b": 2}'
    assert decoder("json", [nested]).decode(b'{"a": {"b": 1}}') == [1]
    assert decoder("json", [nested]).decode(b'{"a": null}') == [None]
    assert decoder("json", [nested]).decode(b'{"a": {}}') == [None]
    assert decoder("json", [literal]).decode(both) == [2]
    assert decoder("json", [Column("x", "long", True, ("a", "b"))]).decode(both) == [1]
    assert reason(decoder("json", [nested]), both) == "ambiguous path"
    assert reason(decoder("json", [literal], refuse_extra=True), both) == "extra field"
    assert decoder("json", [Column("x", "long", False, ("a", "b.c"))]).decode(b'{"a": {"b.c": 3}}') == [3]


def test_a_wrong_type_on_the_way_is_said_with_its_place():
    with pytest.raises(Undecodable, match=r"'a\.b' is not an object: 5"):
        decoder("json", [Column("x", "long", True, "a.b.c.d")]).decode(b'{"a": {"b": 5}}')


def test_json_that_is_too_deep_for_a_column_of_json():
    body = b'{"x": ' + b"[" * 970 + b"1.0" + b"]" * 970 + b"}"
    reader = decoder("json", [Column("x", "json")])
    assert reason(reader, body) == "too deep"


SCHEMA = """{
  "type": "object",
  "required": ["id"],
  "properties": {
    "id": {"type": "integer", "maximum": 12345678901234567890.5},
    "price": {"multipleOf": 0.01},
    "note": {"type": "string", "maxLength": 400},
    "lines": {"type": "array", "uniqueItems": true, "items": {"$ref": "#/$defs/line"}}
  },
  "$defs": {"line": {"type": "object", "properties": {"sku": {"pattern": "^[A-Z]+$"}}, "required": ["sku"]}}
}"""


def schema_reader(schema=SCHEMA):
    return decoder("json", [Column("id", "json")], schema=schema.encode())


@pytest.mark.parametrize(
    "body",
    [
        b'{"id": 1, "price": 0.07, "lines": [{"sku": "A"}], "more": null}',
        b'{"id": 1.0}',
        b'{"id": -0}',
        b'{"id": 12345678901234567890}',
        b'{"id": 1, "price": 12345678901234567890.12}',
        b'{"id": 1, "price": 1e30}',
        '{"id": 1, "note": "ä"}'.encode("utf-16"),
    ],
)
def test_a_body_that_keeps_its_schema_is_read(body):
    assert schema_reader().decode(body)


@pytest.mark.parametrize(
    ("body", "expected_text"),
    [
        (b"{}", 'the body: "id" is a required property'),
        (b'{"id": "1"}', '\'id\': "1" is not of type "integer"'),
        (b'{"id": 12345678901234567891}', "'id': 12345678901234567891 is greater than the maximum"),
        (b'{"id": 1, "price": 12345678901234567890.123}', "'price': 12345678901234567890.123 is not a multiple of"),
        (b'{"id": 1, "lines": [{"sku": "A"}, {"sku": "a"}]}', "'lines[1].sku': \"a\" does not match"),
        (b'{"id": 1, "lines": [{"sku": "A"}, {"sku": "A"}]}', "'lines': "),
        (b'{"id": 1, "lines": [{"sku": "\\ud800"}]}', "a text is invalid: surrogates not allowed"),
        (b'{"id": 1, "price": 1e1000000000000000000}', "a number is too large to be compared"),
    ],
)
def test_a_body_that_breaks_its_schema_says_where(body, expected_text):
    with pytest.raises(Undecodable) as error:
        schema_reader().decode(body)
    assert error.value.reason == "invalid"
    assert error.value.detail.startswith(expected_text)


def test_the_detail_of_a_long_value_is_cut():
    with pytest.raises(Undecodable) as error:
        schema_reader().decode(b'{"id": 1, "note": "%s"}' % (b"x" * 100_000))
    assert len(error.value.detail) < 400
    assert error.value.detail.endswith("is longer than 400 characters")


def test_other_faults_of_a_body_are_reported_before_its_schema():
    assert reason(schema_reader(), b"[1]") == "invalid"
    assert reason(schema_reader("true"), b"[1]") == "wrong type"
    assert reason(schema_reader(), b'{"id": 1, "id": 1}') == "duplicate key"
    assert reason(schema_reader('{"additionalProperties": {"$ref": "#"}}'), b'{"id": ' * 100_000) == "too deep"
    assert schema_reader('{"additionalProperties": {"$ref": "#"}}').decode(b'{"id": ' * 300 + b"{}" + b"}" * 300)


@pytest.mark.parametrize(
    ("schema", "expected_text"),
    [
        ('{\n  "type": \n}', "not a JSON Schema: Expecting value: line 3 column 1"),
        ('{"properties": {"id": {"type": "whole"}}}', "not a JSON Schema at 'properties.id.type': \"whole\" is not"),
        ('{"properties": {"id": {"pattern": "("}}}', "not a JSON Schema at 'properties.id.pattern'"),
        ('{"$ref": "#/$defs/none"}', "not a JSON Schema: .*'/\\$defs/none' does not exist"),
        ('{"$ref": "http://127.0.0.1:9/line.json"}', "not a JSON Schema: .*line.json"),
        ('{"$ref": "file:///etc/hostname"}', "not a JSON Schema: .*hostname"),
        ('{"$schema": "http://json-schema.org/draft-03/schema#"}', "not a JSON Schema: Unknown meta-schema"),
        ("[]", "not a JSON Schema: .* is not of types"),
        ("[" * 100_000, "not a JSON Schema"),
    ],
)
def test_a_schema_that_is_none_is_refused(schema, expected_text):
    with pytest.raises(ValueError, match=expected_text):
        schema_reader(schema)


def test_text_and_bytes_are_decoded():
    assert decoder("text").decode("ä".encode()) == ["ä"]
    assert decoder("text").decode(None) == [""]
    assert decoder("text", encoding="UTF-16LE").decode("ä".encode("utf-16-le")) == ["ä"]
    assert reason(decoder("text"), b"\xff") == "wrong encoding"
    assert reason(decoder("text", encoding="utf-16-le"), b"abc") == "wrong encoding"
    assert reason(decoder("text", encoding="utf-7"), b"+2AA-") == "wrong encoding"
    assert reason(decoder("text", encoding="unicode_escape"), b"\\ud800") == "wrong encoding"
    assert decoder("binary").decode(None) == [b""]
    assert decoder("binary").decode(b"\xff") == [b"\xff"]


def xml_reader(schema=None):
    columns = [Column("id", "long"), Column("note", "string", is_optional=True), Column("at", "timestamp", True, "@at")]
    return decoder("xml", columns, schema=schema)


def test_xml_is_read_in_any_namespace():
    body = b'<o:order xmlns:o="urn:o" at="2026-01-01T00:00:00Z"><o:id> 7 </o:id><o:note>a<b>b</b></o:note></o:order>'
    assert xml_reader().decode(body) == [7, "ab", datetime(2026, 1, 1, tzinfo=UTC)]
    assert xml_reader(XSD).decode("<order><id>1</id></order>".encode("utf-16")) == [1, None, None]


BOMB = (
    b'<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa"><!ENTITY b "&a;&a;&a;&a;&a;&a;&a;&a;">]>'
    b"<order><id>1</id><note>&b;</note></order>"
)


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (None, "empty"),
        (b"<order><id>1</id>", "malformed"),
        (BOMB, "malformed"),
        (b'<!DOCTYPE a SYSTEM "file:///etc/passwd"><order><id>1</id></order>', "malformed"),
        (b"<a>" * 100_000, "malformed"),
        (b"\xff\xfe\x00", "malformed"),
        (b"<order><id>x</id></order>", "wrong type"),
        (b"<order><id>1</id><id>2</id></order>", "wrong type"),
        (b"<order/>", "missing field"),
        (b'<order><id xmlns:i="http://www.w3.org/2001/XMLSchema-instance" i:nil="true"/></order>', "missing field"),
    ],
)
def test_invalid_xml_has_a_reason(body, expected):
    assert reason(xml_reader(), body) == expected


def test_xml_that_breaks_its_schema_is_invalid():
    assert reason(xml_reader(XSD), b"<order><id>1</id><colour/></order>") == "invalid"
    assert reason(xml_reader(XSD), BOMB) == "malformed"


def test_numbers_in_xml_are_those_of_xml():
    reader = decoder("xml", [Column("d", "double"), Column("p", "decimal(5,2)", rounds=True)])
    assert reader.decode(b"<a><d>1e3</d><p>1.005</p></a>") == [1000.0, Decimal("1.01")]
    for wrong in ("1_000", "INF", "\uff11", "0x1", ""):
        assert reason(reader, f"<a><d>{wrong}</d><p>1</p></a>".encode()) == "wrong type"
        assert reason(reader, f"<a><d>1</d><p>{wrong}</p></a>".encode()) == "wrong type"


def avro_body(**more):
    record = {
        "id": 1,
        "note": None,
        "at": datetime(2026, 1, 1, tzinfo=UTC),
        "day": date(2026, 1, 2),
        "price": Decimal("2.50"),
        "key": uuid.UUID(int=5),
        "lines": ["a", "b"],
    } | more
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(AVRO), record)
    return sink.getvalue()


def avro_reader(columns=(), **more):
    return decoder("avro", columns, schema=json.dumps(AVRO).encode(), **more)


def test_avro_is_read():
    reader = avro_reader()
    assert [column.kind for column in reader.columns] == [
        "long", "string", "timestamp", "date", "decimal(9,2)", "string", "json"
    ]  # fmt: skip
    assert reader.decode(avro_body()) == [
        1,
        None,
        datetime(2026, 1, 1, tzinfo=UTC),
        date(2026, 1, 2),
        Decimal("2.50"),
        str(uuid.UUID(int=5)),
        '["a","b"]',
    ]
    assert avro_reader([Column("id", "long")]).decode(avro_body()) == [1]


def test_invalid_avro_has_a_reason():
    body = avro_body(note="text")
    assert reason(avro_reader(), None) == "empty"
    assert reason(avro_reader(), body + b"x") == "malformed"
    assert reason(avro_reader([Column("id", "long")], refuse_extra=True), body) == "extra field"
    for length in range(1, len(body)):
        assert reason(avro_reader(), body[:length]) == "malformed"


def test_numbers_inside_avro_stay_exact():
    price = {"type": "bytes", "logicalType": "decimal", "precision": 30, "scale": 10}
    inner = {"type": "record", "name": "I", "fields": [{"name": "price", "type": price}]}
    schema = {"type": "record", "name": "O", "fields": [{"name": "line", "type": inner}]}
    sink = io.BytesIO()
    value = Decimal("12345678901234567890.1000000000")
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), {"line": {"price": value}})
    definition = json.dumps(schema).encode()
    assert decoder("avro", schema=definition).decode(sink.getvalue()) == ['{"price":12345678901234567890.1000000000}']
    column = Column("price", "decimal(38,10)", source="line.price")
    assert decoder("avro", [column], schema=definition).decode(sink.getvalue()) == [value]


def test_a_uuid_of_avro_is_a_text_wherever_it_stands():
    inner = {
        "type": "record",
        "name": "B",
        "fields": [{"name": "id", "type": {"type": "string", "logicalType": "uuid"}}],
    }
    schema = {"type": "record", "name": "A", "fields": [{"name": "b", "type": inner}]}
    sink, value = io.BytesIO(), uuid.UUID(int=7)
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), {"b": {"id": value}})
    definition = json.dumps(schema).encode()
    assert decoder("avro", [Column("x", "string", source="b.id")], schema=definition).decode(sink.getvalue()) == [
        str(value)
    ]
    assert decoder("avro", schema=definition).decode(sink.getvalue()) == [f'{{"id":"{value}"}}']


def test_a_number_of_avro_with_more_digits_than_a_decimal_has_is_kept_as_text():
    kind = {"type": "bytes", "logicalType": "decimal", "precision": 50, "scale": 2}
    schema = {"type": "record", "name": "A", "fields": [{"name": "x", "type": kind}]}
    sink = io.BytesIO()
    value = Decimal("1234567890123456789012345678901234567890.10")
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), {"x": value})
    reader = decoder("avro", schema=json.dumps(schema).encode())
    assert (reader.columns[0].kind, reader.decode(sink.getvalue())) == ("json", [str(value)])


def proto_set():
    files = descriptor_pb2.FileDescriptorSet()
    file = files.file.add(name="order.proto", package="shop", syntax="proto3")
    status = file.enum_type.add(name="Status")
    status.value.add(name="NEW", number=0)
    status.value.add(name="PAID", number=1)
    message = file.message_type.add(name="Order")
    field = descriptor_pb2.FieldDescriptorProto
    for number, (name, kind) in enumerate(
        [("id", field.TYPE_INT64), ("body", field.TYPE_BYTES), ("big", field.TYPE_UINT64), ("ok", field.TYPE_BOOL)], 1
    ):
        message.field.add(name=name, number=number, type=kind, label=field.LABEL_OPTIONAL)
    message.field.add(name="tags", number=5, type=field.TYPE_STRING, label=field.LABEL_REPEATED)
    message.field.add(
        name="status", number=6, type=field.TYPE_ENUM, type_name=".shop.Status", label=field.LABEL_OPTIONAL
    )
    message.field.add(
        name="part", number=7, type=field.TYPE_MESSAGE, type_name=".shop.Order", label=field.LABEL_OPTIONAL
    )
    return files


def proto_message(**values):
    pool = descriptor_pool.DescriptorPool()
    for file in proto_set().file:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName("shop.Order"))(**values)


def proto_reader(columns=(), **more):
    return decoder("protobuf", columns, schema=proto_set().SerializeToString(), message="shop.Order", **more)


def test_protobuf_is_read():
    body = proto_message(
        id=-5, body=b"\xff", big=2**64 - 1, ok=True, tags=["a"], status=1, part={"id": 7}
    ).SerializeToString()
    assert proto_reader().decode(body) == [-5, b"\xff", Decimal(2**64 - 1), True, '["a"]', "PAID", '{"id":"7"}']
    assert proto_reader().decode(None) == [0, b"", Decimal(0), False, None, "NEW", None]


def test_a_nested_protobuf_field_is_read_like_an_outer_one():
    column = Column("x", "long", True, "part.part.id")
    assert proto_reader([column]).decode(proto_message(part={"part": {"id": 2**62}}).SerializeToString()) == [2**62]
    assert proto_reader([column]).decode(proto_message(part={}).SerializeToString()) == [None]


def test_nanoseconds_of_protobuf_are_refused_or_rounded():
    files = descriptor_pb2.FileDescriptorSet()
    timestamp_pb2.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="at.proto", syntax="proto3", dependency=["google/protobuf/timestamp.proto"])
    field = descriptor_pb2.FieldDescriptorProto
    more = {"type_name": ".google.protobuf.Timestamp", "label": field.LABEL_OPTIONAL}
    file.message_type.add(name="At").field.add(name="at", number=1, type=field.TYPE_MESSAGE, **more)

    def read(nanos, **column):
        content = timestamp_pb2.Timestamp(seconds=1, nanos=nanos).SerializeToString()
        reader = decoder(
            "protobuf", [Column("at", "timestamp", **column)], schema=files.SerializeToString(), message="At"
        )
        return reader.decode(bytes([10, len(content)]) + content)

    assert read(5000) == [datetime(1970, 1, 1, 0, 0, 1, 5, tzinfo=UTC)]
    assert read(5500, rounds=True) == [datetime(1970, 1, 1, 0, 0, 1, 6, tzinfo=UTC)]
    with pytest.raises(Undecodable, match="wrong type"):
        read(5001)


def test_invalid_protobuf_has_a_reason():
    assert reason(proto_reader(), b"\xff\xff") == "malformed"
    assert reason(proto_reader(refuse_extra=True), b"\x9a\x06\x01x") == "extra field"
    assert proto_reader().decode(b"\x9a\x06\x01x")[0] == 0
    some = proto_reader([Column("id", "long"), Column("inner", "long", True, "part.id")], refuse_extra=True)
    assert some.decode(proto_message(id=1, part={"id": 2}).SerializeToString()) == [1, 2]
    assert reason(some, proto_message(id=1, tags=["a"]).SerializeToString()) == "extra field"


def test_protobuf_that_has_no_form_in_json_is_said():
    files = descriptor_pb2.FileDescriptorSet()
    for known in (any_pb2, struct_pb2):
        known.DESCRIPTOR.CopyToProto(files.file.add())
    file = files.file.add(name="free.proto", syntax="proto3", dependency=[file.name for file in files.file])
    field = descriptor_pb2.FieldDescriptorProto
    message = file.message_type.add(name="Free")
    for number, kind in enumerate(("Any", "Value"), 1):
        more = {"type_name": f".google.protobuf.{kind}", "label": field.LABEL_OPTIONAL}
        message.field.add(name=kind.lower(), number=number, type=field.TYPE_MESSAGE, **more)
    reader = decoder("protobuf", schema=files.SerializeToString(), message="Free")

    def body(number, inner):
        content = inner.SerializeToString()
        return bytes([number << 3 | 2, len(content)]) + content

    assert reader.decode(body(2, struct_pb2.Value(number_value=1))) == [None, "1.0"]
    assert reason(reader, body(2, struct_pb2.Value(number_value=float("nan")))) == "wrong type"
    assert reason(reader, body(1, any_pb2.Any(type_url="x/shop.Unknown", value=b"a"))) == "wrong type"
    assert reason(reader, body(1, any_pb2.Any(type_url="x/google.protobuf.Value", value=b"\xff"))) == "wrong type"


def _empties(items):
    """Return the schema of an array of `items`, with a named empty record E."""
    empty = {"type": "record", "name": "E", "fields": []}
    array = {"type": "array", "items": items}
    return {"type": "record", "name": "A", "fields": [{"name": "e", "type": empty}, {"name": "x", "type": array}]}


def test_a_record_that_may_hold_itself_is_read():
    inner = {"name": "next", "type": ["null", "Node"]}
    schema = {"type": "record", "name": "Node", "fields": [{"name": "id", "type": "long"}, inner]}
    schema["fields"].append({"name": "more", "type": {"type": "array", "items": "Node"}})
    sink = io.BytesIO()
    value = {"id": 1, "next": {"id": 2, "next": None, "more": []}, "more": [{"id": 3, "next": None, "more": []}]}
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema), value)
    reader = decoder("avro", [Column("id", "long", source="next.id")], schema=json.dumps(schema).encode())
    assert reader.decode(sink.getvalue()) == [2]


@pytest.mark.parametrize(
    ("given", "complaint"),
    [
        ({"format_": "json"}, "json needs columns"),
        ({"format_": "xml"}, "xml needs columns"),
        ({"format_": "xml", "columns": ORDER, "schema": b"<a/>"}, "not schema of the namespace"),
        ({"format_": "xml", "columns": [Column("x", "string", source="a[1]")]}, "is not a path"),
        ({"format_": "xml", "columns": [Column("x", "string", source=("a", "b"))]}, "is one text"),
        ({"format_": "avro", "schema": json.dumps(AVRO).encode(), "columns": [Column("x", "string")]}, "no field 'x'"),
        ({"format_": "avro", "schema": b"{"}, "not an Avro schema"),
        ({"format_": "avro", "schema": b'"string"'}, "must describe a record"),
        ({"format_": "avro", "schema": b'{"type": "record", "name": "A", "fields": [{"name": "x", "type": '
          b'{"type": "array", "items": "null"}}]}'}, "any length"),
        ({"format_": "avro", "schema": json.dumps(_empties("E")).encode()}, "any length"),
        ({"format_": "avro", "schema": json.dumps(_empties({"type": "fixed", "name": "F", "size": 0})).encode()},
         "any length"),
        ({"format_": "protobuf", "schema": b"\xff"}, "not a Protobuf descriptor set"),
        ({"format_": "protobuf", "schema": b"", "message": "A"}, "no message 'A'"),
        ({"format_": "text", "schema": b"{}"}, "text has no schema"),
        ({"format_": "text", "encoding": "klingon"}, "not a text encoding"),
        ({"format_": "text", "columns": ORDER}, "text has one column of its own"),
        ({"format_": "binary", "columns": ORDER}, "binary has one column of its own"),
        ({"format_": "xml", "columns": ORDER, "refuse_extra": True}, "xml has no extra fields"),
        ({"format_": "json", "columns": ORDER, "message": "A"}, "only protobuf has a message"),
        ({"format_": "json", "columns": ORDER, "encoding": "latin-1"}, "only text has an encoding"),
        ({"format_": "text", "encoding": "rot13"}, "not a text encoding"),
        ({"format_": "text", "encoding": "base64"}, "not a text encoding"),
    ],
)  # fmt: skip
def test_a_wrong_definition_is_said(given, complaint):
    with pytest.raises(ValueError, match=complaint):
        decoder(**given)


@pytest.mark.parametrize("kind", ["text", "decimal(39,1)", "decimal(3,4)", "decimal(0,0)", ""])
def test_a_type_that_there_is_not_is_refused(kind):
    with pytest.raises(ValueError, match="is not a type"):
        parse_kind(kind)


def readers():
    return [
        json_reader(schema=b'{"required": ["id"]}'),
        xml_reader(XSD),
        avro_reader(),
        proto_reader(),
        decoder("text"),
        decoder("binary"),
    ]


def test_decoders_travel_to_other_processes():
    bodies = [b'{"id":1,"price":1}', b"<order><id>1</id></order>", avro_body(), b"", b"a", b"a"]
    assert len(bodies) == len(FORMATS)
    for reader, body in zip(readers(), bodies, strict=True):
        assert pickle.loads(pickle.dumps(reader)).decode(body) == reader.decode(body)


def test_a_decoder_reads_any_bytes_or_gives_a_reason(seeded_random: random.Random):
    proto = proto_message(id=5, tags=["a", "b"], part={"id": 1}).SerializeToString()
    xml = b"<order><id>1</id></order>"
    seeds = [b'{"id": 1, "price": 2.5, "note": "x"}', xml, avro_body(note="x"), proto, b"text", b"x"]
    for reader, seed in zip(readers(), seeds, strict=True):
        for _ in range(400):
            body = bytearray(seed)
            for _ in range(seeded_random.randrange(1, 4)):
                index = seeded_random.randrange(len(body) + 1)
                body[index : index + seeded_random.randrange(3)] = seeded_random.randbytes(seeded_random.randrange(3))
            try:
                values = reader.decode(bytes(body))
            except Undecodable:
                continue
            assert len(values) == len(reader.columns)
