"""Plain batch reading with Spark: a data source that reads a table through ADBC, in ranges of one column."""

from __future__ import annotations

from collections.abc import Iterator, MutableMapping, Sequence
from contextlib import closing
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource, DataSourceReader, InputPartition
from pyspark.sql.types import StructType

from servicebroker.overriding import override

if TYPE_CHECKING:
    import pyarrow as pa


@dataclass
class Range(InputPartition):
    """Rows with first <= queuing_order < end."""

    first: int
    end: int


class AdbcSource(DataSource):
    """`spark.read.format("adbc")`, as a user would write it for one table.

    Options: url; table; first and end, the range of queuing_order; partitions, how many tasks share it.
    """

    COLUMNS = (
        "service_id int, service_contract_id int, message_type_id int, conversation_handle string, "
        "conversation_group_id string, message_sequence_number bigint, queuing_order bigint, priority smallint, "
        "validation string, message_body binary, message_enqueue_time timestamp"
    )
    SQL = (
        "service_id, service_contract_id, message_type_id, conversation_handle::text, conversation_group_id::text, "
        "message_sequence_number, queuing_order, priority, validation::text, message_body, message_enqueue_time"
    )

    @override
    @classmethod
    def name(cls) -> str:
        """Return the name for `format`."""
        return "adbc"

    @override
    def schema(self) -> str:
        """Return the columns of a queue's table."""
        return self.COLUMNS

    @override
    def reader(self, schema: StructType) -> AdbcReader:
        """Return a batch reader."""
        return AdbcReader(self.options)


class AdbcReader(DataSourceReader):
    """Splits the range evenly and reads each part with one query."""

    def __init__(self, options: MutableMapping[str, str]) -> None:
        self._url = options["url"]
        self._table = options["table"]
        self._first, self._end = int(options["first"]), int(options["end"])
        self._partitions = int(options["partitions"])

    @override
    def partitions(self) -> Sequence[InputPartition]:
        """Even parts of the range."""
        return [Range(*part) for part in even_parts(self._first, self._end, self._partitions)]

    @override
    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a part, in the batches of ADBC."""
        from adbc_driver_postgresql import dbapi

        assert isinstance(partition, Range)
        with closing(dbapi.connect(self._url, autocommit=True)) as connection, connection.cursor() as cursor:
            cursor.execute(
                f"select {AdbcSource.SQL} from {self._table} "
                f"where queuing_order >= {partition.first} and queuing_order < {partition.end}"
            )
            yield from cursor.fetch_record_batch()


def even_parts(first: int, end: int, parts: int) -> list[tuple[int, int]]:
    """Divide the range from `first` up to, but not including, `end` into parts of almost equal size."""
    edges = [first + (end - first) * number // parts for number in range(parts + 1)]
    return list(pairwise(edges))
