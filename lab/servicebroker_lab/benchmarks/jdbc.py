"""Spark's own JDBC against the embedded server: only for benchmarks, with the jar of PostgreSQL's driver.

The embedded server has no TCP port, and JDBC needs one: the server of a benchmark gets one on 127.0.0.1, behind a
password that nobody else knows.
"""

from __future__ import annotations

import re
import secrets
import socket
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import psycopg

from servicebroker.model.errors import InstanceError
from servicebroker.store.cluster import SETTINGS, SUPERUSER
from servicebroker.store.embedded import EmbeddedServer

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, DataFrameReader, DataFrameWriter, SparkSession

HOST = "127.0.0.1"
FETCH_ROWS = 10_000  # rows for each exchange: without it the driver reads the whole result into memory


@dataclass(frozen=True)
class Jdbc:
    """The driver's jar, and where it finds the server."""

    jar: Path
    url: str

    @property
    def version(self) -> str:
        """Return the version in the manifest of the jar."""
        with zipfile.ZipFile(self.jar) as jar:
            manifest = jar.read("META-INF/MANIFEST.MF").decode(errors="replace")
        match = re.search(r"(?:Implementation|Bundle)-Version: (\S+)", manifest)
        return match[1] if match else "unknown"

    def rows(self, spark: SparkSession, table: str, columns: str, first: int, end: int) -> DataFrame:
        """Return a table, read in one part of the range of queuing_order for each core."""
        reader: DataFrameReader = spark.read.format("jdbc").options(
            **self._connection_options,
            dbtable=f"(select {columns} from {table} where queuing_order >= {first} and queuing_order < {end}) q",
            partitionColumn="queuing_order",
            lowerBound=str(first),
            upperBound=str(end),
            numPartitions=str(spark.sparkContext.defaultParallelism),
            fetchsize=str(FETCH_ROWS),
        )
        return reader.load()

    def insert(self, rows: DataFrame, table: str) -> None:
        """Insert all rows. The driver makes one INSERT of each batch."""
        writer: DataFrameWriter = rows.write.format("jdbc").options(
            **self._connection_options | {"url": f"{self.url}&reWriteBatchedInserts=true"},
            dbtable=table,
            batchsize=str(FETCH_ROWS),
        )
        writer.mode("append").save()

    @property
    def _connection_options(self) -> dict[str, str]:
        return {"url": self.url, "driver": "org.postgresql.Driver"}


def reachable(folder: Path, jar: Path) -> Jdbc:
    """Let the server of a new data folder listen on a port too, from its next start on.

    Raises:
        InstanceError: the jar is none, or the port is taken.
    """
    if not zipfile.is_zipfile(jar):
        raise InstanceError(f"'{jar}' is not a jar of PostgreSQL's JDBC driver.")
    port = int(str(SETTINGS["port"]))
    with socket.socket() as probe:
        if probe.connect_ex((HOST, port)) == 0:
            raise InstanceError(f"JDBC needs port {port} of {HOST}, which is taken: stop that server.")
    password = secrets.token_hex(16)
    with EmbeddedServer.start(folder) as server, psycopg.connect(server.url, autocommit=True) as connection:
        ((data,),) = connection.execute("select current_setting('data_directory')").fetchall()
        rules = [f"local all {SUPERUSER} peer map=owner", f"host all {SUPERUSER} {HOST}/32 scram-sha-256"]
        access = f"{data}/benchmark_hba.conf"
        lines = " union all ".join(f"select '{rule}'" for rule in rules)
        connection.execute(f"copy ({lines}) to '{access}'")
        connection.execute(f"alter system set hba_file = '{access}'")
        connection.execute(f"alter system set listen_addresses = '{HOST}'")
        connection.execute(f"alter role {SUPERUSER} password '{password}'")
    return Jdbc(jar.absolute(), f"jdbc:postgresql://{HOST}:{port}/{SUPERUSER}?user={SUPERUSER}&password={password}")
