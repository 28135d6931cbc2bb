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

SCRIPTS = Path(__file__).parents[2] / "tsql_scripts"


def run(database: sb.Database, name: str, folder: Path | None = None) -> Results:
    results = Results()
    with Session(database, results.add) as session:
        session.run((SCRIPTS / f"{name}.sql").read_text().replace("$(folder)", str(folder)))
    return results


def rows(results: Results) -> list[list[tuple[Any, ...]]]:
    return [found.rows for found in results.sets]


@pytest.mark.parametrize("name", sorted(path.stem for path in SCRIPTS.glob("*.sql")))
def test_check_says_that_they_run(name: str) -> None:
    assert [
        finding for finding in check((SCRIPTS / f"{name}.sql").read_text()) if finding.verdict is Verdict.REFUSED
    ] == []


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
    assert any(message.text.startswith("229: The RECEIVE permission was denied") for message in results.messages)


def test_a_monitoring_script_finds_and_cleans_stuck_conversations(db: sb.Database) -> None:
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
    assert [message.text for message in results.messages if message.number != 5701] == ["clean"]


def test_an_installation_runs_and_runs_again(db: sb.Database) -> None:
    for version, expected_text in (("1.0", ["dropped 0"]), ("1.1", ["versions are kept: 1", "dropped 4"])):
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
        assert [message.text for message in results.messages if message.number != 5701][:-1] == expected_text


def test_ddl_is_audited_except_while_the_audit_is_off(db: sb.Database) -> None:
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


def test_files_are_imported_with_cursors_and_answered(db: sb.Database) -> None:
    results = run(db, "nightly_import")
    assert [(error.number, error.text) for error in results.errors] == [
        (50000, "Line 6 of bad.txt would sell what is not there.")
    ]
    done, articles, problems, files, kept, endpoints, columns = rows(results)
    assert done == [("bad.txt", 1, None), ("one.txt", 0, 505), ("two.txt", 0, 500)]
    assert [(article, stock, worth) for article, stock, _, worth in articles] == [
        ("A00001", 15, Decimal("26.25")),
        ("A00002", 100, Decimal(1999)),
        ("A00003", 10, Decimal(3)),
    ]
    assert problems == [("one.txt", "A00009", "unknown article"), ("two.txt", "A00003", "no number")]
    assert files == [
        ("two.txt", 2, 1, 500, "file two.txt: 1 lines, 3 pieces"),
        ("one.txt", 3, 1, 505, "file one.txt: 2 lines, 105 pieces"),
    ]
    assert (kept, endpoints, columns) == ([(0,)], [("CLOSED", 2)], [(15, 100, 10)])
    assert [message.text for message in results.messages if message.number != 5701] == [
        "lines with a problem: 2",
        "2 answers",
    ]


def test_messages_of_a_claim_are_in_one_group(db: sb.Database) -> None:
    results = run(db, "claims_desk")
    assert [error.number for error in results.errors] == [547]
    priorities, refused, claims, opinions, history, endpoints, urgent, stamp = rows(results)
    assert priorities == [(9, 2), (5, 4)]
    assert refused == [(8432, 16, 1, None)]
    assert [(number, str(granted), state) for number, _, granted, state in claims] == [
        ("C-1", "80.00", 3),
        ("C-2", "4000.00", 4),
        ("C-3", "56.40", 3),
    ]
    assert opinions[1] == ("C-2", "gineer=4000.00, lawyer=?")
    assert history[:2] == [("C-1", None, 1, "insert"), ("C-1", 1, 3, "update")]
    assert endpoints == [(0, "CLOSED", 5, 4, 4), (0, "CLOSED", 9, 2, 2)]
    assert (urgent, stamp) == ([("UrgentFirst", 9)], [("stamped",)])
    judged = [message.text for message in results.messages if "judged" in message.text]
    assert judged[:2] == ["urn:claims:engineer judged C-3", "urn:claims:lawyer judged C-3"]  # the urgent one


