"""Rules without Spark and without a server: results for example messages, and a first rule from samples."""

import json
from dataclasses import replace
from decimal import Decimal
from pathlib import Path

import pytest

pytest.importorskip("deltalake")
pytest.importorskip("jsonschema_rs")

from forked import run_command
from servicebroker import pytest_plugin
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.file import parse_pipeline, read_pipeline
from servicebroker.pipeline.rules.inference import infer_rule
from servicebroker.pipeline.rules.trial import Trial, find_differences, read_examples, try_message

try_pipeline = pytest_plugin.try_pipeline

HEAD = """\
[pipeline]
name = "orders"
warehouse = "${LAKE}/tables"

[[queue]]
instance = "postgresql://loader:${PASSWORD}@shop/broker"
database = "Shop"
queue = "StockQueue"
"""
FILE = (
    HEAD
    + """
[[message]]
type = "//shop/Order"
format = "json"
table = "orders"

[message.columns]
id = "long"
price = "decimal(9,2)?"
at = "timestamp?"
lines = "array<struct<sku: string, weight: decimal(5,2)?>>?"

[[message]]
type = "//shop/Strict"
format = "json"
table = "strict"
when_bad = "stop"

[message.columns]
id = "long"
"""
)
EXAMPLES = """\
[[example]]
name = "a whole order"
type = "//shop/Order"
body = '{"id": 1, "price": 1.50, "at": "2026-01-02T12:00:00Z", "lines": [{"sku": "a", "weight": 0.10}]}'
row = { id = 1, price = 1.5, at = 2026-01-02T12:00:00Z, lines = [{ sku = "a", weight = 0.1 }] }

[[example]]
type = "//shop/Order"
body = '{"id": 2}'
row = { id = 2, price = "" }

[[example]]
type = "//shop/Order"
file = "bad.json"
quarantine = "missing field: 'id'"

[[example]]
type = "//shop/Unheard"
body = "?"
"""


@pytest.fixture
def files(tmp_path):
    for name, text in (("orders.toml", FILE), ("examples.toml", EXAMPLES), ("bad.json", '{"price": 1}')):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_examples_are_compared_with_the_expected_rows(files, monkeypatch):
    monkeypatch.setenv("PASSWORD", "a secret")
    monkeypatch.setenv("LAKE", "lake")
    pipeline = read_pipeline(files / "orders.toml")
    examples = read_examples(files / "examples.toml")
    trials = [try_message(pipeline, example.message_type, example.body) for example in examples]
    assert [[*find_differences(pipeline, *pair)] for pair in zip(examples, trials, strict=True)] == [[]] * 4
    assert trials[0].row["price"] == Decimal("1.50")
    assert (trials[2].reason, trials[3]) == ("missing field", Trial())
    wrong = examples[0].__class__(0, "x", "//shop/Order", b'{"id": 3}', {"id": 4, "colour": "red", "at": "noon"})
    assert [*find_differences(pipeline, wrong, try_message(pipeline, wrong.message_type, wrong.body))] == [
        "has id = 3, not 4",
        "cannot have 'colour': there is no such column",
        "cannot have this value: 'at' is not of type timestamp: 'noon'",
    ]
    (unread,) = find_differences(pipeline, examples[2], trials[0])
    assert unread.startswith('is not in quarantine (orders: {"id": 1,')
    assert "has no row (quarantine: missing field" in next(find_differences(pipeline, examples[0], trials[2]))
    assert try_message(pipeline, "//shop/Strict", "?").stops
    loses = Trial("orders", deleted={"id": 3})
    gone = replace(wrong, row=None, delete={"id": 4})
    assert [*find_differences(pipeline, gone, loses)] == ["has id = 3, not 4"]
    assert [*find_differences(pipeline, gone, trials[3])] == ["deletes nothing (no table of a rule)"]
    assert [*find_differences(pipeline, wrong, loses)] == ['has no row (orders: deletes {"id": 3})']


