"""The pipeline file: valid settings, and the position of invalid ones. No Spark, no server."""

import json

import pytest

pytest.importorskip("pyarrow")
pytest.importorskip("jsonschema_rs")

from servicebroker.cli import output
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.definition import Pipeline
from servicebroker.pipeline.deletes import DeleteRule
from servicebroker.pipeline.file import line_of, parse_pipeline, read_pipeline
from servicebroker.pipeline.queue_run import QueueRun
from servicebroker.pipeline.variables import mask_values

COMPLETE_FILE = """\
[pipeline]
name = "orders"
warehouse = "tables"
trigger_seconds = 0.5

[[queue]]
instance = "postgresql://shop/broker"
database = "Shop"
queue = "StockQueue"
ack = "archive"
min_partitions = 3

[[queue]]
instance = "data"
database = "Shop"
queue = "StockQueue"
name = "second shop"

[[message]]
type = "//shop/Order"
format = "json"
table = "orders"
partition_by = "_date"
key = ["id"]
when_bad = "end conversation"
extra_fields = "refuse"

[message.columns]
id = "long"
note = "string?"
city = { type = "string", from = "customer.city", optional = true }
paid = { type = "decimal(9,2)", from = ["paid.by", "card"], round = true }

[[message]]
type = "//shop/Picture"
format = "binary"
table = "pictures"
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    monkeypatch.delenv("SCHEMA_REGISTRY_URL", raising=False)

    def write(text):
        path = tmp_path / "pipeline.toml"
        path.write_text(text)
        return path

    return write


def test_environment_variables_are_values_that_no_text_shows(write, monkeypatch, capsys):
    text = COMPLETE_FILE.replace("postgresql://shop", "postgresql://loader:${SHOP_PASSWORD}@shop").replace(
        'name = "second shop"', 'name = "$${second} ${EMPTY}shop"'
    )
    monkeypatch.setenv("EMPTY", "")
    monkeypatch.delenv("SHOP_PASSWORD", raising=False)
    with pytest.raises(InstanceError, match=r"toml:7: queue 1: the environment has no variable 'SHOP_PASSWORD'\."):
        read_pipeline(write(text))
    monkeypatch.setenv("SHOP_PASSWORD", "s3cret")
    pipeline = read_pipeline(write(text))
    assert pipeline.queues[0].instance == "postgresql://loader:s3cret@shop/broker"
    assert pipeline.queues[1].label == "${second} shop"
    assert mask_values(f"No route to {pipeline.queues[0].instance}") == (
        "No route to postgresql://loader:${SHOP_PASSWORD}@shop/broker"
    )

    def refuse():
        raise InstanceError("No route to s3cret.")

    queue_run = QueueRun(pipeline.queues[0], refuse, once=False)
    queue_run.start_query()
    assert queue_run.reason == "No route to ${SHOP_PASSWORD}."
    monkeypatch.setattr(output._Mask, "hide", staticmethod(mask_values))
    output.say_json({"reason": ["No route to s3cret", 5432]})
    output.say("s3cret", error=True)
    assert capsys.readouterr() == ('{"reason": ["No route to ${SHOP_PASSWORD}", 5432]}\n', "${SHOP_PASSWORD}\n")
    with pytest.raises(InstanceError) as error:
        read_pipeline(
            write(text.replace('"//shop/Order"\nformat = "json"', '"//shop/Order"\nformat = "${SHOP_PASSWORD}"'))
        )
    assert "not '${SHOP_PASSWORD}'" in str(error.value)
    with pytest.raises(InstanceError, match=r"'\$\{' begins no \$\{NAME\}"):
        read_pipeline(write(COMPLETE_FILE.replace('"orders"', '"${env:X}"')))


@pytest.mark.parametrize("warehouse", ["dbfs:/tables", "wasbs://x@y/z", "s3:/bucket/x"])
def test_a_place_that_is_no_folder_of_this_machine_is_refused(write, warehouse):
    with pytest.raises(InstanceError, match="tables are in local folders, or at s3://"):
        read_pipeline(write(COMPLETE_FILE.replace('"tables"', f'"{warehouse}"')))


def test_a_whole_file_is_read(write, tmp_path):
    pipeline = read_pipeline(write(COMPLETE_FILE))
    assert (pipeline.name, pipeline.warehouse, pipeline.trigger_seconds) == ("orders", tmp_path / "tables", 0.5)
    first, second = pipeline.queues
    assert first.source_options() == {
        "instance": "postgresql://shop/broker",
        "database": "Shop",
        "queue": "StockQueue",
        "ack": "archive",
        "minPartitions": "3",
    }
    assert (first.label, second.label, second.instance) == ("Shop.StockQueue", "second shop", str(tmp_path / "data"))
    order = pipeline.rule("//shop/Order")
    assert order.columns == (
        Column("id", "long"),
        Column("note", "string", True),
        Column("city", "string", True, "customer.city"),
        Column("paid", "decimal(9,2)", False, ("paid.by", "card"), True),
    )
    assert (order.partition_by, order.key, order.when_bad, order.refuse_extra) == (
        ("_date",),
        ("id",),
        "end conversation",
        True,
    )
    assert pipeline.rule("//shop/Unknown") is None
    assert pipeline.table_names() == ["bronze", "orders", "pictures", "quarantine"]
    assert pipeline.checkpoint(second) == tmp_path / "tables" / "_checkpoints" / "second_shop"
    assert Pipeline.from_text(pipeline.to_text()) == pipeline


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ('name = "orders"', "", 1, "'name' is missing"),
        ('name = "orders"', "name = 5", 2, "'name' must be a text"),
        ('name = "orders"', 'name = " "', 2, "'name' is empty"),
        ("trigger_seconds = 0.5", "trigger_seconds = -1", 4, "number from 0 to"),
        ("trigger_seconds = 0.5", "trigger_seconds = inf", 4, "number from 0 to 2,678,400"),
        ("trigger_seconds = 0.5", f"trigger_seconds = {'9' * 400}", 4, "number from 0 to 2,678,400"),
        ("trigger_seconds = 0.5", "triger_seconds = 1", 4, "there is no key 'triger_seconds'"),
        ("trigger_seconds = 0.5", 'format = "orc"', 4, "one of delta, parquet"),
        ('warehouse = "tables"', 'warehouse = "ftp://host/tables"', 3, "not at ftp://"),
        (
            'warehouse = "tables"',
            'warehouse = "s3://key:secret@lake/tables"',
            3,
            "credentials belong in the environment",
        ),
        ('warehouse = "tables"', 'warehouse = "s3://lake/tables"', 3, "the checkpoints need a local folder"),
        ("trigger_seconds = 0.5", 'quarantine = "../up"', 4, "is not a table name"),
        ("trigger_seconds = 0.5", 'checkpoints = "s3://lake/notes"', 4, "checkpoints need a local folder"),
        ("trigger_seconds = 0.5", 'checkpoints = ""', 4, "'checkpoints' is empty"),
        ("trigger_seconds = 0.5", 'bronze = ""', 1, "without a bronze table"),
        ("trigger_seconds = 0.5", 'format = "parquet"', 24, "has no key"),
        ("min_partitions = 3", "min_partitions = 0", 11, "whole number from 1"),
        ('ack = "archive"', 'ack = "keep"', 10, "delete or archive"),
        ('ack = "archive"', "ack = [1]", 10, "delete or archive"),
        ('name = "second shop"', "", 13, "'Shop.StockQueue' would share its checkpoint"),
        ('ack = "archive"', 'name = "second_shop"', 13, "'second shop' would share its checkpoint"),
        ('database = "Shop"\nqueue = "StockQueue"\nack', 'queue = "StockQueue"\nack', 6, "'database' is missing"),
        ('format = "json"', 'format = "yaml"', 21, "one of json, xml"),
        ('format = "json"', "", 19, "'format' is missing"),
        ('table = "pictures"', 'table = "orders"', 37, "another use"),
        ('type = "//shop/Picture"', 'type = "//shop/Order"', 35, "has a rule already"),
        ('partition_by = "_date"', 'partition_by = ["day"]', 23, "no column 'day'"),
        ('partition_by = "_date"', "partition_by = [5]", 23, "list of strings"),
        ('key = ["id"]', 'key = ["note"]', 24, "never null"),
        ('id = "long"', 'id = "int8"', 29, "'int8' is not a type"),
        ('id = "long"', 'id = { type = "long", form = "x" }', 29, "no key 'form'"),
        ('id = "long"', 'id = { type = "long", round = true }', 29, "only decimal and timestamp can be rounded"),
        ('id = "long"', 'id = { type = "timestamp", epoch = "h" }', 29, "must be one of s, ms"),
        ('id = "long"', 'id = { type = "long", from = ["a", 5] }', 29, "list of strings"),
        ('id = "long"', 'id = "long"\n_date = "date"', 28, "there twice"),
        ('id = "long"', 'id = "long"\nID = "long"', 28, "'id' is there twice"),
        ('format = "json"', 'format = "json"\nregistry = "http://registry"\nencoding = "latin-1"', 21, "only text has"),
        ('format = "binary"', 'format = "avro"\nschema = "none.avsc"', 37, "cannot be read"),
        ('format = "binary"', 'format = "avro"\nschema = "\\u0000"', 37, "cannot be read: No file can have this name"),
        ('format = "binary"', 'format = "text"\ncolumns = 5', 37, "'columns' must be a table"),
        ("[[queue]]", "[queue]", 6, ""),
        ('[message.columns]\nid = "long"\nnote = "string?"', "[other]", 28, "there is no key 'other'"),
        ('format = "json"', 'format = "json"\nregistry = true', 22, "set SCHEMA_REGISTRY_URL in the environment"),
        ('format = "json"', 'format = "json"\nregistry = 5', 22, "'registry' must be true or false"),
        ('format = "json"', 'format = "json"\nregistry = "registry:8081"', 22, "is not a URL of a registry"),
        ('format = "json"', 'format = "json"\nregistry = "http://a:b@registry"', 22, "credentials belong in the"),
        ('format = "json"', 'format = "xml"\nregistry = "http://registry"', 21, "none of xml"),
        ('format = "binary"', 'format = "text"\nencoding = "klingon"', 36, "is not a text encoding"),
        ('format = "json"', 'format = "text"', 21, "text has one column of its own"),
    ],
)
def test_an_error_in_a_file_names_its_line(write, old, new, line, complaint):
    assert old in COMPLETE_FILE
    path = write(COMPLETE_FILE.replace(old, new, 1))
    with pytest.raises(InstanceError) as error:
        read_pipeline(path)
    assert complaint in str(error.value)
    assert str(error.value).startswith(f"{path}:{line}: ") or "[queue]" in new


@pytest.mark.parametrize(
    ("value", "complaint"),
    [("9" * 5000, "a number has too many digits"), ("[" * 100_000, "it is nested too deeply")],
    ids=["digits", "depth"],
)
def test_toml_that_python_cannot_read_is_refused(write, value, complaint):
    path = write(f"{COMPLETE_FILE}\n[other]\nn = {value}\n")
    with pytest.raises(InstanceError, match=complaint):
        read_pipeline(path)


@pytest.mark.parametrize("name", ["utf-8", "UTF-8", "utf8", "UTF_8"])
def test_utf_8_may_be_said_where_there_is_no_other(write, name):
    path = write(COMPLETE_FILE.replace('format = "json"', f'format = "json"\nencoding = "{name}"', 1))
    assert read_pipeline(path).rule("//shop/Order")


def test_a_registry_is_that_of_the_file_or_of_the_environment(write, monkeypatch):
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "https://registry:8081/")
    for said, url in (
        ("true", "https://registry:8081"),
        ('"http://other"', "http://other"),
        ("false", ""),
    ):
        path = write(COMPLETE_FILE.replace('format = "json"', f'format = "json"\nregistry = {said}', 1))
        assert read_pipeline(path).rule("//shop/Order").registry == url
    monkeypatch.setenv("SCHEMA_REGISTRY_URL", "https://user:secret@registry:8081/")
    with pytest.raises(InstanceError, match="credentials belong in the environment"):
        read_pipeline(write(COMPLETE_FILE.replace('format = "json"', 'format = "json"\nregistry = true', 1)))


@pytest.mark.parametrize("store", ["s3", "s3a", "gs", "abfss", "hdfs"])
def test_tables_are_in_a_store_and_checkpoints_beside_the_file(write, tmp_path, store):
    url = f"{store}://shop@lake/tables" if store == "abfss" else f"{store}://lake/tables"
    pipeline = read_pipeline(write(COMPLETE_FILE.replace('"tables"', f'"{url}/"\ncheckpoints = "marks"', 1)))
    assert str(pipeline.folder("orders")) == f"{url}/orders"
    assert pipeline.checkpoint(pipeline.queues[0]) == tmp_path / "marks" / "Shop.StockQueue"
    assert Pipeline.from_text(pipeline.to_text()) == pipeline


def test_a_file_url_is_a_local_folder(write, tmp_path):
    pipeline = read_pipeline(write(COMPLETE_FILE.replace('"tables"', f'"file://{tmp_path}/a%20b"', 1)))
    assert pipeline.folder("orders") == tmp_path / "a b" / "orders"


def test_a_schema_that_is_none_is_said_with_its_line(write, tmp_path):
    (tmp_path / "order.json").write_text('{"properties": {"id": {"type": "whole"}}}')
    path = write(COMPLETE_FILE.replace('format = "json"', 'format = "json"\nschema = "order.json"', 1))
    with pytest.raises(InstanceError) as error:
        read_pipeline(path)
    assert str(error.value).startswith(f"{path}:22: message 1: it is not a JSON Schema at 'properties.id.type': ")
    (tmp_path / "order.json").write_text('{"properties": {"id": {"type": "integer"}}}')
    assert b"integer" in read_pipeline(path).rule("//shop/Order").schema


def test_a_table_of_delta_is_not_divided_by_bytes(write):
    """Delta's log holds partition values as text, and readers decode them as UTF-8."""
    text = COMPLETE_FILE.replace('"string?"', '"binary?"').replace('partition_by = "_date"', 'partition_by = "note"')
    with pytest.raises(InstanceError, match=r":23: .*cannot be partitioned by 'note', which is binary"):
        read_pipeline(write(text))
    lake = 'format = "iceberg"\ncatalog = "lake"\nnamespace = "shop"\ntrigger_seconds = 0.5'
    assert read_pipeline(write(text.replace("trigger_seconds = 0.5", lake))).messages[0].partition_by == ("note",)


