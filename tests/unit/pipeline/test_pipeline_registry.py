"""Bodies that refer to a schema registry, with an HTTP stand-in for the registry. No Spark, no PostgreSQL."""

import base64
import io
import json
import pickle
import socket
import threading
import time
from contextlib import suppress

import pytest

pytest.importorskip("fastavro")
pytest.importorskip("google.protobuf")
pytest.importorskip("jsonschema_rs")
pytest.importorskip("deltalake")

import fastavro
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory

from pipeline_tables import NOON, QUEUE, batch, land, message, pipeline, table
from schema_registry import run_registry
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline import schema_registry
from servicebroker.pipeline.decoding import Column, Undecodable, registry_decoder
from servicebroker.pipeline.definition import MessageRule
from servicebroker.pipeline.schema_registry import TOKEN, URL, USER_INFO, check_registry, fetch_schema
from servicebroker.pipeline.sinks.maintenance import replay
from servicebroker.pipeline.sorting import Sorter

COLUMNS = (Column("id", "long"), Column("note", "string", is_optional=True))


@pytest.fixture
def registry(monkeypatch):
    for name in (URL, USER_INFO, TOKEN):
        monkeypatch.delenv(name, raising=False)
    with run_registry() as registry:
        yield registry
    fetch_schema.cache_clear()


def rule(registry, format_, columns=COLUMNS, **more):
    return MessageRule("Order", format_, "orders", columns, registry=registry.url, **more)


def with_header(number, content, way=b""):
    return b"\0" + number.to_bytes(4) + way + content


def reason(reader, body):
    with pytest.raises(Undecodable) as error:
        reader.decode(body)
    return error.value.reason


def avro_schema(*fields, name="Order"):
    return {"type": "record", "name": name, "fields": [{"name": field, "type": kind} for field, kind in fields]}


def avro(number, schema, value, named=None):
    sink = io.BytesIO()
    fastavro.schemaless_writer(sink, fastavro.parse_schema(schema, named or {}), value)
    return with_header(number, sink.getvalue())


def proto_file(name, package, *messages, imports=()):
    """Return a `FileDescriptorProto`. Each message is a name, fields (name and type), and nested messages."""
    file = descriptor_pb2.FileDescriptorProto(name=name, package=package, syntax="proto3", dependency=imports)

    def add(into, given):
        called, fields, inner = given
        found = into.add(name=called)
        for number, (field, kind) in enumerate(fields, 1):
            given_type = {"type": 11, "type_name": kind} if isinstance(kind, str) else {"type": kind}
            found.field.add(name=field, number=number, label=1, **given_type)
        for nested in inner:
            add(found.nested_type, nested)

    for given in messages:
        add(file.message_type, given)
    return file


def has_proto(registry, number, file, references=()):
    registry.add_schema(number, "PROTOBUF", "message text that nobody here reads", references)
    registry.answers[f"/schemas/ids/{number}?format=serialized"] = {
        "schemaType": "PROTOBUF",
        "schema": base64.b64encode(file.SerializeToString()).decode(),
        "references": list(references),
    }


def proto_body(files, name, **values):
    pool = descriptor_pool.DescriptorPool()
    for file in files:
        pool.Add(file)
    return message_factory.GetMessageClass(pool.FindMessageTypeByName(name))(**values).SerializeToString()


LONG_TYPE, STRING_TYPE = 3, 9  # types of Protobuf's fields


def test_each_body_is_read_by_the_schema_that_it_names(registry):
    old, new = avro_schema(("id", "int")), avro_schema(("note", "string"), ("id", "long"), ("more", "double"))
    registry.add_schema(1, "AVRO", old)
    registry.add_schema(70_000, "AVRO", new)
    reader = rule(registry, "avro").decoder()
    assert reader.decode(avro(1, old, {"id": 5})) == [5, None]
    assert reader.decode(avro(70_000, new, {"note": "n", "id": 2**40, "more": 1.5})) == [2**40, "n"]
    for _ in range(3):
        reader.decode(avro(1, old, {"id": 5}))
    assert pickle.loads(pickle.dumps(reader)).decode(avro(1, old, {"id": 6})) == [6, None]
    assert [path for path, _ in registry.requests] == ["/schemas/ids/1", "/schemas/ids/70000"]


