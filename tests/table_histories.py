"""Random histories of a pipeline's table whose rule changes while messages are written, compared with a model.

The model is independent of Arrow and of table formats. It keeps messages and rows as plain values, and decides itself
which change of a rule a table can follow.
"""

from __future__ import annotations

import json
import os
from contextlib import suppress
from dataclasses import dataclass, field, replace
from decimal import Decimal
from typing import ClassVar

import duckdb
import pyarrow as pa
import pytest
from deltalake import DeltaTable, Field
from deltalake.schema import PrimitiveType

from pipeline_tables import batch, land, message, pipeline
from servicebroker.model.errors import InstanceError
from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.definition import MessageRule
from servicebroker.pipeline.deletes import DeleteRule
from servicebroker.pipeline.rebuild import rebuild
from servicebroker.pipeline.sinks.maintenance import compact, replay
from servicebroker.pipeline.sinks.target import target

KINDS = ("integer", "long", "double", "string", "decimal(4,1)", "decimal(6,1)", "decimal(8,3)")
WIDER = {
    "integer": ("long",),
    "decimal(4,1)": ("decimal(6,1)", "decimal(8,3)"),
    "decimal(6,1)": ("decimal(8,3)",),
}
NAMES = ("a", "b", "c", "d")
STEPS = ("land", "land", "land", "change", "change", "replay", "rebuild", "others", "compact", "again")


class Unreadable(Exception):
    pass


class PowerLoss(Exception):
    """A simulated loss of power."""


@dataclass
class Model:
    """The expected content of the table: rows by their message, its columns, and the quarantine."""

    is_keyed: bool
    deletes: bool = False
    rule: dict[str, tuple[str, bool]] = field(default_factory=dict)  # column: kind, whether it is optional
    columns: dict[str, str] = field(default_factory=dict)
    others: set[str] = field(default_factory=set)
    bodies: list[dict] = field(default_factory=list)
    rows: dict[int, dict] = field(default_factory=dict)
    quarantine: set[int] = field(default_factory=set)
    tombstones: dict[object, int] = field(default_factory=dict)  # the last message that deleted a key

    def read(self, body: dict) -> dict:
        return {name: value_of(kind, body.get(name), optional) for name, (kind, optional) in self.rule.items()}

    def land(self, order: int) -> None:
        try:
            self.take(order)
        except Unreadable:
            self.quarantine.add(order)

    def take(self, order: int) -> None:
        body = self.bodies[order]
        if self.deletes and is_delete(body):
            key = value_of(self.rule["id"][0], body["id"], False)
            self.tombstones[key] = max(order, self.tombstones.get(key, -1))
            self.rows = {number: row for number, row in self.rows.items() if row["id"] != key or number > order}
        else:
            self.put(order, self.read(body))

    def put(self, order: int, row: dict) -> None:
        old = (
            [number for number, row_there in self.rows.items() if row_there["id"] == row["id"]] if self.is_keyed else []
        )
        if order in self.rows or any(number > order for number in [*old, self.tombstones.get(row["id"], -1)]):
            return
        kept_values = {name: self.rows[number][name] for number in old for name in self.others}
        for number in old:
            del self.rows[number]
        self.rows[order] = dict.fromkeys(self.columns) | kept_values | row

    def refuses(self, rule: dict[str, tuple[str, bool]]) -> set[str]:
        """Return the columns of a rule that the table cannot follow."""
        if not self.rows:
            return set()
        wrong = {name for name, (_, optional) in rule.items() if name not in self.columns and not optional}
        return wrong | {
            name
            for name, (kind, _) in rule.items()
            if name in self.columns and kind != self.columns[name] and kind not in WIDER.get(self.columns[name], ())
        }

    def follow(self, rule: dict[str, tuple[str, bool]]) -> None:
        self.rule = rule
        self.columns |= {name: kind for name, (kind, _) in rule.items()}
        for row in self.rows.values():
            row.update({name: None for name in self.columns if name not in row})

    def replay(self) -> None:
        for order in sorted(self.quarantine):
            try:
                self.take(order)
            except Unreadable:
                continue
            self.quarantine.remove(order)

    def rebuild(self, rule: dict[str, tuple[str, bool]]) -> None:
        kept_values = {order: {name: row[name] for name in self.others} for order, row in self.rows.items()}
        self.rule, self.rows, self.tombstones = rule, {}, {}
        self.columns = {name: kind for name, (kind, _) in rule.items()} | {
            name: kind for name, kind in self.columns.items() if name in self.others
        }
        for order in range(len(self.bodies)):
            self.land(order)
        for order, row in self.rows.items():
            row.update(kept_values.get(order, {}))
        self.replay()


