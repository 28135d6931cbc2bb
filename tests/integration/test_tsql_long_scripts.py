"""Long scripts after the habits of people who write them for SQL Server: their rows, messages and states."""

from __future__ import annotations

from datetime import date
from decimal import Decimal
from pathlib import Path
from typing import Any

import pytest

import servicebroker as sb
from servicebroker.tsql.check import Verdict, check
from servicebroker.tsql.results import Results
from servicebroker.tsql.session import Session

SCRIPTS = Path(__file__).parent.parent / "tsql_scripts"


@pytest.fixture(scope="module")
def db(instance: sb.Instance) -> sb.Database:
    return instance.database("LongScripts", create=True)


def run(database: sb.Database, name: str, folder: Path | None = None) -> Results:
    results = Results()
    with Session(database, results.add) as session:
        session.run((SCRIPTS / f"{name}.sql").read_text().replace("$(folder)", str(folder)))
    return results


def rows(results: Results) -> list[list[tuple[Any, ...]]]:
    return [found.rows for found in results.sets]


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.sql")))
def test_check_says_that_they_run(name: str) -> None:
    assert [one for one in check((SCRIPTS / f"{name}.sql").read_text()) if one.verdict is Verdict.REFUSED] == []


def test_orders_are_booked_paid_and_rejected(db: sb.Database) -> None:
    results = run(db, "order_saga")
    (placed, orders, accounts, journal, endpoints, queues, objects) = rows(results)
    assert [error.number for error in results.errors] == [50000]
    assert 'CHECK constraint "CK_Orders_Amount"' in results.errors[0].text
    assert placed == [(0, 1, 2)]
    assert orders == [(1, "Ann", Decimal("30.50"), "PAID"), (2, "Bob", Decimal("10.00"), "REJECTED")]
    assert accounts == [("Ann", Decimal("69.50")), ("Bob", Decimal("5.00"))]
    assert [step for step, _ in journal] == ["placed", "placed", "failed", "rejected"]
    assert journal[3][1] == "<Reason>too little</Reason>"
    assert endpoints == [("CLOSED", 2)]
    assert queues == [(0, 0, 0)]
    assert len(objects) == 9


def test_conversations_are_pooled_recycled_and_drained_in_batches(db: sb.Database) -> None:
    results = run(db, "conversation_pool")
    assert results.errors == []
    pooled, sent, drained, endpoints, nothing = rows(results)
    assert pooled == [(1, 1)]
    assert sent == [(3, 7)]
    assert drained == [(9, 7, "message 0", "message 6")]
    assert endpoints == [("Sender", "CO", 1, 1), ("Target", "CD", 0, 2), ("Target", "CO", 0, 1)]
    assert nothing == [(0,)]
    assert results.messages[-1].text == "gone"


def test_poison_is_counted_set_aside_and_told(db: sb.Database) -> None:
    results = run(db, "poison_handling")
    assert results.errors == []
    done, dead, attempts, told, *received, off, refused, event, waiting, queues = rows(results)
    assert done == [(1,), (2,), (4,)]
    assert dead == [("three", "no number: three")]
    assert attempts == [(0,)]
    assert told == [(500, "Unable to process message.")]
    assert [len(each) for each in received] == [1] * 5
    assert (off, refused) == ([(0, 0)], [(9617, 16)])
    assert event == [("BROKER_QUEUE_DISABLED", "WorkQueue", "Poison", 1)]
    assert waiting == [(0,)]
    assert queues == [("AskQueue", 1, None), ("EventQueue", 1, None), ("WorkQueue", 1, None)]


def test_timers_schedule_and_replies_come_in_xml_and_json(db: sb.Database) -> None:
    results = run(db, "scheduler_and_replies")
    assert results.errors == []
    ran, audit, queue, answers, heads, waiting, columns, monitors, days, endpoints = rows(results)
    assert ran == [("every second", 2)]
    assert audit == [
        ("insert", None, 0, "me"),
        ("update", 0, 1, "me"),
        ("update", 1, 2, "me"),
        ("delete", 2, None, "me"),
    ]
    assert queue == [("AnsweringQueue", "[Timers].[dbo].[Answers]", 2)]
    assert answers[:2] == [
        ("Answer", '<sum total="13.00" lines="2"/>'),
        ("Answer", '{"items":[{"sku":"a","twice":2},{"sku":"b","twice":8}]}'),
    ]
    assert len(heads) == 3
    assert waiting == [(0,)]
    assert columns == [("status", "tinyint", 1), ("priority", "tinyint", 1), ("queuing_order", "bigint", 8)]
    assert (monitors, days, endpoints) == ([(0,)], [(0,)], [])
    assert results.messages[-1].text == "gone"


