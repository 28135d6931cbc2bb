"""Three shops send orders and stock levels; one pipeline lands them in the tables of one warehouse.

    python examples/fan-in/run.py [FOLDER]

Everything is made in a temporary folder that is gone at the end, or in FOLDER, which stays: run it again there and the
shops send more.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
from deltalake import DeltaTable
from pyarrow import fs

import servicebroker as sb

HERE = Path(__file__).parent
SHOPS = ("shop-1", "shop-2", "shop-3")
ORDER_COUNT = 200
ORDER, STOCK = "//example/Order", "//example/Stock"
CONTRACT = "//example/Export"
TILL, EXPORT = "//example/Till", "//example/Exports"


def shop(folder: Path) -> None:
    """One shop: its own instance, a conversation that exports, and one invalid order."""
    with sb.open(folder) as instance:
        new = "Shop" not in {database for (database,) in _databases(instance)}
        database = instance.database("Shop", create=True)
        if new:
            for message_type in (ORDER, STOCK, "EndOfStream"):
                database.create_message_type(message_type)
            database.create_contract(CONTRACT, dict.fromkeys((ORDER, STOCK, "EndOfStream"), "INITIATOR"))
            database.create_queue("TillQueue")
            database.create_queue("ExportQueue")
            database.create_service(TILL, "TillQueue")
            database.create_service(EXPORT, "ExportQueue", [CONTRACT])
        with database.transaction() as transaction:
            handle = transaction.begin_dialog(TILL, EXPORT, contract=CONTRACT)
            orders = ({"id": n, "customer": f"customer {n % 7}", "price": f"{n}.50"} for n in range(ORDER_COUNT))
            transaction.send_batch(handle, ORDER, [json.dumps(order) for order in orders])
            transaction.send(handle, ORDER, b'{"id": "none"}')
            for pieces in (5, 4, 3):
                transaction.send(handle, STOCK, json.dumps({"item": f"teapot of {folder.name}", "pieces": pieces}))
            transaction.send(handle, "EndOfStream")


def _databases(instance: sb.Instance) -> list[tuple[str]]:
    with instance.connection() as connection:
        return connection.execute("select name from servicebroker.databases").fetchall()


def pipeline(*arguments: str) -> None:
    """`servicebroker pipeline ...`"""
    subprocess.run([sys.executable, "-m", "servicebroker.cli.main", "pipeline", *arguments], check=True)


def table(folder: Path) -> pa.Table:
    """The rows of a Delta table; Arrow opens the files itself, which no thread outlives."""
    files = fs.SubTreeFileSystem(str(folder), fs.LocalFileSystem())
    return DeltaTable(folder).to_pyarrow_table(filesystem=files)


def run(folder: Path) -> None:
    """Shops, pipeline, and what the tables say."""
    for name in SHOPS:
        shop(folder / name)
    file = str(shutil.copy(HERE / "pipeline.toml", folder))
    pipeline("check", file)
    pipeline("run", file, "--once")
    pipeline("status", file)
    pipeline("report", file, "--out", str(folder / "report.html"))
    orders = table(folder / "tables" / "orders")
    for row in orders.group_by("_queue").aggregate([("price", "sum"), ("id", "count")]).sort_by("_queue").to_pylist():
        print(f"{row['_queue']}: {row['id_count']} orders, {row['price_sum']} in all")
    stock = table(folder / "tables" / "stock")
    print(f"{stock.num_rows} items in stock, {pc.sum(stock['pieces']).as_py()} pieces")


if __name__ == "__main__":
    if len(sys.argv) > 1:
        run(Path(sys.argv[1]).absolute())
    else:
        with tempfile.TemporaryDirectory(prefix="servicebroker-fan-in-", ignore_cleanup_errors=True) as temporary:
            run(Path(temporary))