def value_of(kind: str, value: object, optional: bool) -> object:
    if value is None:
        if optional:
            return None
        raise Unreadable
    if kind in ("integer", "long"):
        good = isinstance(value, int) and abs(value) < 2 ** (31 if kind == "integer" else 63)
    elif kind == "double":
        good = isinstance(value, int | float)
    elif kind == "string":
        good = isinstance(value, str)
    else:
        precision, scale = map(int, kind[8:-1].split(","))
        good = isinstance(value, int | float) and abs(Decimal(str(value)) * 10**scale) < 10**precision
        good = good and Decimal(str(value)) * 10**scale % 1 == 0
        return Decimal(str(value)) if good else bad()
    return value if good else bad()


def is_delete(body: dict) -> bool:
    return body.get("op") == "d" or body.get("kind") == "Gone"


def bad() -> object:
    raise Unreadable


class History:
    """One random history: every step runs on the tables and on the model, which are then compared."""

    def __init__(self, random, folder, lake):
        self.random, self.folder, self.lake = random, folder, lake
        self.partition_by = random.choice([(), (), ("_date",), ("id",)])
        self.model = Model(*random.choice([(False, False), (True, False), (True, True), (True, True)]))
        self.pipe = self.pipe_of({"id": ("integer", False), "a": (random.choice(KINDS), True)})
        target(self.pipe, "orders").create_or_extend()
        self.model.follow(self.rule)
        self.batches = 0
        self.seen: dict[int, dict] = {}
        self.told: list[str] = []

    def pipe_of(self, rule):
        self.rule = rule
        columns = tuple(Column(name, kind, optional) for name, (kind, optional) in rule.items())
        key = ("id",) if self.model.is_keyed else ()
        rules = [MessageRule("Order", "json", "orders", columns, self.partition_by, key)]
        if self.model.deletes:
            rules[0] = replace(rules[0], delete=DeleteRule("field", "op", ("d",)))
            delete_rule = MessageRule(
                "Gone", "json", "orders", (Column("id", rule["id"][0]),), delete=DeleteRule("always")
            )
            rules.insert(self.random.randrange(2), delete_rule)
        return pipeline(self.folder, *rules, **self.lake.options)

    def run(self, steps):
        for _ in range(steps):
            step = self.random.choice(STEPS)
            self.told.append(step)
            getattr(self, step)()
            self.compare()
        self.look_back()

    # ---------------------------------------------------------------- steps

    def land(self):
        first = len(self.model.bodies)
        self.model.bodies += [self.body() for _ in range(self.random.randrange(1, 5))]
        self.batches += 1
        self.land_bodies("q", self.batches, range(first, len(self.model.bodies)))

    def again(self):
        """Write batches again, as after a lost checkpoint."""
        self.batches += 1
        self.land_bodies(f"lost {self.batches}", 0, range(len(self.model.bodies)))

    def land_bodies(self, query, number, orders):
        bodies = [(order, self.model.bodies[order]) for order in orders]
        rows = [
            message(order, json.dumps(body).encode(), body.get("kind", "Order"), minutes=order)
            for order, body in bodies
        ]
        if self.random.random() < 0.3:
            self.cut(lambda: land(self.pipe, query, number, batch(*rows)))
        land(self.pipe, query, number, batch(*rows))
        for order in orders:
            self.model.land(order)

    def change(self):
        rule = self.other_rule()
        before = self.pipe
        pipe = self.pipe_of(rule)
        self.told.append(str(rule))
        wrong = self.model.refuses(rule)
        into = target(pipe, "orders")
        if wrong:
            version = self.lake.version("orders")
            for operation in (into.plan_schema_change, into.create_or_extend):
                with pytest.raises(InstanceError) as error:
                    operation()
                assert any(f"'{name}'" in str(error.value) for name in wrong)
            assert self.lake.version("orders") == version
            self.pipe, self.rule = before, self.model.rule
            return
        needs = into.plan_schema_change()
        changes = {name for name, (kind, _) in rule.items() if self.model.columns.get(name) != kind}
        assert {name for name, _ in needs.added} | {one.column for one in needs.widened} == changes
        if self.random.random() < 0.3:
            self.cut(into.create_or_extend)
        into.create_or_extend()
        assert not into.plan_schema_change()
        self.pipe = pipe
        self.model.follow(rule)

    def replay(self):
        replay(self.pipe)
        self.model.replay()

    def rebuild(self):
        rule = self.other_rule() if self.random.random() < 0.7 else self.rule
        self.told.append(str(rule))
        self.pipe = self.pipe_of(rule)
        if self.lake.version("bronze") is None:
            self.pipe = self.pipe_of(self.model.rule)
            return
        if self.random.random() < 0.3:
            self.cut(lambda: rebuild(self.pipe, "orders"))
        self.model.rebuild(rule)
        assert rebuild(self.pipe, "orders").rows == len(self.model.rows)

    def others(self):
        """Let another user add a column and fill it."""
        if self.model.deletes:  # a row that follows a delete in its batch takes over the values of the deleted row
            return
        name = f"theirs{len(self.model.others)}"
        self.lake.add_column("orders", name)
        self.model.others.add(name)
        self.model.columns[name] = "string"
        for row in self.model.rows.values():
            row[name] = None
        if self.model.rows:
            least = self.random.choice(list(self.model.rows))
            self.lake.fill("orders", name, least)
            for order, row in self.model.rows.items():
                row[name] = "x" if order >= least else None

    def compact(self):
        compact(self.pipe, 168)

    def cut(self, act):
        """Lose power at a random write."""
        left = self.random.randrange(12)
        fsync = os.fsync

        def failing(descriptor):
            nonlocal left
            left -= 1
            if left < 0:
                raise PowerLoss
            fsync(descriptor)

        os.fsync = failing
        with suppress(PowerLoss):
            try:
                act()
            finally:
                os.fsync = fsync

    # ---------------------------------------------------------------- random values

    def body(self):
        random = self.random
        values = [None, 1, -5, 2**31, 2**40, 12.5, 0.125, 99999.5, 999.9, "", "x", "ä"]
        found = {name: random.choice(values) for name in NAMES if random.random() < 0.7}
        found["id"] = random.choice([1, 2, 3, 4, 2**35, "x"]) if random.random() < 0.3 else random.randrange(5)
        if self.model.deletes and random.random() < 0.4:
            return {"id": found["id"], **random.choice([{"op": "d"}, {"kind": "Gone"}])}
        return found

    def other_rule(self):
        random, rule = self.random, dict(self.rule)
        kind = random.choice(KINDS)
        free = [name for name in NAMES if name not in rule]
        own = [name for name in rule if name != "id"]
        choice = random.randrange(7)
        if choice == 0 and free:
            rule[random.choice(free)] = (kind, random.random() < 0.8)
        elif choice == 1 and own:
            del rule[random.choice(own)]
        elif choice == 2 and own:
            name = random.choice(own)
            rule[name] = (random.choice(WIDER.get(rule[name][0], KINDS)), rule[name][1])
        elif choice == 3 and own and free:
            rule[random.choice(free)] = rule.pop(random.choice(own))
        elif choice == 4:
            narrow = rule["id"][0] == "integer" or "id" not in self.partition_by or self.lake.redivides
            narrow = narrow and not self.model.deletes  # tombstones refuse it too
            rule["id"] = (random.choice(["integer", "long"]) if narrow else "long", False)
        elif choice == 5 and own:
            name = random.choice(own)
            rule[name] = (kind, not rule[name][1])
        names = random.sample(list(rule), len(rule))
        return {name: rule[name] for name in names}

    # ---------------------------------------------------------------- comparison

    def compare(self):
        assert {name: kind for name, kind in self.lake.kinds("orders").items() if name[0] != "_"} == self.model.columns
        expected = {order: dict(row) for order, row in self.model.rows.items()}
        for rows in self.lake.read("orders"):
            assert by_order(rows) == expected
        rows_there = self.lake.read("quarantine")[0] if self.lake.version("quarantine") is not None else []
        assert sorted(row["queuing_order"] for row in rows_there) == sorted(self.model.quarantine)
        if self.model.deletes and self.lake.version("orders_tombstones") is not None:
            rows_there = self.lake.read("orders_tombstones")[0]
            assert {row["id"]: row["_queuing_order"] for row in rows_there} == self.model.tombstones
            assert len(rows_there) == len(self.model.tombstones)
        self.seen.setdefault(self.lake.version("orders"), expected)

    def look_back(self):
        """Check that a reader of an older version finds its rows."""
        for version, expected in self.random.sample(sorted(self.seen.items()), min(3, len(self.seen))):
            for rows in self.lake.read("orders", version):
                assert by_order(rows) == expected