def test_a_file_that_is_no_toml_or_not_there(write, tmp_path):
    with pytest.raises(InstanceError, match=r"line 1"):
        read_pipeline(write("pipeline = \nx = 1"))
    with pytest.raises(InstanceError, match="cannot be read: No such file"):
        read_pipeline(tmp_path / "missing.toml")
    latin = tmp_path / "latin.toml"
    latin.write_bytes(b"# \xff")
    with pytest.raises(InstanceError, match="not in UTF-8"):
        read_pipeline(latin)


def test_a_pipeline_needs_a_queue(write):
    with pytest.raises(InstanceError, match="at least one queue"):
        read_pipeline(write('[pipeline]\nname = "a"\nwarehouse = "w"\n'))


def test_lines_are_found_behind_dotted_headers_and_quoted_keys():
    assert line_of('[a]\n[[b]]\n[[b]]\n[b.c]\n"d e" = 1\n', ("b", 1, "c", "d e")) == 5
    assert line_of("a = 1\n", ("z",)) == 1


SMALL = """
[pipeline]
name = "small"
warehouse = "tables"
[[queue]]
instance = "postgresql://shop/app"
database = "Shop"
queue = "Q"
[[message]]
type = "T"
format = "text"
table = "t"
"""


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"warehouse": "s3://user:secret@bucket/x"}, "credentials belong in the environment"),
        ({"warehouse": "/tables/\0"}, "the path of a folder has no NUL"),
        ({"warehouse": "file://elsewhere/tables"}, "not of 'elsewhere'"),
        ({"bronze": "../bronze"}, "is not a table name"),
        ({"quarantine": "/etc"}, "is not a table name"),
        ({"format": "code"}, "'format' must be one of delta"),
        ({"unconfigured": "run"}, "'unconfigured' must be one of"),
        ({"code": "print()"}, "was not written by this version of servicebroker"),
        ({("messages", 0, "table"): "../../orders"}, "is not a table name"),
        ({("messages", 0, "format"): "pickle"}, "'format' must be one of json"),
        ({("messages", 0, "when_bad"): "run"}, "'when_bad' must be one of"),
        ({("messages", 0, "registry"): "file:///etc/passwd"}, "is not a URL of a registry"),
        ({("messages", 0, "maximum_body"): -1}, "'maximum_body' must be"),
        ({("messages", 0, "maximum_quarantined"): -1}, "'maximum_quarantined' must be"),
        ({("queues", 0, "name"): ".."}, "cannot be the name of a checkpoint's folder"),
        ({("queues", 0, "name"): "x" * 300}, "cannot be the name of a checkpoint's folder"),
    ],
    ids=range(16),
)
def test_the_option_of_the_sink_is_checked_as_the_file_is(tmp_path, change, message):
    """The option may come from the query of another user."""
    values = json.loads(parse_pipeline(SMALL, tmp_path).to_text())
    for path, value in change.items():
        *inner, key = (path,) if isinstance(path, str) else path
        place = values
        for part in inner:
            place = place[part]
        place[key] = value
    with pytest.raises(InstanceError, match=message):
        Pipeline.from_text(json.dumps(values))