def test_a_reader_schema_reads_bodies_of_other_schemas(registry):
    written = avro_schema(("id", "int"), ("gone", "string"))
    registry.add_schema(1, "AVRO", written)
    registry.add_schema(2, "AVRO", avro_schema(("id", "string")))
    read = avro_schema(("id", "long"))
    read["fields"].append({"name": "note", "type": ["null", "string"], "default": None})
    read["fields"].append({"name": "colour", "type": "string", "default": "red"})
    reader = rule(registry, "avro", (), schema=json.dumps(read).encode()).decoder()
    assert [(column.name, column.kind) for column in reader.columns] == [
        ("id", "long"), ("note", "string"), ("colour", "string")
    ]  # fmt: skip
    assert reader.decode(avro(1, written, {"id": 5, "gone": "x"})) == [5, None, "red"]
    assert reason(reader, avro(2, avro_schema(("id", "string")), {"id": "x"})) == "wrong schema"


def test_types_of_other_schemas_are_found(registry):
    city = avro_schema(("name", "string"), name="City")
    customer = avro_schema(("city", "City"), name="Customer")
    order = avro_schema(("id", "long"), ("customer", "Customer"))
    registry.add_schema(1, "AVRO", order, [{"name": "Customer", "subject": "a/customer", "version": 3}])
    registry.answers["/subjects/a%2Fcustomer/versions/3"] = {
        "schema": json.dumps(customer), "references": [{"name": "City", "subject": "city", "version": 1}]
    }  # fmt: skip
    registry.answers["/subjects/city/versions/1"] = {"schema": json.dumps(city)}
    named = {}
    for record_schema in (city, customer):
        fastavro.parse_schema(record_schema, named)
    body = avro(1, order, {"id": 1, "customer": {"city": {"name": "Bern"}}}, named)
    reader = rule(registry, "avro", (Column("city", "string", source="customer.city.name"),)).decoder()
    assert reader.decode(body) == ["Bern"]


def test_json_keeps_the_schema_that_it_names(registry):
    registry.add_schema(1, "JSON", {"properties": {"lines": {"items": {"$ref": "line.json"}}}},
                 [{"name": "line.json", "subject": "line", "version": 1}])  # fmt: skip
    registry.answers["/subjects/line/versions/1"] = {"schemaType": "JSON", "schema": '{"required": ["sku"]}'}
    reader = rule(registry, "json").decoder()
    assert reader.decode(with_header(1, b'{"id": 1, "note": "n", "lines": [{"sku": "a"}]}')) == [1, "n"]
    with pytest.raises(Undecodable, match=r"invalid: 'lines\[0\]': \"sku\" is a required property"):
        reader.decode(with_header(1, b'{"id": 1, "lines": [{}]}'))


@pytest.mark.parametrize(
    ("way", "name", "values", "row"),
    [
        (b"\x00", "shop.Order", {"id": 7, "note": "n"}, [7, "n"]),  # short for the first one
        (b"\x02\x00", "shop.Order", {"id": 8}, [8, ""]),
        (b"\x02\x02", "shop.Invoice", {"number": 1, "id": 9}, [9, None]),
        (b"\x04\x02\x00", "shop.Invoice.Line", {"note": "x", "id": 10}, [10, "x"]),
    ],
)
def test_a_body_of_protobuf_says_which_message_it_is(registry, way, name, values, row):
    order = ("Order", [("id", LONG_TYPE), ("note", STRING_TYPE)], [])
    line = ("Line", [("note", STRING_TYPE), ("id", LONG_TYPE)], [])
    file = proto_file("shop.proto", "shop", order, ("Invoice", [("number", LONG_TYPE), ("id", LONG_TYPE)], [line]))
    has_proto(registry, 3, file)
    assert rule(registry, "protobuf").decoder().decode(with_header(3, proto_body([file], name, **values), way)) == row


