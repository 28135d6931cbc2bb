"""The statements of Service Broker as values: what one asks for, declared once for all who say or do it."""

from servicebroker.operations.operation import Operation
from servicebroker.operations.send import Send, SendBatch

__all__ = ["Operation", "Send", "SendBatch"]
