"""Found by PySpark, which registers the data source of every module named pyspark_*: format "servicebroker"."""

from servicebroker.pipeline.source import ServiceBrokerSource as DefaultSource

__all__ = ["DefaultSource"]