def test_cached_decoders_are_bounded(registry, monkeypatch):
    monkeypatch.setattr(registry_decoder, "MAX_CACHED_DECODERS", 20)
    has_proto(registry, 3, proto_file("a.proto", "", ("Order", [("id", LONG_TYPE)], [])))
    reader = rule(registry, "protobuf").decoder()
    for step in range(1, 64):
        reason(reader, with_header(3, b"", bytes([2, 2 * step])))
    assert len(reader._decoders) == 20
    assert reader.decode(with_header(3, b"\x08\x05", b"\x00"))[0] == 5


def test_imports_of_protobuf_schemas_are_found(registry):
    from google.protobuf import timestamp_pb2

    city = proto_file("city.proto", "geo", ("City", [("name", STRING_TYPE)], []))
    stamp = "google/protobuf/timestamp.proto"
    order = ("Order", [("city", ".geo.City"), ("at", ".google.protobuf.Timestamp")], [])
    file = proto_file("order.proto", "", order, imports=["city.proto", stamp])
    has_proto(registry, 3, file, [{"name": "city.proto", "subject": "city", "version": 2}])
    registry.answers["/subjects/city/versions/2?format=serialized"] = {
        "schema": base64.b64encode(city.SerializeToString()).decode()
    }
    well_known = descriptor_pb2.FileDescriptorProto.FromString(timestamp_pb2.DESCRIPTOR.serialized_pb)
    body = proto_body([city, well_known, file], "Order", city={"name": "Bern"}, at={"seconds": 0})
    columns = (Column("city", "string", source="city.name"), Column("at", "timestamp"))
    city_name, at = rule(registry, "protobuf", columns).decoder().decode(with_header(3, body, b"\x00"))
    assert (city_name, at.year) == ("Bern", 1970)


@pytest.mark.parametrize(
    ("format_", "body", "expected"),
    [
        ("avro", None, "empty"),
        ("avro", b"\0\0\0\0", "malformed"),
        ("avro", b"\x01\0\0\0\x01x", "malformed"),
        ("json", b'{"id": 1}', "malformed"),
        ("json", b"\0\0\0\0\x02", "empty"),
        ("json", b"\0\0\0\0\x01{}", "wrong schema"),
        ("avro", b"\0\0\0\0\x09x", "unknown schema"),
        ("avro", b"\0\0\0\0\x01", "empty"),
        ("avro", b"\0\0\0\0\x01\x02\x02", "malformed"),
        ("avro", b"\0\0\0\0\x04x", "wrong schema"),
        ("avro", b"\0\0\0\0\x05x", "wrong schema"),
        ("protobuf", b"\0\0\0\0\x03", "malformed"),
        ("protobuf", b"\0\0\0\0\x03\x02", "malformed"),
        ("protobuf", b"\0\0\0\0\x03\xff\xff\xff\xff\xff\xff", "malformed"),
        ("protobuf", b"\0\0\0\0\x03\x01", "malformed"),
        ("protobuf", b"\0\0\0\0\x03\x7e", "malformed"),
        ("protobuf", b"\0\0\0\0\x03\x02\x08", "wrong schema"),
        ("protobuf", b"\0\0\0\0\x03\x00\xff", "malformed"),
        ("protobuf", b"\0\0\0\0\x06\x00", "wrong schema"),
    ],
)
def test_an_unreadable_body_has_a_reason(registry, format_, body, expected):
    registry.add_schema(1, "AVRO", avro_schema(("id", "long")))
    registry.add_schema(2, "JSON", True)
    has_proto(registry, 3, proto_file("a.proto", "", ("Order", [("id", LONG_TYPE)], [])))
    registry.add_schema(4, "AVRO", '"string"')
    registry.add_schema(5, "AVRO", "no schema")
    has_proto(registry, 6, proto_file("a.proto", "", ("Order", [("x", ".none.Such")], []), imports=["none.proto"]))
    assert reason(rule(registry, format_).decoder(), body) == expected


