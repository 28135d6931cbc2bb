"""Random lives of a stream, driven and cut off as Spark drives it and as machines cut it off: every message lands once.

Between any two steps somebody sends, rolls back, holds a transaction open, moves, ends, receives, reads beside it,
switches the queue off, or drops it and makes it again; from start to start the options are others, and the checkpoint
may be lost, foreign or an old copy.
"""

import contextlib
import json
import shutil
import uuid
from collections import Counter
from dataclasses import replace

import pytest

from pipeline_support import END_OF_STREAM, LINE, Feed, warehouse

pytest.importorskip("pyspark")

from adbc_driver_manager import Error as ReadError
from deltalake import DeltaTable
from pyspark.sql.streaming.datasource import ReadMaxRows

from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.pipeline.checkpoint import Checkpoints
from servicebroker.pipeline.decoding import Column
from servicebroker.pipeline.definition import MessageRule, Pipeline, QueueRule
from servicebroker.pipeline.options import source_options
from servicebroker.pipeline.sinks.target import Target
from servicebroker.pipeline.sinks.warehouse import commit_results, sort_rows
from servicebroker.pipeline.stream import rows as source_rows
from servicebroker.pipeline.stream.frontier import Frontier
from servicebroker.pipeline.stream.reader import QueueReader, QueueStreamReader
from servicebroker.pipeline.stream.rows import messages_for_sink
from servicebroker.store import locks
from support import eventually

CUT_RATE, DROP_RATE = 0.06, 0.004  # the probabilities of a power failure between two steps, and of a dropped queue
LINES = MessageRule(LINE, "json", "lines", (Column("sender", "long"), Column("n", "long")))
OLD_CHECKPOINT_ERRORS = ("is older than what the queue", "of this query was read already")
ANOTHER = ("belongs to another queue, or to one that was dropped", "was dropped while it was read")


class PowerLoss(Exception):
    """The power went."""


class Talk:
    """A conversation: what of it was committed, whether somebody still sends, and whether its target has let it go."""

    def __init__(self, number, handle):
        self.number, self.handle = number, handle
        self.sent = []
        self.next = 0
        self.is_open, self.is_cut = True, False

    def bodies(self, count):
        numbers = range(self.next, self.next + count)
        self.next += count
        return [*numbers], [json.dumps({"sender": self.number, "n": n}) for n in numbers]