def by_order(rows):
    """Return the rows of a rule's table by their message's place, and check that each occurs once."""
    rows_by_order = {row["_queuing_order"]: {key: value for key, value in row.items() if key[0] != "_"} for row in rows}
    assert len(rows_by_order) == len(rows)
    return rows_by_order


class InDelta:
    """The Delta tables of a history, as other programs read and change them."""

    options: ClassVar = {}
    redivides = True  # a partition column may get any type

    def __init__(self, folder):
        self.folder = folder

    def version(self, name):
        is_table = DeltaTable.is_deltatable(str(self.folder / name))
        return DeltaTable(self.folder / name).version() if is_table else None

    def kinds(self, name):
        return {field.name: kind_of(field.type) for field in DeltaTable(self.folder / name).schema().fields}

    def read(self, name, version=None):
        table = DeltaTable(self.folder / name, version=version)
        return rows_in_arrow(table), *([rows_in_duckdb(table, self.folder / name)] if name == "orders" else [])

    def add_column(self, name, column):
        DeltaTable(self.folder / name).alter.add_columns([Field(column, PrimitiveType("string"))])

    def fill(self, name, column, least):
        DeltaTable(self.folder / name).update(updates={column: "'x'"}, predicate=f"_queuing_order >= {least}")


def kind_of(delta_type):
    """Return the name of a Delta type in a rule."""
    return delta_type.type