@pytest.mark.parametrize("format_", ["avro", "json", "protobuf"])
def test_a_registry_decoder_reads_any_bytes_or_gives_a_reason(registry, seeded_random, format_):
    schema = avro_schema(("id", "long"), ("note", "string"))
    file = proto_file("a.proto", "", ("Order", [("id", LONG_TYPE), ("note", STRING_TYPE)], []))
    registry.add_schema(1, "AVRO", schema)
    registry.add_schema(2, "JSON", {"properties": {"id": {"minimum": 0}}})
    has_proto(registry, 3, file)
    body = {
        "avro": avro(1, schema, {"id": 5, "note": "n"}),
        "json": with_header(2, b'{"id": 5, "note": "n"}'),
        "protobuf": with_header(3, proto_body([file], "Order", id=5, note="n"), b"\x00"),
    }[format_]
    reader = rule(registry, format_).decoder()
    assert reader.decode(body) == [5, "n"]
    refused = []
    for _ in range(500):
        changed = bytearray(body)
        index = seeded_random.randrange(5, len(body) + 1)
        changed[index : index + seeded_random.randrange(3)] = seeded_random.randbytes(seeded_random.randrange(3))
        cut = bytes(changed[: seeded_random.randrange(len(changed) + 1)] if seeded_random.random() < 0.2 else changed)
        try:
            assert len(reader.decode(cut)) == 2
        except Undecodable as problem:
            refused.append(problem.detail)
    assert refused
    assert all(refused)


def test_an_unknown_schema_is_requested_once_and_replayed_later(registry, tmp_path):
    schema = avro_schema(("id", "long"))
    pipe = pipeline(tmp_path, rule(registry, "avro", COLUMNS[:1]))
    land(pipe, "q", 0, batch(*(message(number, avro(1, schema, {"id": number})) for number in range(3))))
    quarantined = table(pipe, "quarantine")
    assert {(row["reason"], row["detail"]) for row in quarantined} == {
        ("unknown schema", "the registry has no schema 1: Schema not found")
    }
    assert len(quarantined) == 3
    assert len(registry.requests) == 1
    registry.add_schema(1, "AVRO", schema)
    assert [(result.written, result.remaining) for result in replay(pipe)] == [(3, 0)]
    assert sorted(row["id"] for row in table(pipe, "orders")) == [0, 1, 2]


def test_a_body_with_another_number_holds_nothing_up(registry):
    """A registry answers a number above 2,147,483,647 as a wrong address, and may not know format=serialized."""
    registry.answers[f"/schemas/ids/{2**32 - 1}"] = (404, {"error_code": 404, "message": "HTTP 404 Not Found"})
    registry.add_schema(5, "PROTOBUF", "syntax = 'proto3';")
    reader = rule(registry, "avro").decoder()
    assert reason(reader, with_header(2**32 - 1, b"x")) == "unknown schema"
    assert reason(reader, with_header(5, b"x")) == "wrong schema"
    assert [path for path, _ in registry.requests] == ["/schemas/ids/5"]


@pytest.mark.parametrize(
    ("answer", "expected_text"),
    [
        ((503, b"busy"), "answers 503 to schemas/ids/1 (Service Unavailable)"),
        ((500, {"error_code": 50001, "message": "store is gone"}), "answers 500 to schemas/ids/1 (store is gone)"),
        ((404, b"<html>no such page"), "answers 404 to schemas/ids/1 (Not Found)"),
        ((404, {"error_code": 404, "message": "HTTP 404 Not Found"}), "answers 404"),
        ((401, {"error_code": 401, "message": "Unauthorized"}), f"credentials come from {USER_INFO} or {TOKEN}"),
        (b"<html>", "cannot be reached (Expecting value"),
        ({"hello": 1}, "is not a schema registry"),
        ([1], "is not a schema registry"),
        ({"schema": "{}", "references": [{"subject": "a"}]}, "is not a schema registry: it refers to {'subject': 'a'}"),
        ({"schemaType": "PROTOBUF", "schema": "syntax = 'proto3';"}, "does not support format=serialized"),
    ],
)
def test_a_registry_that_does_not_answer_as_one_quarantines_nothing(registry, tmp_path, answer, expected_text):
    registry.answers["/schemas/ids/1"] = registry.answers["/schemas/ids/1?format=serialized"] = answer
    format_ = "protobuf" if "format=serialized" in expected_text else "avro"
    pipe = pipeline(tmp_path, rule(registry, format_, COLUMNS[:1], when_bad="end conversation"))
    with pytest.raises(InstanceError) as error:
        Sorter(pipe, QUEUE).sort(batch(message(1, with_header(1, b"\0x"))), NOON)
    assert expected_text in str(error.value)
    assert registry.url in str(error.value)