def test_the_command_tells_rows_and_quarantine_and_fails_with_an_example(files):
    result = run_command("pipeline", "test", files / "orders.toml", files / "examples.toml", timeout=60)
    assert result.returncode == 0, result.stderr
    assert 'a whole order: orders: {"id": 1, "price": "1.50", "at": "2026-01-02T12:00:00+00:00"' in result.stdout
    assert result.stdout.splitlines()[-1] == "4 examples, 3 of them as expected."
    body = run_command(
        "pipeline", "test", files / "orders.toml", files / "bad.json", "--type", "//shop/Order", "--json", timeout=60
    )
    (shown_row,) = json.loads(body.stdout)["examples"]
    assert (shown_row["reason"], shown_row["table"], shown_row["differences"]) == ("missing field", "", [])
    (files / "examples.toml").write_text(EXAMPLES.replace("row = { id = 2", "row = { id = 3"))
    wrong = run_command("pipeline", "test", files / "orders.toml", files / "examples.toml", timeout=60)
    assert wrong.returncode == 1
    assert "example 2 has id = 2, not 3." in wrong.stderr
    assert "1 of 3 examples did not give the expected result." in wrong.stderr


def test_a_fixture_of_pytest_tries_a_message(files, try_pipeline):
    tried = try_pipeline(files / "orders.toml", "//shop/Order", {"id": 7})
    assert (tried.table, tried.row["id"]) == ("orders", 7)
    assert try_pipeline(files / "orders.toml", "//shop/Order", b"?").reason == "malformed"


@pytest.mark.parametrize(
    ("text", "expected_text"),
    [
        ('[[example]]\ntype = "T"', ":1: an example needs either body or file"),
        ('[[example]]\ntype = "T"\nbody = "x"\ncolour = 1', ":4: there is no key 'colour'"),
        ('[[example]]\ntype = "T"\nfile = "none"', ":3: the file cannot be read: No such file"),
        ('[[example]]\ntype = "T"\nbody = "x"\nrow = {}\nquarantine = "x"', "not both"),
    ],
)
def test_a_wrong_example_is_said_with_its_line(files, text, expected_text):
    (files / "wrong.toml").write_text(text)
    with pytest.raises(InstanceError, match=expected_text):
        read_examples(files / "wrong.toml")


@pytest.mark.parametrize(
    ("samples", "columns"),
    [
        (
            [{"id": 1, "price": 1.5, "at": "2026-01-02T12:00:00Z", "day": "2026-01-02", "ok": True, "n": None}],
            {"id": "long", "price": "double", "at": "timestamp", "day": "date", "ok": "boolean", "n": "json?"},
        ),
        ([{"a": 1, "b": 2}, {"a": 1.5}], {"a": "double", "b": "long?"}),
        (
            [{"lines": [{"sku": "a", "qty": 1}, {"sku": "b"}], "tags": []}],
            {"lines": "array<struct<sku: string, qty: long?>>", "tags": "array<json>"},
        ),
        ([{"x": 1}, {"x": "a"}, {"x": {}}], {"x": "json"}),
        (
            [{"big": 2**70, "odd key": {"a-b": 1}, "_queue": 1}],
            {"big": "decimal(38,0)", "odd_key": "json", "_queue_": "long"},
        ),
        ([[{"id": 1}], []], {"body": "array<struct<id: long>>"}),
        ([{"${x}": 1}], {"__x_": "long"}),
    ],
)
def test_a_first_rule_reads_its_samples(samples, columns):
    bodies = [json.dumps(sample).encode() for sample in samples]
    text = HEAD.replace("${", "$${") + infer_rule("//shop/Order", "", bodies)
    rule = parse_pipeline(text, Path()).messages[0]
    assert {column.name: f"{column.kind}{'?' * column.is_optional}" for column in rule.columns} == columns
    assert (rule.table, rule.rescue) == ("shop_order", "_rescued")
    for body in bodies:
        rule.decoder().decode(body)


def test_a_first_rule_of_xml_reads_its_samples():
    samples = [
        b'\xef\xbb\xbf<o xmlns="urn:x" id="7"><zip>01067</zip><line sku="a"><qty>1</qty></line><line sku="b"/>'
        b'<p c="EUR">1.5</p></o>',
        b'<o id="8"><zip>80331</zip><line sku="c"><qty>2</qty></line><p>2</p><note/></o>',
    ]
    text = infer_rule("Order", "orders", samples)
    assert text.splitlines()[5:] == [
        "[message.columns]",
        'id = { type = "long", from = "@id" }',
        'zip = "string"',
        'line = "array<struct<sku: string, qty: long?>>"',
        'p = "double"',
        'note = "string?"',
    ]


@pytest.mark.parametrize("samples", [[], [b"{}", b"{"], [b"<a>", b"<b/>"], [b"[" * 950 + b"]" * 950]])
def test_samples_of_which_no_rule_comes_are_refused(samples):
    with pytest.raises(InstanceError, match=r"needs at least one sample|is not (JSON|XML)|nested too deeply"):
        infer_rule("Order", "orders", samples)