EXPECTED_ERRORS = {
    **dict.fromkeys(("key", "unique"), 2627),
    **dict.fromkeys(("check", "reference", "referenced"), 547),
    **{"null": 515, "long": 2628, "trigger": 50000, "truncate": 4712, "text to int": 245, "date": 242},
    "tinyint": 220,
    **dict.fromkeys(("overflow", "decimal"), 8115),
    **dict.fromkeys(("zero", "in a procedure", "beside a function"), 8134),
    **{"two rows": 512, "guid": 8169, "xml": 9436, "no table": 208, "no column": 207, "no procedure": 2812},
    **{"no variable": 137, "no statement": 102, "no end": 105, "no argument": 201, "three arguments": 8144},
    **{"other argument": 8145, "table again": 2714, "column again": 2705, "drop nothing": 3701},
    **{"drop no constraint": 3727, "inner": 50000, "outer": 50000, "thrown": 51234, "no savepoint": 6401},
    **{"after the rollback": 2627, "nothing to commit": 3902, "no service": 8423, "no contract": 8425},
    **{"other side": 8432, "no type": 8428, "no conversation": 8426, "timer": 402, "error code": 402},
    **{"no queue": 208, "queue in use": 3716, "not by insert": 416, "ended": 8426, "queue is off": 9617},
}


def test_every_error_is_heard_under_its_number(db: sb.Database) -> None:
    results = run(db, "error_clinic")
    assert [error.text for error in results.errors] == ["said and gone on"]
    tried, open_, doomed, refused, seen, said, wards, told, bed = rows(results)
    assert tried == [(None, None, None)]
    assert (open_, doomed, refused) == ([(1, 2)], [(-1, 1, 2627)], [(3930,)])
    assert {patient: number for patient, number, *_ in seen} == EXPECTED_ERRORS
    assert {row[0]: row[4] for row in seen if row[4]} == {"trigger": "Ward_NotSmaller", "in a procedure": "Divide"}
    assert dict(said)["inner"] == "Ward has 2 of 4, ff in hex, %"
    assert [ward[0] for ward in wards] == [1, 2, 5, 7]
    assert told[0][1] == -9616
    assert bed == []
    assert [message.text for message in results.messages if message.number != 5701] == ["only said", "after it: 50000"]


def test_readings_are_taken_out_of_json(db: sb.Database) -> None:
    results = run(db, "sensor_log")
    assert results.errors == []
    readings, paths, latest, totals, hours, tags, report, batches, words, span, weeks, alarms, left = rows(results)
    assert [(code, str(value), times) for code, _, value, times in readings][1::2] == [
        ("HALL-T1", "22.000", 2),
        ("HALL-T2", "18.500", 2),
        ("YARD-W", "5.500", 1),
    ]
    assert paths == [("ROOT/HALL/HALL-T1", 2), ("ROOT/HALL/HALL-T2", 2), ("ROOT/YARD", 1)]
    assert latest[0] == ("HALL-T1", Decimal(19), Decimal(-3), Decimal("61.5"))
    assert totals[-1] == ("all", "-", 6, Decimal("14.77"), 3)
    assert hours[2] == ("YARD-W", Decimal("3.125"), Decimal("5.5"))
    assert tags[0] == ("temp", 2, "HALL-T1, HALL-T2")
    assert report[0][0].endswith('{"device":{"code":"YARD-W"},"tags":["new"],"readings":2}]}')
    assert (batches, words) == ([(4, "g1", 651)], [("temp", 3), ("temp", 1)])
    assert span == [(1445, "Saturday", date(2024, 3, 31), "2024-03-01 10:00")]
    assert [count for _, count, _ in weeks] == [6, 0, 0]
    assert (alarms, left) == ([("ROOT/HALL/HALL-T2", Decimal(61))], [(0,)])