def test_an_unreachable_registry_is_retried(registry, tmp_path):
    with run_registry() as gone:
        pass
    pipe = pipeline(tmp_path, rule(gone, "json"))
    with pytest.raises(InstanceError, match=r"cannot be reached .*refused.*\. Messages that need it are retried"):
        land(pipe, "q", 0, batch(message(1, with_header(1, b'{"id": 1}'))))
    with pytest.raises(InstanceError, match="cannot be reached"):
        check_registry(gone.url)
    check_registry(registry.url)
    registry.answers.clear()
    with pytest.raises(InstanceError, match=r"There is no schema registry at .*: Schema not found"):
        check_registry(registry.url)


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [(USER_INFO, "key:secret", "Basic a2V5OnNlY3JldA=="), (TOKEN, "abc", "Bearer abc"), ("NOTHING", "", None)],
)
def test_credentials_come_from_the_environment_and_go_to_the_registry_alone(
    registry, monkeypatch, name, value, expected
):
    monkeypatch.setenv(name, value)
    monkeypatch.setenv(URL, f"{registry.url}/")
    with run_registry() as elsewhere:
        elsewhere.answers["/stolen"] = {"schema": "true", "schemaType": "JSON"}
        registry.answers["/schemas/ids/1"] = (302, f"{elsewhere.url}/stolen")
        reader = rule(registry, "json").decoder()
        with pytest.raises(InstanceError, match=f"redirects to another server, '{elsewhere.url}/stolen'"):
            reader.decode(with_header(1, b'{"id": 1}'))
        assert registry.requests == [("/schemas/ids/1", expected)]
        assert elsewhere.requests == []


@pytest.mark.parametrize("name", [USER_INFO, TOKEN])
@pytest.mark.parametrize("named", [None, "http://elsewhere.example", "no URL"])
def test_credentials_go_to_no_registry_that_only_a_file_names(registry, monkeypatch, name, named):
    """Otherwise the author of a pipeline file could steal them."""
    monkeypatch.setenv(name, "key:secret")
    if named:
        monkeypatch.setenv(URL, named)
    registry.answers["/schemas/ids/1"] = (401, {"error_code": 401, "message": "Unauthorized"})
    with pytest.raises(InstanceError, match=f"go only to the registry that {URL} names there"):
        rule(registry, "json").decoder().decode(with_header(1, b'{"id": 1}'))
    assert registry.requests == [("/schemas/ids/1", None)]


@pytest.mark.parametrize("place", ["file:///etc/hostname", "https://{host}/moved", "http://elsewhere.example/moved"])
def test_a_redirect_to_elsewhere_is_not_followed(registry, place):
    registry.answers["/schemas/ids/1"] = (302, place.format(host=registry.url.removeprefix("http://")))
    with pytest.raises(InstanceError, match=r"another server|not allowed"):
        fetch_schema(registry.url, 1)


def test_a_redirect_within_the_registry_is_followed(registry):
    registry.add_schema(2, "JSON", "true")
    registry.answers["/schemas/ids/1"] = (302, "/schemas/ids/2")
    assert fetch_schema(registry.url, 1).content == b"true"
    registry.answers["/schemas/ids/3"] = (302, "/schemas/ids/3")
    with pytest.raises(InstanceError, match="answers 302"):
        fetch_schema(registry.url, 3)


def refer(registry, name, *others):
    """Make the schema `name` refer to other schemas of the registry."""
    told = {"schema": "true", "schemaType": "JSON", "references": [reference(other) for other in others]}
    registry.answers[f"/subjects/{name}/versions/1"] = told
    return told


def reference(name):
    return {"name": name, "subject": name, "version": 1}


