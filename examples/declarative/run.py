"""A queue in a Spark declarative pipeline: streaming tables and a materialized view, run by `spark-pipelines`.

    pip install 'pyspark[pipelines]'
    python examples/declarative/run.py

Everything is made in a temporary folder that is gone at the end.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from importlib.util import find_spec
from pathlib import Path

import pyarrow.parquet as pq

import servicebroker as sb

HERE = Path(__file__).parent
ORDER, END_OF_STREAM, CONTRACT = "//example/Order", "EndOfStream", "//example/Export"
TILL, EXPORT = "//example/Till", "//example/Exports"
NEEDS = ("grpc", "grpc_status", "google.rpc", "pandas", "yaml", "zstandard")


def missing() -> list[str]:
    """Return the names of packages that declarative pipelines need and that are not installed."""
    return [name for name in NEEDS if not _is_there(name)]


def _is_there(name: str) -> bool:
    try:
        return find_spec(name) is not None
    except ModuleNotFoundError:
        return False


def shop(folder: Path) -> None:
    """An instance whose export queue holds 100 orders and one message that is none."""
    with sb.open(folder) as instance:
        database = instance.database("Shop", create=True)
        for message_type in (ORDER, END_OF_STREAM):
            database.create_message_type(message_type)
        database.create_contract(CONTRACT, dict.fromkeys((ORDER, END_OF_STREAM), "INITIATOR"))
        database.create_queue("TillQueue")
        database.create_queue("ExportQueue")
        database.create_service(TILL, "TillQueue")
        database.create_service(EXPORT, "ExportQueue", [CONTRACT])
        with database.transaction() as transaction:
            handle = transaction.begin_dialog(TILL, EXPORT, contract=CONTRACT)
            orders = ({"id": n, "customer": f"customer {n % 3}", "price": "1.50"} for n in range(100))
            transaction.send_batch(handle, ORDER, [json.dumps(order) for order in orders])
            transaction.send(handle, ORDER, b"no order")
            transaction.send(handle, END_OF_STREAM)


def run(folder: Path) -> None:
    """Shop, pipeline, and what its tables say."""
    shop(folder / "shop")
    shutil.copytree(HERE / "transformations", folder / "transformations")
    specification = (HERE / "spark-pipeline.yml").read_text() + f"storage: {(folder / 'storage').as_uri()}\n"
    (folder / "spark-pipeline.yml").write_text(specification)
    environment = os.environ | {
        "SERVICEBROKER_INSTANCE": str(folder / "shop"),
        "SPARK_LOCAL_IP": "127.0.0.1",
        "PYSPARK_PYTHON": sys.executable,
    }
    spark = Path(next(iter(find_spec("pyspark").submodule_search_locations)))
    command = [str(spark / "bin" / "spark-pipelines"), "run", "--spec", "spark-pipeline.yml"]
    subprocess.run(["bash", *command], cwd=folder, env=environment | {"SPARK_HOME": str(spark)}, check=True)
    for table in ("messages", "orders", "customers"):
        print(f"{table}: {pq.read_table(folder / 'spark-warehouse' / table).num_rows} rows")


if __name__ == "__main__":
    if missing():
        sys.exit(f"This example needs {', '.join(missing())}: pip install 'pyspark[pipelines]'")
    with tempfile.TemporaryDirectory(prefix="servicebroker-declarative-", ignore_cleanup_errors=True) as temporary:
        Path(temporary).chmod(0o711)  # a server that root starts runs as another user, who has to pass
        run(Path(temporary))
