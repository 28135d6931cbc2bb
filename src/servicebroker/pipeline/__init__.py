"""Queues into a warehouse: the Spark source `servicebroker`, the Delta sink and a quiet local session."""