def test_schemas_that_refer_to_each_other_in_a_circle_are_quarantined(registry, tmp_path):
    refer(registry, "a", "b", "c")
    refer(registry, "b", "c", "a")
    refer(registry, "c", "a")
    registry.add_schema(1, "JSON", "true", [reference("a")])
    pipe = pipeline(tmp_path, rule(registry, "json"))
    land(pipe, "q", 0, batch(*(message(number, with_header(1, b"{}")) for number in range(3))))
    assert {(row["reason"], "refers to itself" in row["detail"]) for row in table(pipe, "quarantine")} == {
        ("wrong schema", True)
    }
    assert len(registry.requests) < 10


def test_a_schema_that_needs_too_many_others_is_quarantined(registry):
    for number in range(200):
        refer(registry, f"n{number}")
        refer(registry, f"row{number}", f"row{number + 1}")
    registry.add_schema(1, "JSON", "true", [reference(f"n{number}") for number in range(200)])
    registry.add_schema(2, "JSON", "true", [reference("row0")])
    reader = rule(registry, "json").decoder()
    for number, expected_text in (
        (1, "more than 100 others"),
        (2, "more than 20 schemas refer to each other in a row"),
    ):
        with pytest.raises(Undecodable, match=expected_text) as error:
            reader.decode(with_header(number, b"{}"))
        assert error.value.reason == "wrong schema"
    assert len(registry.requests) <= 2 + 100 + 20


@pytest.mark.parametrize(
    "answer",
    [
        {"schema": 5},
        {"schema": None},
        {"schema": "true", "schemaType": ["JSON"]},
        {"schema": "true", "references": {"name": "a"}},
        {"schema": "true", "references": [5]},
        {"schema": "true", "references": [{"name": [], "subject": "a", "version": 1}]},
        {"schema": "true", "references": [{"name": "a", "subject": {}, "version": 1}]},
        {"schema": "true", "references": "a" * 10_000},
        {"schema": "\ud800"},
        5,
        "text",
        None,
        b"[" * 200_000,
        b"\xff",
        (404, b"[" * 200_000),
        (404, {"error_code": {}, "message": 5}),
    ],
    ids=str,
)
def test_an_answer_that_makes_no_sense_is_one_clear_error(registry, answer):
    registry.answers["/schemas/ids/1"] = answer
    with pytest.raises(InstanceError) as error:
        fetch_schema(registry.url, 1)
    assert registry.url in str(error.value)
    assert len(str(error.value)) < 400


@pytest.mark.parametrize("head", [b"", b"HTTP/1.1 200 OK\r\nContent-Length: 1000000\r\n\r\n"], ids=["head", "body"])
def test_a_registry_that_sends_a_byte_now_and_then_is_given_up(monkeypatch, head):
    monkeypatch.setattr(schema_registry, "TIMEOUT_S", 0.5)
    ended = threading.Event()

    def drip(connection):
        with connection, suppress(OSError):
            connection.sendall(head)
            while not ended.wait(0.05):
                connection.sendall(b"H")

    with socket.create_server(("127.0.0.1", 0)) as server:
        thread = threading.Thread(target=lambda: drip(server.accept()[0]))
        thread.start()
        try:
            started_at = time.monotonic()
            with pytest.raises(InstanceError, match=r"has not answered within 0.5 s"):
                fetch_schema(f"http://127.0.0.1:{server.getsockname()[1]}", 1)
            assert time.monotonic() - started_at < 5
        finally:
            ended.set()
            thread.join()


@pytest.mark.parametrize(
    ("given", "expected_text"),
    [
        ({"format_": "xml"}, "none of xml"),
        ({"format_": "json", "schema": b"{}"}, "only Avro takes a schema of its own"),
        ({"format_": "protobuf", "message": "A"}, "each body names its message"),
        ({"format_": "avro", "columns": ()}, "columns are needed"),
        ({"format_": "avro", "schema": b"{"}, "not an Avro schema"),
    ],
)
def test_options_that_do_not_fit_a_registry_are_refused(registry, given, expected_text):
    with pytest.raises(ValueError, match=expected_text):
        rule(registry, **given).decoder()
    assert registry.requests == []