def rows_in_duckdb(table, folder):
    """Read the rows with DuckDB. Every file must have the types of the table."""
    kinds = {"integer": "INTEGER", "long": "BIGINT", "double": "DOUBLE", "string": "VARCHAR"}
    types = {field.name: field.type.type for field in table.schema().fields}
    result_rows = []
    for add in pa.table(table.get_add_actions(flatten=True)).to_pylist():
        name = str(folder / add["path"])
        relation = duckdb.execute(
            "select columns(lambda c: c[1] != '_' or c = '_queuing_order') "
            "from read_parquet(?, hive_partitioning = false)",
            [name],
        )
        names = [column[0] for column in relation.description]
        for column in relation.description:
            if not column[0].startswith("_"):
                assert str(column[1]) == kinds.get(types[column[0]], types[column[0]].upper()), name
        for values in relation.fetchall():
            row = dict.fromkeys(types) | dict(zip(names, values, strict=True))
            row |= {key[10:]: value for key, value in add.items() if key.startswith("partition.")}
            result_rows.append(row)
    return result_rows


def rows_in_arrow(table):
    """Read the rows with Arrow. A filter on a text must work in each file."""
    import pyarrow.compute as pc

    dataset = table.to_pyarrow_dataset()
    handle = next(name for name in dataset.schema.names if name.endswith("conversation_handle"))
    rows = dataset.to_table(filter=pc.field(handle) == "h").to_pylist()
    assert len(rows) == table.count()
    return rows
