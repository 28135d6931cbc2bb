"""Found by PySpark, which registers the data source of every module named pyspark_*."""

from servicebroker.pipeline.sinks.warehouse import WarehouseSink as DefaultSource

__all__ = ["DefaultSource"]