@pytest.mark.parametrize("text", ["", "gASVBQAAAAAAAAA=", "[" * 100_000, "\ud800", "null"], ids=range(5))
def test_an_option_of_the_sink_that_is_no_pipeline_is_refused(text):
    with pytest.raises(InstanceError, match="was not written by this version of servicebroker"):
        Pipeline.from_text(text)


def test_a_value_of_any_length_is_refused_in_a_short_sentence(write):
    path = write(SMALL.replace('"t"', f'"{"../" * 10_000}"'))
    with pytest.raises(InstanceError, match="message 1: ") as refusal:
        read_pipeline(path)
    assert len(str(refusal.value)) < 2000


def test_a_sink_for_a_queue_that_the_pipeline_lacks_is_refused(tmp_path):
    with pytest.raises(InstanceError, match=r"The pipeline has no queue 'Q\\x1b'"):
        parse_pipeline(SMALL, tmp_path).queue_labelled("Q\x1b")


KEYED = """\
[pipeline]
name = "crm"
warehouse = "tables"
[[queue]]
instance = "postgresql://shop/app"
database = "Shop"
queue = "Q"
[[message]]
type = "Customer"
format = "json"
table = "customers"
key = ["id"]
delete_when = { field = "op", value = ["d", true, 3] }
delete_key = { id = "before.id" }
[message.columns]
id = "long"
note = "string?"
[[message]]
type = "Erased"
format = "json"
table = "customers"
delete_when = "always"
[message.columns]
id = "long"
"""