def test_a_release_script_alters_objects_in_use_and_can_be_repeated(db: sb.Database) -> None:
    for waiting, orders in ((3, ["order 1", "order 2"]), (2, ["order 3", "new"])):
        results = run(db, "release")
        assert [error.text[:25] for error in results.errors] == ["Step 6 failed with 547: T"]
        steps, columns, indexes, constraints, totals, usages, queues, types, keys, there, told, *taken, _ = rows(
            results
        )
        assert [step for step, _, _ in steps] == [1, 2, 3, 4, 5]
        assert [column[0] for column in columns] == ["SaleId", "CustomerId", "Total", "Tax"]
        assert len(indexes) == 3
        assert [name for name, _ in constraints] == ["CK_Purchase_Total", "FK_Purchase_Customer", "PK_Purchase"]
        assert totals[0] == ("Ada", Decimal(27), 2, Decimal(10))
        assert usages == [("shop/orders", "shop/v2")]
        assert queues == [("Orders", 1, 0, 0), ("Site", 1, 0, 1)]
        assert types == [("shop/order", "NONE"), ("shop/paid", "EMPTY")]
        assert [key[0] for key in keys][:2] == ["CK_Purchase_Total", "FK_Purchase_Customer"]
        assert there == [(waiting,)]
        assert told[0][1] == -8408
        assert [body for each in taken for _, body in each] == orders
    db.execute_tsql("USE master; DROP DATABASE Shop9")


def test_seats_are_sold_once(db: sb.Database) -> None:
    results = run(db, "ticket_office")
    assert results.errors == []
    *held, told, rows_held, sales, sold, answers, refused, free, states, endpoints, numbers = rows(results)
    assert [len(each) for each in held] == [2, 3, 2, 1]
    assert [kind for kind, _ in told].count("tickets/held") == 3
    assert rows_held == [("A", 2), ("B", 3), ("C", 1)]
    assert sales == [(1, "Lea", 2, Decimal(100)), (2, "Max", 3, Decimal(90))]
    assert [row[:3] for row in sold][2:] == [("Max", "B", 1), ("Max", "B", 2), ("Max", "B", 3)]
    assert dict(answers)["http://schemas.microsoft.com/SQL/ServiceBroker/Error"] == 1
    assert refused == [(550,)]
    assert (free, states) == ([(8,)], [("free", 8), ("sold", 4)])
    assert (endpoints, numbers) == ([("DI", 3), ("ER", 1)], [(2,)])
    texts = [message.text for message in results.messages if message.number != 5701]
    assert texts == ["Lea pays; Max pays; ", "given back: 1"]


def test_a_permission_script_runs_with_the_rights_of_its_users(db: sb.Database) -> None:
    results = run(db, "keepers")
    assert results.errors == []
    who, labels, robot, again, total, chief, boxes, heavy, body, refused, ledger, looked, signed, *others = rows(
        results
    )
    owners, people, later, still, permissions, members = others
    assert who[0][:2] == ("Clerk", "Keep9Clerk")
    assert (labels, robot, again) == ([("plates",), ("clock",)], [("Robot", "Robot")], [("Clerk",)])
    assert total == [(3, Decimal("792.5"), "dbo")]
    assert (chief, heavy, body) == ([("Chief", 0)], [(2,), (3,)], [("three boxes",)])
    assert boxes == [(1, "plates", "Clerk"), (2, "clock", "Clerk"), (3, "lamp", "Robot")]
    assert {(who, what): number for who, what, number in refused} == {
        **{("Chief", what): 229 for what in ("delete", "pack")},
        **{("Clerk", what): 229 for what in ("delete", "read a table", "receive", "text in a module")},
        **{("Clerk", what): 15517 for what in ("be chief", "be dbo")},
        ("Chief", "deny"): 15151,
        ("Chief", "send"): 8494,
        ("Clerk", "create"): 262,
    }
    assert ledger[2] == (3, "Robot", "Robot")
    assert (looked, signed) == ([(3, "Clerk")], [("LedgerCert", "Look", "SIGNATURE BY CERTIFICATE")])
    assert owners == [("keep/in", "Chief"), ("keep/out", "dbo")]
    assert [name for name, _ in people] == ["Chief", "Clerk", "Packers", "Robot"]
    assert later == [("after REVOKE", 229), ("denied beside public", 229), ("drop an owner", 15138)]
    assert still == [("Clerk",)]
    assert len(permissions) == 6
    assert members == [("Packers", "Clerk"), ("Packers", "Robot"), ("Readers", "Robot")]
