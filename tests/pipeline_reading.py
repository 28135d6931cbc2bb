"""Calls the stream reader as Spark does, without Spark, for tests of the pipeline."""

from __future__ import annotations

from pyspark.sql.streaming.datasource import ReadAllAvailable

from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.stream.reader import QueueStreamReader

ALL = ReadAllAvailable()


def attach(feed, **options):
    return QueueStreamReader(source_options(feed.options | {"minPartitions": "2"} | options))


def batches(reader, start, end):
    return [batch for part in reader.partitions(start, end) for batch in reader.read(part)]


def bodies(reader, start, end):
    return [body for batch in batches(reader, start, end) for body in batch["message_body"].to_pylist()]


def count_rows(feed, table):
    with feed.database.instance.connection() as connection:
        return connection.execute(f"select count(*) from servicebroker.{table}").fetchone()[0]