def test_the_messages_that_delete_are_read(write):
    pipeline = read_pipeline(write(KEYED))
    assert [rule.delete for rule in pipeline.messages] == [
        DeleteRule("field", "op", ("d", "true", "3"), {"id": "before.id"}),
        DeleteRule("always"),
    ]
    assert pipeline.table_names() == ["bronze", "customers", "customers_tombstones", "quarantine"]
    assert Pipeline.from_text(pipeline.to_text()) == pipeline


@pytest.mark.parametrize(
    ("old", "new", "line", "complaint"),
    [
        ('delete_when = "always"', 'delete_when = "sometimes"', 22, "must be one of always, empty"),
        ('delete_when = "always"', "", 21, "the table 'customers' has another use already"),
        ('delete_when = "always"', 'delete_when = "empty"', 21, "the table 'customers' has another use already"),
        ('delete_when = "always"', 'delete_when = "always"\npartition_by = "id"', 23, "has no rows"),
        ('delete_when = "always"', 'delete_when = "always"\nkey = "note"', 23, "the key of the table is id"),
        ('"customers"\ndelete_when = "always"', '"x"\ndelete_when = "always"', 21, "no other rule writes rows into"),
        ('key = ["id"]\n', "", 12, "only a table with a key loses rows"),
        ('"op", value = ["d", true, 3]', '"op"', 13, "'value' is missing"),
        ('"op", value = ["d", true, 3]', '"op", value = [1.5]', 13, "a list of strings, whole numbers"),
        ('{ field = "op", value = ["d", true, 3] }', '"empty"', 13, "has no 'id'"),
        ('delete_when = { field = "op", value = ["d", true, 3] }\n', "", 13, "delete_key needs delete_when"),
        ('{ id = "before.id" }', '{ note = "x" }', 14, "'note' is not a column of the key"),
        (
            'warehouse = "tables"',
            'warehouse = "tables"\nbronze = "customers_tombstones"',
            12,
            "has another use already",
        ),
    ],
)
def test_a_wrong_delete_is_said_with_its_line(write, old, new, line, complaint):
    path = write(KEYED.replace(old, new, 1))
    with pytest.raises(InstanceError) as error:
        read_pipeline(path)
    assert complaint in str(error.value)
    assert str(error.value).startswith(f"{path}:{line}: ")


def test_the_key_of_a_delete_is_that_of_the_table(write):
    head, tail = KEYED.rsplit('id = "long"', 1)
    for columns, complaint in (
        ('id = "integer"', "'id' is long in the rows of the table"),
        ('id = "long?"', "never null"),
        ('id = "long"\nnote = "string"', "'note' is none"),
    ):
        with pytest.raises(InstanceError, match=complaint):
            read_pipeline(write(head + columns + tail))
