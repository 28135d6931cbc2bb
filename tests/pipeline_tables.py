"""Messages as the source gives them, and a pipeline that sorts them into tables, for tests without Spark."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta

import pyarrow as pa
from deltalake import DeltaTable

from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.sinks.warehouse import commit_results, sort_rows
from servicebroker.pipeline.stream import rows as source_rows

NOON = datetime(2026, 1, 2, 12, tzinfo=UTC)
QUEUE = QueueRule("./data", "Shop", "Stock")
ORDER = MessageRule("Order", "json", "orders", (Column("id", "long"), Column("note", "string", True)))


def pipeline(tmp_path, *rules, **more):
    return Pipeline("test", tmp_path, (QUEUE,), rules or (ORDER,), **more)


def message(order, body, kind="Order", handle="h", number=None, minutes=0):
    return {
        "queue": "Stock",
        "service_name": "S",
        "service_contract_name": "C",
        "message_type_name": kind,
        "conversation_handle": handle,
        "conversation_group_id": "g",
        "message_sequence_number": order if number is None else number,
        "queuing_order": order,
        "priority": 5,
        "validation": "N",
        "message_body": body,
        "message_enqueue_time": NOON + timedelta(minutes=minutes),
    }


def batch(*messages):
    return pa.RecordBatch.from_pylist(list(messages), schema=source_rows.arrow_schema())


def order(number, key=None, note="n", **more):
    return message(number, json.dumps({"id": number if key is None else key, "note": note}).encode(), **more)


def land(pipe, query, number, *batches):
    commit_results(pipe, QUEUE, [sort_rows(pipe, QUEUE, query, iter(batches))], number)


def table(pipe, name):
    return DeltaTable(pipe.folder(name)).to_pyarrow_table().to_pylist()