class World:
    """Everybody but the stream: each deed is whole, unless it is an open transaction."""

    def __init__(self, feed, rng):
        self.feed, self.rng, self.database = feed, rng, feed.database
        self.talks = []
        self.transactions = {}  # by talk
        self.moved = set()
        self.is_on, self.is_read = True, False
        self.done = Counter()
        self._prepare()

    def _prepare(self):
        """Rollbacks of `use_otherwise`, five in a row, do not switch the queue off."""
        self.database.alter_queue(self.feed.queue, poison_message_handling=False)

    def is_free(self):
        """Return whether the queue has no owner."""
        with self.database.instance.connection() as connection:
            sql = (
                "select count(*) from pg_locks where locktype = 'advisory' and classid = %s and objid = %s "
                "and mode = 'ExclusiveLock'"
            )
            return connection.execute(sql, (locks.PIPELINE_QUEUE, self.feed.queue_id)).fetchone() == (0,)

    def run_action(self):
        often = (self.send,) * 8 + (self.begin,) * 3 + (self.hold, self.settle_one, self.settle_one)
        name = self.rng.choice((*often, self.move, self.end, self.stop, self.finish, self.switch, self.use_otherwise))
        if name() is not False:
            self.done[name.__name__] += 1

    def begin(self):
        self.talks.append(Talk(len(self.talks), self.feed.dialog()))
        self.send(self.talks[-1])

    def _choose_talk(self):
        free = [talk for talk in self.talks if talk.is_open and talk not in self.transactions]
        return self.rng.choice(free) if free else None

    def send(self, talk=None):
        talk = talk or self._choose_talk()
        if talk is None:
            return False
        numbers, bodies = talk.bodies(self.rng.choice((1, 1, 2, 5, 30)))
        with self.feed.database.transaction() as transaction:
            transaction.send_batch(talk.handle, LINE, bodies)
        talk.sent += numbers
        return True

    def hold(self):
        """A transaction has drawn its number and sends; later it commits or not."""
        talk = self._choose_talk()
        if talk is None or len(self.transactions) == 2:
            return False
        context = self.database.transaction()
        transaction = context.__enter__()
        transaction.connection.execute("select pg_current_xact_id()")
        numbers, bodies = talk.bodies(3)
        transaction.send_batch(talk.handle, LINE, bodies)
        self.transactions[talk] = (context, numbers)
        return True

    def settle_one(self):
        if not self.transactions:
            return False
        talk = self.rng.choice([*self.transactions])
        context, numbers = self.transactions.pop(talk)
        if self.rng.random() < 0.3:
            context.__exit__(InterruptedError, InterruptedError(), None)
        else:
            context.__exit__(None, None, None)
            talk.sent += numbers
        return True

    def settle(self):
        while self.settle_one():
            pass

    def _reading_conversation(self):
        """A conversation of the reading side: its handle, its group, and the talk."""
        with self.database.instance.connection() as connection:
            sql = (
                "select e.far_handle, e.far_group_id, e.conversation_handle "
                "from servicebroker.conversation_endpoints e "
                "join servicebroker.conversation_endpoints far on far.conversation_handle = e.far_handle "
                "join servicebroker.services s on s.service_id = e.service_id where s.name = %s and far.state = 'CO' "
                "order by e.conversation_id"
            )
            rows = connection.execute(sql, (self.feed.from_service,)).fetchall()
        talks = {talk.handle: talk for talk in self.talks}
        return [(handle, group, talks[near]) for handle, group, near in rows]

    def move(self):
        self.settle()
        known = self._reading_conversation()
        if len(known) < 2:
            return False
        (handle, own, talk), (_, group, _) = self.rng.sample(known, 2)
        if group == own:
            return False
        if self.is_read:
            with pytest.raises(InstanceError, match="A pipeline reads the queue"):
                self.database.move_conversation(handle, group)
            return False
        self.database.move_conversation(handle, group)
        self.moved.add(talk.number)
        return True

    def end(self):
        """The reading side ends a conversation: what is not read is gone."""
        self.settle()
        known = self._reading_conversation()
        if len(known) < 3:
            return False
        handle, _, talk = self.rng.choice(known)
        self.database.end_conversation(handle)
        talk.is_open, talk.is_cut = False, True
        return True

    def stop(self):
        """The sender ends a conversation: what was sent arrives."""
        return self._last(lambda talk: self.database.end_conversation(talk.handle))

    def finish(self):
        return self._last(lambda talk: self.database.send(talk.handle, END_OF_STREAM))

    def _last(self, how):
        talk = self._choose_talk()
        if talk is None:
            return False
        how(talk)
        talk.is_open = False
        return True

    def switch(self):
        self.settle()
        self.is_on = not self.is_on
        self.database.alter_queue(self.feed.queue, status=self.is_on)

    def use_otherwise(self):
        """A reader, a second stream, a look."""
        if self.is_read:
            with pytest.raises(InstanceError, match="A pipeline reads the queue") if self.is_on else refuses(9617):
                self.database.receive(self.feed.queue)
            with pytest.raises(InstanceError, match="being read by another pipeline"):
                attach(self.feed, claimTimeout="0").initialOffset()
        elif self.is_on:
            with contextlib.suppress(InterruptedError), self.database.transaction() as transaction:
                transaction.receive(self.feed.queue, top=3)
                raise InterruptedError
        look = QueueReader(source_options(self.feed.options | {"minPartitions": "2"}))
        assert (
            sum(batch.num_rows for part in look.partitions() for batch in look.read(part)) <= self.feed.waiting_count()
        )

    def drop(self):
        """The queue is another one from now on."""
        self.settle()
        self.database.drop_service(self.feed.to_service)
        self.database.drop_queue(self.feed.queue)
        self.feed.create()
        self._prepare()
        self.is_on, self.is_read = True, False
        for talk in self.talks:
            talk.is_open, talk.is_cut = False, True
        self.done["drop"] += 1


@contextlib.contextmanager
def refuses(number):
    with pytest.raises(BrokerError) as refusal:
        yield
    assert refusal.value.number == number


def attach(feed, **options):
    return QueueStreamReader(source_options(feed.options | options))