def test_two_databases_authenticate_each_other(db: sb.Database, tmp_path: Path) -> None:
    results = run(db, "cross_database_security", tmp_path)
    assert [error.number for error in results.errors] == [4624]  # an owner is granted nothing
    databases, certificates, bindings, waiting, received, who, permissions = rows(results)
    assert databases == [("SenderDb", 0, 1, "user"), ("TargetDb", 0, 1, "user")]
    assert certificates == [("SenderCert", "ENCRYPTED_BY_MASTER_KEY"), ("TheirCert", "NO_PRIVATE_KEY")]
    assert bindings == [("ToTarget", "//x/Target", "Remote", 0)]
    assert waiting == [(0,)]
    assert received == [("//x/Target", "//x/Request", "<hello/>")]
    assert who[0][:2] == ("TargetOwner", "TargetOwner")
    assert permissions == [("SenderThere", "SQL_USER", "SEND", "GRANT"), ("TargetOwner", "SQL_USER", "-", None)]
    assert any(said.text.startswith("229: The RECEIVE permission was denied") for said in results.messages)


def test_what_is_stuck_is_seen_and_cleaned(db: sb.Database) -> None:
    results = run(db, "monitoring")
    assert results.errors == []
    health, waiting, bodies, old, tables, report, messages, refused, nothing = rows(results)
    assert health == [("SA", "A", 1, 9, "NONE"), ("SB", "B", 0, 0, "NONE")]
    assert waiting == [("SB", 3, "no")]
    assert bodies == [("payload 1, payload 3, payload 5",)]
    assert old == [("SA", 3, "soon"), ("SB", 3, "soon")]
    assert tables == [("A",), ("B",)]
    assert report == [('<queues><sys.service_queues name="B" b="3"/></queues>',)]
    assert (messages, refused, nothing) == ([(0,)], [(3716, 16)], [(0,)])
    assert [said.text for said in results.messages if said.number != 5701] == ["clean"]


def test_an_installation_runs_and_runs_again(db: sb.Database) -> None:
    for version, said in (("1.0", ["dropped 0"]), ("1.1", ["versions are kept: 1", "dropped 4"])):
        results = run(db, "installation")
        stock, heavy, receipts, options, installed = rows(results)
        assert stock == [
            ("A-01", Decimal("1.100"), "fine"),
            ("A-02", Decimal("1.800"), "over"),
            ("B-01", Decimal("2.500"), "fine"),
        ]
        assert heavy == [(3, 700, 2100)]
        assert receipts == [("2", "//depot/Receipt")] * 3
        assert options == [("A-01", "int", 12), ("A-02", "nvarchar", "cold"), ("B-01", "date", date(2020, 1, 2))]
        assert installed == [(version, "me")]
        assert [error.number for error in results.errors] == [547, 547, 2627]
        for error, name in zip(results.errors, ("FK_Parcels_Shelves", "CK_Parcels_Grams", "UQ_Shelves"), strict=True):
            assert name in error.text
        assert [one.text for one in results.messages if one.number != 5701][:-1] == said


def test_what_is_defined_is_audited_but_for_the_window_in_which_nothing_is(db: sb.Database) -> None:
    results = run(db, "ddl_audit")
    scopes, log, strangers, problems, rights, function, counts, flag, refused, unpaid, invoices, left, endpoints = rows(
        results
    )
    assert [error.number for error in results.errors] == [3906, 50000, 50000, 3609]
    assert scopes == [("AuditBroker", "DATABASE", 23), ("AuditServer", "SERVER", 6), ("AuditTables", "DATABASE", 17)]
    assert [row[1:4] for row in log] == [
        ("CREATE_TABLE", "dbo", "Invoice"),
        ("ALTER_TABLE", "dbo", "Invoice"),
        ("CREATE_INDEX", "dbo", "IX_Invoice_Paid"),
        ("CREATE_PROCEDURE", "dbo", "PayInvoice"),
        ("ALTER_PROCEDURE", "dbo", "PayInvoice"),
        ("CREATE_TRIGGER", "dbo", "NoCheaper"),
        ("GRANT_DATABASE", "dbo", "PayInvoice"),
        ("DENY_DATABASE", "dbo", "Invoice"),
        ("CREATE_QUEUE", "dbo", "Dunning"),
        ("ALTER_QUEUE", "dbo", "Dunning"),
        ("DROP_QUEUE", "dbo", "Dunning"),
        ("CREATE_LOGIN", "-", "AuditedLogin"),
        ("DROP_LOGIN", "-", "AuditedLogin"),
    ]
    assert (strangers, problems) == ([(0,)], [])
    assert rights == [("GRANT_DATABASE", "execute", "Clerk"), ("DENY_DATABASE", "delete", "Clerk")]
    assert function == [("ALTER_PROCEDURE", "CREATE OR ALTER PROCEDUR")]
    assert counts == [(6, 3, 1)]
    assert flag == [("AuditDb", 1)]
    assert refused == [(3906, 16, 'Failed to update database "AuditDb" because the database is read-only.', 0)]
    assert unpaid == [(2,)]
    assert invoices == [(1, Decimal("10.00"), True), (2, Decimal("20.00"), False)]
    assert (left, endpoints) == ([(0,)], [("CLOSED", 3)])
