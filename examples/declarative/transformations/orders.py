"""A queue as a streaming table, its orders as another, and what each customer has spent."""

from __future__ import annotations

import os

from pyspark import pipelines as dp
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

spark = SparkSession.active()


@dp.table(comment="Every message, as it is")
def messages() -> DataFrame:
    """The queue, which the pipeline consumes."""
    return (
        spark.readStream.format("servicebroker")
        .option("instance", os.environ["SERVICEBROKER_INSTANCE"])
        .option("database", "Shop")
        .option("queue", "ExportQueue")
        .load()
    )


@dp.table(comment="What could be read of the messages that are orders")
def orders() -> DataFrame:
    """from_json says nothing of what it cannot read: it gives NULL, and the message stays in `messages`."""
    body = F.col("message_body").cast("string")
    order = F.from_json(body, "id long, customer string, price decimal(9,2)").alias("order")
    found = spark.readStream.table("messages").where("message_type_name = '//example/Order'")
    return (
        found.select("conversation_handle", "message_sequence_number", order)
        .selectExpr("order.*", "conversation_handle", "message_sequence_number")
        .where("id is not null")
    )


@dp.materialized_view(comment="Made anew in each run")
def customers() -> DataFrame:
    """One row for each customer."""
    bought = spark.read.table("orders").groupBy("customer")
    return bought.agg(F.count("*").alias("orders"), F.sum("price").alias("spent"))