class StreamRuns:
    """The stream, from start to start."""

    def __init__(self, world, folder, rng):
        self.world, self.rng = world, rng
        self.rule = QueueRule("url", "Warehouse", world.feed.queue)
        self.pipe = Pipeline("ledger", folder, (self.rule,), (LINES,))
        self.folder = self.pipe.checkpoint(self.rule)
        self.copy = folder / "copy"
        self.landed = Counter()  # one more than the last batch, by query
        self.batches, self.wanted = 0, 0
        self.cuts = True
        self.reading = None
        self.is_copy = False  # the checkpoint was put back, and may know less than the queue and the tables
        self.seen = Counter()

    def step(self):
        """Between two steps of the stream: somebody else's turn, or the end."""
        while self.rng.random() < 0.6:
            self.world.run_action()
        if self.cuts and self.rng.random() < DROP_RATE:
            self.world.drop()
        if self.cuts and self.rng.random() < CUT_RATE:
            raise PowerLoss

    # ------------------------------------------------ what Spark writes down

    def recorded_batches(self, kind):
        return sorted(int(one.name) for one in (self.folder / kind).glob("*"))

    def note(self, kind, number, offset=None):
        (self.folder / kind / str(number)).write_text(json.dumps(offset))

    def offset(self, number):
        return json.loads((self.folder / "offsets" / str(number)).read_text())

    @property
    def query(self):
        if not self.folder.exists():
            for kind in ("offsets", "commits"):
                (self.folder / kind).mkdir(parents=True)
            (self.folder / "metadata").write_text(json.dumps({"id": str(uuid.UUID(int=self.rng.getrandbits(128)))}))
        return json.loads((self.folder / "metadata").read_text())["id"]

    def lose(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        self.is_copy = False
        self.seen["lost"] += 1

    def change_checkpoint(self):
        """Lose the checkpoint, copy it, or restore an old copy, which is refused once a table has landed more."""
        what = self.rng.random()
        if what < 0.1:
            self.lose()
        elif what < 0.4 and self.folder.exists():
            shutil.rmtree(self.copy, ignore_errors=True)
            shutil.copytree(self.folder, self.copy)
        elif what < 0.6 and self.copy.exists():
            shutil.rmtree(self.folder, ignore_errors=True)
            shutil.copytree(self.copy, self.folder)
            self.is_copy = True
            self.seen["copied"] += 1
        is_old = self.landed[self.query] - 1 > max(self.recorded_batches("offsets"), default=-1)
        with pytest.raises(InstanceError, match="is older than the table") if is_old else contextlib.nullcontext():
            Checkpoints(self.pipe).check(self.rule)
        if is_old:
            self.seen["old"] += 1
            self.lose()

    # ------------------------------------------------ a run

    def run(self):
        """Until it is cut off, or has nothing more."""
        if self.cuts:
            self.change_checkpoint()
        options = {
            "minPartitions": str(self.rng.randrange(1, 5)),
            "partitioning": self.rng.choice(("group", "range")),
            "deliver": self.rng.choice(("messages", "parts")),
            "ack": self.rng.choice(("delete", "archive")),
            "failOnDataLoss": self.rng.choice(("true", "false")),
            "includeSystemMessages": self.rng.choice(("true", "false")),
            "startingOffsets": "earliest",
            "maxBytesPerTrigger": self.rng.choice(("0", "300")),
        }
        self.limit = ReadMaxRows(self.rng.choice((3, 20, 100_000)))
        if not self.cuts:
            self.limit, options["maxBytesPerTrigger"] = ReadMaxRows(100_000), "0"
        reader = attach(self.world.feed, **options)
        try:
            self.read(reader)
            return True
        except PowerLoss:
            self.seen["cut"] += 1
        except InstanceError as problem:  # the queue is another one: somebody who knows that lets the old one go
            if self.is_copy and any(one in str(problem) for one in OLD_CHECKPOINT_ERRORS):
                self.seen["old"] += 1
                self.lose()
                return False
            if not self.world.done["drop"] or not any(one in str(problem) for one in ANOTHER):
                raise
            self.seen["refused"] += 1
            self.lose()
        except ReadError:  # a task of a queue that has gone
            if not self.world.done["drop"]:
                raise
            self.seen["refused"] += 1
        finally:
            reader.stop()
            eventually(self.world.is_free)  # the server sees a moment later that its session is gone
            self.world.is_read = False
        return False

    def read(self, reader):
        query = self.query
        at = reader.initialOffset()
        self.world.is_read = True
        self.refuses_foreign(reader, at)
        offsets = self.recorded_batches("offsets")
        if offsets:
            before = self.offset(offsets[-2]) if len(offsets) > 1 else at
            at = self.offset(offsets[-1])
            if offsets[-1] not in self.recorded_batches("commits"):
                self.batch(reader, query, offsets[-1], before, at)
        idle = 0
        while idle < 3 and (not self.cuts or self.batches < self.wanted):
            end = reader.latestOffset(at, self.limit)
            self.step()
            if end is at:
                idle += 1
                continue
            number = max(self.recorded_batches("offsets"), default=-1) + 1
            self.note("offsets", number, end)
            self.step()
            self.batch(reader, query, number, at, end)
            at = end

    def refuses_foreign(self, reader, at):
        foreign = replace(Frontier.from_json(at), system_identifier="1").opened(7).read_to(3).to_json()
        if not reader._options.fail_on_data_loss:
            return
        with pytest.raises(InstanceError, match="another PostgreSQL server"):
            reader.latestOffset(foreign, self.limit)

    def batch(self, reader, query, number, start, end):
        self.batches += 1
        self.reading = query, number
        written = []
        for part in reader.partitions(start, end):
            self.step()
            written.append(sort_rows(self.pipe, self.rule, query, messages_for_sink(reader.read(part))))
        self.step()
        commit_results(self.pipe, self.rule, written, number)
        self.step()
        self.note("commits", number)
        self.step()


@pytest.fixture
def stream_runs(instance, tmp_path, seeded_random, monkeypatch):
    feed = Feed(warehouse(instance))
    world = World(feed, seeded_random)
    life = StreamRuns(world, tmp_path, seeded_random)
    commit = Target.commit

    def committing(into, files, query, number, **more):
        commit(into, files, query, number, **more)
        life.landed[query] = max(life.landed[query], number + 1)
        life.step()

    monkeypatch.setattr(Target, "commit", committing)
    monkeypatch.setattr(source_rows, "batch_of_task", lambda: life.reading)
    return life


def test_every_message_is_written_once_and_in_order(stream_runs, request, record_property):
    world, stream_runs.wanted = stream_runs.world, request.config.option.ledger_batches
    while stream_runs.batches < stream_runs.wanted:
        world.begin()
        for _ in range(3):  # while nobody reads
            world.run_action()
        stream_runs.run()
    stream_runs.cuts = False
    world.settle()
    if not world.is_on:
        world.switch()
    world.run_action = lambda: None
    stream_runs.step = lambda: None
    while not stream_runs.run():
        pass
    assert world.feed.waiting_count() == 0
    check(stream_runs)
    summary = ", ".join(f"{count} {name}" for name, count in sorted((world.done + stream_runs.seen).items()))
    record_property("lives", f"{stream_runs.batches} batches; {summary}")


def check(stream_runs):
    """A conversation whose target let it go has its beginning; any other has all. None has anything twice."""
    rows = DeltaTable(stream_runs.pipe.folder("lines")).to_pyarrow_table().to_pylist()
    found = {talk.number: [] for talk in stream_runs.world.talks}
    for row in sorted(rows, key=lambda row: row["_message_sequence_number"]):
        found[row["sender"]].append(row)
    for talk in stream_runs.world.talks:
        numbers = [row["n"] for row in found[talk.number]]
        assert numbers == (talk.sent[: len(numbers)] if talk.is_cut else talk.sent), talk.number
        assert [row["_message_sequence_number"] for row in found[talk.number]] == [*range(len(numbers))]
        assert len({row["_conversation_handle"] for row in found[talk.number]}) <= 1
    bronze = DeltaTable(stream_runs.pipe.folder("bronze")).to_pyarrow_table().to_pylist()
    bodies = Counter(row["message_body"] for row in bronze if row["message_type_name"] == LINE)
    there = {(body["sender"], body["n"]) for body in map(json.loads, bodies)} - {(r["sender"], r["n"]) for r in rows}
    cut = {talk.number for talk in stream_runs.world.talks if talk.is_cut}
    assert {sender for sender, _ in there} <= cut  # ended between two tries of a batch
    assert len(bodies) == len(rows) + len(there)
    again = {json.loads(body)["sender"] for body, count in bodies.items() if count > 1}
    assert again <= stream_runs.world.moved  # bronze knows a message by its place in the queue
