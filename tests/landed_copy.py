"""An instance with objects of every kind, written by the previous version, for tests of upgrades.

Run it with the code of that version, for example from another checkout:

    PYTHONPATH=../landed/src python tests/landed_copy.py tests/landed.dump.xz
"""

from __future__ import annotations

import lzma
import sys
import tempfile
from pathlib import Path

import servicebroker as sb

FILE = Path(__file__).with_name("landed.dump.xz")
PASSWORD = "correct horse"
DATABASE, KNOWN, LATE = "Shop", "//shop/Stock", "//shop/Late"
SCHEMA = '<xs:schema xmlns:xs="http://www.w3.org/2001/XMLSchema"><xs:element name="count" type="xs:int"/></xs:schema>'
TSQL = """
CREATE TABLE Orders (Id INT IDENTITY PRIMARY KEY, Body XML NULL);
INSERT Orders (Body) VALUES (N'<a/>');
GO
CREATE PROCEDURE Count_Orders @n INT OUTPUT AS SELECT @n = COUNT(*) FROM Orders;
GO
CREATE FUNCTION dbo.Twice (@n INT) RETURNS INT AS BEGIN RETURN 2 * @n END;
GO
CREATE TRIGGER Added ON Orders AFTER INSERT AS PRINT 'one more';
"""


def fail(transaction: sb.Transaction, messages: list[sb.Message]) -> None:
    """Fail as a procedure that cannot process its messages."""
    raise ValueError("cannot be processed")


def fill(instance: sb.Instance) -> None:
    """Fill an instance with objects of every kind."""
    shop = instance.database(DATABASE, create=True)
    shop.create_xml_schema_collection("Counts", SCHEMA)
    shop.create_message_type("//shop/Order")
    shop.create_message_type("//shop/Count", "VALID_XML", schema_collection="Counts")
    shop.create_contract("//shop/Contract", {"//shop/Order": "ANY", "//shop/Count": "ANY"})
    shop.create_queue("OrdersQueue")
    shop.create_queue("StockQueue")
    shop.create_queue("KeptQueue", retention=True)
    for name, queue in (("//shop/Orders", "OrdersQueue"), (KNOWN, "StockQueue"), ("//shop/Kept", "KeptQueue")):
        shop.create_service(name, queue, ["//shop/Contract"])
    shop.create_broker_priority("Urgent", contract_name="//shop/Contract", priority_level=7)
    shop.create_route("Far", service_name="//elsewhere", address="TCP://example.org:4022")
    shop.create_event_notification("Told", on_queue="StockQueue", events="BROKER_QUEUE_DISABLED", to_service=KNOWN)
    handles = [
        shop.begin_dialog("//shop/Orders", to, contract="//shop/Contract", encryption=False)
        for to in (KNOWN, KNOWN, LATE, "//shop/Kept")
    ]
    for number in range(3):
        shop.send(handles[0], "//shop/Order", str(number))
    shop.send(handles[1], "//shop/Count", "<count>7</count>")
    shop.send(handles[2], "//shop/Order", b"waits")
    shop.send(handles[3], "//shop/Order", b"kept")
    shop.send(handles[:2], "//shop/Order", b"shared")
    shop.receive("StockQueue", top=1, conversation_group_id=None)
    shop.receive("KeptQueue")
    shop.begin_conversation_timer(handles[0], 3600)
    far = shop.begin_dialog("//shop/Orders", "//elsewhere", contract="//shop/Contract", encryption=False)
    shop.send(far, "//shop/Order", b"to another instance")
    shop.send(handles[3], "//shop/Order", b"poison")
    shop.process("KeptQueue", fail, poison=lambda failure: sb.SetAside())
    shop.create_user("Clerk")
    shop.create_role("Staff")
    shop.add_role_member("Staff", "Clerk")
    shop.grant("RECEIVE", "Staff", queue="StockQueue")
    shop.grant("SEND", "public", service=KNOWN)
    shop.create_master_key(PASSWORD)
    shop.create_certificate("own", authorization="Clerk")
    shop.create_remote_service_binding("Bound", to_service="//elsewhere", user="Clerk")
    shop.execute_tsql(TSQL)


def main(file: Path) -> None:
    """Create the instance, and dump it into a file."""
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as folder:
        with sb.open(f"{folder}/data", upkeep=None) as instance:
            fill(instance)
            copied = Path(folder, "copy")
            from servicebroker.cli.commands.instance import dump

            dump(copied, instance=instance.url)
        file.write_bytes(lzma.compress(copied.read_bytes(), preset=9))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
