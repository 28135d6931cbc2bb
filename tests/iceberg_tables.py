"""Iceberg for tests: a reader of tables that is independent of pyiceberg, and a REST catalog.

The reader parses the table's metadata itself (JSON, and Avro with fastavro). DuckDB and Arrow read the files by the ids
of the columns.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from contextlib import closing, contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import duckdb
import fastavro
import pyarrow.parquet as pq
from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.exceptions import (
    CommitFailedException,
    NamespaceAlreadyExistsError,
    NoSuchNamespaceError,
    NoSuchTableError,
    TableAlreadyExistsError,
)
from pyiceberg.partitioning import PartitionSpec
from pyiceberg.schema import Schema
from pyiceberg.table import CommitTableRequest

KINDS = {"int": "INTEGER", "long": "BIGINT", "double": "DOUBLE", "string": "VARCHAR", "date": "DATE",
         "timestamptz": "TIMESTAMPTZ", "binary": "BLOB", "boolean": "BOOLEAN"}  # fmt: skip


class CatalogTable:
    """A table, read from the metadata file that a SQL catalog names."""

    def __init__(self, catalog: Path, name: str) -> None:
        with closing(sqlite3.connect(catalog)) as connection:
            query = "select metadata_location from iceberg_tables where table_name = ?"
            row = connection.execute(query, [name]).fetchone()
        self.is_there = row is not None
        if row:
            self.metadata = json.loads(Path(row[0]).read_text())
            self.snapshot = self.metadata.get("current-snapshot-id")
            self.properties = self.metadata.get("properties", {})

    def columns(self, snapshot=None):
        """Return the names and types of the columns, now or in a snapshot."""
        schema = self.metadata["current-schema-id"] if snapshot in (None, -1) else self._snapshot(snapshot)["schema-id"]
        (schema_found,) = (candidate for candidate in self.metadata["schemas"] if candidate["schema-id"] == schema)
        return {field["name"]: field for field in schema_found["fields"]}

    def kinds(self):
        names = {"int": "integer"}
        return {
            name: names.get(field["type"], field["type"].replace(", ", ",")) for name, field in self.columns().items()
        }

    def _snapshot(self, number):
        (snapshot,) = (candidate for candidate in self.metadata["snapshots"] if candidate["snapshot-id"] == number)
        return snapshot

    def files(self, snapshot=None):
        """Return the data files of a snapshot from its manifests."""
        number = self.snapshot if snapshot is None else snapshot
        if number in (None, -1):
            return []
        found = []
        for manifest in avro(self._snapshot(number)["manifest-list"]):
            assert manifest["content"] == 0
            found += [entry["data_file"] for entry in avro(manifest["manifest_path"]) if entry["status"] != 2]
        return found

    def in_duckdb(self, snapshot=None):
        columns = self.columns(snapshot)
        expected = ", ".join(
            f"{field['id']}: {{name: '{name}', type: '{KINDS.get(field['type'], field['type'].upper())}', "
            "default_value: NULL}"
            for name, field in columns.items()
        )
        rows = []
        for file in self.files(snapshot):
            result = duckdb.execute(f"select * from read_parquet(?, schema = MAP {{{expected}}})", [file["file_path"]])
            names = [column[0] for column in result.description]
            found = [dict(zip(names, values, strict=True)) for values in result.fetchall()]
            assert len(found) == file["record_count"]
            for row in found:
                assert all(str(row[name]) == str(value) for name, value in self._partition_values(file).items()), (
                    row,
                    file,
                )
            rows += found
        return rows

    def in_arrow(self, snapshot=None):
        columns = self.columns(snapshot)
        rows = []
        for file in self.files(snapshot):
            table = pq.read_table(file["file_path"], partitioning=None)
            numbers = {int(column.metadata[b"PARQUET:field_id"]): column.name for column in table.schema}
            assert len(numbers) == table.num_columns
            there = {name: numbers[field["id"]] for name, field in columns.items() if field["id"] in numbers}
            for row in table.to_pylist():
                rows.append(dict.fromkeys(columns) | {name: row[inner] for name, inner in there.items()})
        return rows

    def _partition_values(self, file):
        """Return the partition values of a file, if the manifest has them untransformed."""
        spec = self.metadata["partition-specs"][0]["fields"]
        kinds = {field["name"]: field["type"] for field in self.columns().values()}
        return {one["name"]: file["partition"][one["name"]] for one in spec if kinds[one["name"]] in ("int", "long")}


def avro(path):
    with open(path, "rb") as file:
        return list(fastavro.reader(file))


@contextmanager
def rest_catalog(folder: Path):
    """Serve a SQL catalog as a REST catalog, and return its URL. Tests read the file of the SQL catalog as usual."""
    behind = SqlCatalog("behind", uri=f"sqlite:///{folder / 'catalog.db'}", warehouse=str(folder))
    server = ThreadingHTTPServer(("127.0.0.1", 0), type("Handler", (_Handler,), {"behind": behind}))
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
        behind.close()


class _Handler(BaseHTTPRequestHandler):
    behind: SqlCatalog
    protocol_version = "HTTP/1.1"

    def do_GET(self):
        self._answer(lambda way, body: self._find_resource(way))

    def do_HEAD(self):
        self._answer(lambda way, body: self._find_resource(way))

    def do_POST(self):
        self._answer(self._change)

    def _find_resource(self, way):
        if way == ["config"]:
            return {"defaults": {}, "overrides": {}}
        if len(way) == 2:
            return {"namespace": [way[1]], "properties": self.behind.load_namespace_properties(way[1])}
        return self._table(self.behind.load_table((way[1], way[3])))

    def _change(self, way, body):
        if way == ["namespaces"]:
            given = json.loads(body)
            self.behind.create_namespace(tuple(given["namespace"]))
            return given
        if len(way) == 3:
            given = json.loads(body)
            schema, spec = Schema.model_validate(given["schema"]), PartitionSpec.model_validate(given["partition-spec"])
            return self._table(self.behind.create_table((way[1], given["name"]), schema, given["location"], spec))
        request = CommitTableRequest.model_validate_json(body)
        table = self.behind.load_table((way[1], way[3]))
        done = self.behind.commit_table(table, request.requirements, request.updates)
        return {"metadata-location": done.metadata_location, "metadata": json.loads(done.metadata.model_dump_json())}

    def _table(self, table):
        metadata = json.loads(table.metadata.model_dump_json())
        return {"metadata-location": table.metadata_location, "metadata": metadata, "config": {}}

    def _answer(self, act):
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        try:
            status, told = 200, act(self.path.partition("?")[0].strip("/").split("/")[1:], body)
        except (NoSuchTableError, NoSuchNamespaceError) as problem:
            status, told = 404, _error(problem, 404)
        except (CommitFailedException, NamespaceAlreadyExistsError, TableAlreadyExistsError) as problem:
            status, told = 409, _error(problem, 409)
        answer = json.dumps(told).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(answer)

    def log_message(self, *_):
        pass


def _error(problem, code):
    return {"error": {"message": str(problem), "type": type(problem).__name__, "code": code}}
