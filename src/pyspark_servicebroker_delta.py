"""Found by PySpark, which registers the data source of every module named pyspark_*: format "servicebroker_delta"."""

from servicebroker.pipeline.sinks.delta import DeltaSink as DefaultSource

__all__ = ["DefaultSource"]
