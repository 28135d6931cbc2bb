"""An instance dumped with pg_dump and restored into another server."""

from __future__ import annotations

import itertools
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import UUID

import psycopg
import pytest
from typer.testing import CliRunner

import servicebroker as sb
from servicebroker.cli.main import app as command
from servicebroker.store.cluster import programs
from servicebroker.store.embedded import EmbeddedServer
from support import (
    ORDER,
    ORDERS_QUEUE,
    REPLY,
    STOCK_QUEUE,
    begin,
    bodies,
    define_standard_set,
    errors,
    open_dialog,
    query,
    queue_number,
    refused,
    state,
    waiting_messages,
)

_numbers = itertools.count(1)


def identifier(database: sb.Database) -> UUID:
    text = "select service_broker_guid from sys.databases where name = %s"
    guid: UUID = query(database, text, database.name)[0][0]
    return guid


class Original:
    """The identifier and the conversations of the original database at the time of the dump."""

    def __init__(self, database: sb.Database) -> None:
        self.url = database.instance.url
        self.broker = identifier(database)
        self.initiator, self.target = open_dialog(database)
        database.send(self.initiator, ORDER, b"in the queue")
        self.undeliverable = begin(database, "//later")
        database.send(self.undeliverable, ORDER, b"waits")


@pytest.fixture(scope="module")
def restored_copy(
    make_url: Callable[[], str], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[str, object, Original]]:
    """Start a server with a restored copy. Return it with the copy's database name and the original's state."""
    dump = tmp_path_factory.mktemp("backup") / "dump"
    bin_folder = programs()
    url = make_url()
    with sb.open(url, upkeep=None) as instance:
        original = Original(define_standard_set(instance.database("Shop", create=True)))
        result = subprocess.run(
            [bin_folder / "pg_dump", "-Fc", "-f", dump, url], capture_output=True, text=True, check=False
        )
        assert result.returncode == 0, result.stderr
    with (  # outside of pytest's folder; conftest.py has the reason
        tempfile.TemporaryDirectory(prefix="servicebroker-tests-", ignore_cleanup_errors=True) as folder,
        EmbeddedServer.start(folder) as server,
    ):
        result = subprocess.run(
            [bin_folder / "pg_restore", "--no-owner", "--exit-on-error", "-d", server.url, dump],
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        yield server.url, psycopg.conninfo.conninfo_to_dict(server.url)["dbname"], original


@pytest.fixture
def copy_and_original(restored_copy: tuple[str, object, Original]) -> Iterator[tuple[sb.Instance, Original]]:
    """Return a copy for this test only, and the state of the original."""
    server_url, name, original = restored_copy
    copy = f"copy_{next(_numbers)}"
    with psycopg.connect(server_url.replace(f":///{name}?", ":///postgres?"), autocommit=True) as connection:
        connection.execute(f"create database {copy} template {name}")  # type: ignore[call-overload]
    url = server_url.replace(f":///{name}?", f":///{copy}?")
    with psycopg.connect(url) as connection:
        # mark the copy as adopted, without the changes that `instance adopt` makes
        connection.execute("select servicebroker.settle()")
    with sb.open(url, upkeep=None) as instance:
        yield instance, original


@pytest.mark.feature(204)
def test_a_copy_goes_on_where_it_was(copy_and_original: tuple[sb.Instance, Original]) -> None:
    copy, original = copy_and_original
    adopt_copy(copy, "keep")
    with sb.open(copy.url, upkeep=None) as instance:
        database = instance.database("Shop")
        assert identifier(database) == original.broker
        assert instance.check().findings == []
        (message,) = database.receive(STOCK_QUEUE)
        assert (message.message_body, message.message_sequence_number) == (b"in the queue", 1)
        database.send(message.conversation_handle, REPLY, b"answer")
        assert bodies(database.receive(ORDERS_QUEUE)) == [b"answer"]
        assert database.send(original.initiator, ORDER, b"next") == 2
        assert bodies(database.receive(STOCK_QUEUE)) == [b"next"]
        assert waiting_messages(database) == 1
        database.create_service("//later", STOCK_QUEUE, ["//test/Contract"])
        assert bodies(database.receive(STOCK_QUEUE)) == [b"waits"]
        database.create_queue("New")
        new = begin(database)
        assert database.send(new, ORDER, b"new") == 0
        with refused(2714):
            database.create_queue(STOCK_QUEUE)
        assert instance.check().findings == []
        database.end_conversation(original.target)
        assert [m.is_end_dialog for m in database.receive(ORDERS_QUEUE)] == [True]
        database.end_conversation(original.initiator)
        assert (state(database, original.initiator), state(database, original.target)) == (None, "CD")


@pytest.mark.feature(204)
def test_a_copy_that_is_to_be_another_broker(copy_and_original: tuple[sb.Instance, Original]) -> None:
    instance, original = copy_and_original
    database = instance.database("Shop")
    database.alter(new_broker=True)
    assert identifier(database) != original.broker
    assert (state(database, original.initiator), waiting_messages(database)) == (None, 0)
    assert database.receive(STOCK_QUEUE) == []
    database.send(begin(database), ORDER, b"fresh")
    assert bodies(database.receive(STOCK_QUEUE)) == [b"fresh"]


@pytest.mark.feature(204)
def test_a_copy_whose_conversations_are_to_end(copy_and_original: tuple[sb.Instance, Original]) -> None:
    instance, original = copy_and_original
    database = instance.database("Shop")
    database.alter(error_broker_conversations=True)
    assert identifier(database) == original.broker
    assert errors(database.receive(STOCK_QUEUE)) == [-9719]
    # one RECEIVE returns the messages of one conversation group
    assert errors(database.receive(ORDERS_QUEUE)) + errors(database.receive(ORDERS_QUEUE)) == [-9719, -9719]
    for handle in (original.initiator, original.target, original.undeliverable):
        assert state(database, handle) == "ER"
        database.end_conversation(handle)


def adopt_copy(instance: sb.Instance, identifier: str) -> str:
    """Return the output of `servicebroker instance adopt` for an unused copy."""
    instance.close()
    arguments = ["instance", "adopt", "--instance", instance.url, "--identifier", identifier, "--yes"]
    result = CliRunner().invoke(command, arguments)
    assert result.exit_code == 0, result.output
    return result.output


def stamps_ahead(database: sb.Database) -> int:
    """Return the number of messages with a transaction id that this server has not reached yet."""
    text = f"select count(*) from servicebroker.queue_{queue_number(database, STOCK_QUEUE)}"
    count: int = query(database, f"{text} where stamp >= pg_snapshot_xmax(pg_current_snapshot())")[0][0]
    return count


@pytest.mark.feature(204)
def test_a_copy_is_adopted_and_a_stream_can_read_its_messages(
    copy_and_original: tuple[sb.Instance, Original],
) -> None:
    """`adopt` replaces transaction ids that this server has not reached, so that a stream reads the messages."""
    copy, original = copy_and_original
    database = copy.database("Shop")
    number = queue_number(database, STOCK_QUEUE)
    with copy.connection() as connection:  # like a dump of a server with a high transaction id
        connection.execute(f"update servicebroker.queue_{number} set stamp = '1000000000'".encode())
    assert stamps_ahead(database) == 1
    busy = CliRunner().invoke(command, ["instance", "adopt", "--instance", copy.url, "--identifier", "keep"])
    assert "other sessions use" in str(busy.exception)
    assert "a transaction id of this server: 3." in adopt_copy(copy, "keep")  # the ids of three messages
    with sb.open(copy.url, upkeep=None) as instance:
        database = instance.database("Shop")
        assert stamps_ahead(database) == 0
        assert identifier(database) == original.broker
        assert instance.check().findings == []
        assert bodies(database.receive(STOCK_QUEUE)) == [b"in the queue"]
        assert database.send(original.initiator, ORDER, b"next") == 2


def test_a_stream_refuses_a_copy_by_its_checkpoint_and_reads_it_with_a_new_one(
    copy_and_original: tuple[sb.Instance, Original],
) -> None:
    pytest.importorskip("pyspark")
    from pyspark.sql.streaming.datasource import ReadAllAvailable

    from servicebroker.pipeline.options import source_options
    from servicebroker.pipeline.stream.reader import QueueStreamReader

    def stream(url: str) -> QueueStreamReader:
        return QueueStreamReader(source_options({"instance": url, "database": "Shop", "queue": STOCK_QUEUE}))

    copy, original = copy_and_original
    everything = ReadAllAvailable()
    original_stream = stream(original.url)
    checkpoint = original_stream.latestOffset(original_stream.initialOffset(), everything)
    original_stream.stop()
    adopt_copy(copy, "keep")
    reader = stream(copy.url)
    with pytest.raises(sb.InstanceError, match=r"as after a dump and restore.*start the query with a new checkpoint"):
        reader.latestOffset(checkpoint, everything)
    start = reader.initialOffset()
    end = reader.latestOffset(start, everything)
    batches = [batch for part in reader.partitions(start, end) for batch in reader.read(part)]
    assert [body for batch in batches for body in batch["message_body"].to_pylist()] == [b"in the queue"]
    assert reader.latestOffset(end, everything) is end
    reader.stop()


@pytest.mark.feature(204)
@pytest.mark.parametrize("option", ["new", "error"])
def test_a_copy_is_adopted_with_its_identifier_decided(
    copy_and_original: tuple[sb.Instance, Original], option: str
) -> None:
    copy, original = copy_and_original
    known_id = query(copy.database("Shop"), "select instance_id from servicebroker.instance")
    adopt_copy(copy, option)
    with sb.open(copy.url, upkeep=None) as instance:
        database = instance.database("Shop")
        assert (identifier(database) == original.broker) == (option == "error")
        assert (query(database, "select instance_id from servicebroker.instance") == known_id) == (option == "error")
        received = errors(database.receive(STOCK_QUEUE))
        assert received == ([-9719] if option == "error" else [])


def test_adopt_needs_a_valid_identifier_option() -> None:
    for arguments in ([], ["--identifier", "both"]):
        result = CliRunner().invoke(command, ["instance", "adopt", "--instance", "nowhere", *arguments])
        assert result.exit_code == 2
        assert "--identifier" in result.output


def run_instance_command(*arguments: object) -> str:
    """Return the output of `servicebroker instance`, also of a refusal."""
    result = CliRunner().invoke(command, ["instance", *map(str, arguments)])
    return result.output if result.exit_code == 0 else str(result.exception)


@pytest.mark.feature(204)
def test_dump_and_restore_as_commands(make_url: Callable[[], str], tmp_path: Path) -> None:
    url, other, file = make_url(), make_url(), tmp_path / "copy"
    with sb.open(url, upkeep=None) as instance_to_dump:
        original = Original(define_standard_set(instance_to_dump.database("Shop", create=True)))
        # the instance may be in use
        assert "The instance is in" in run_instance_command("dump", file, "--instance", url)
    assert "exists already" in run_instance_command("dump", file, "--instance", url)
    assert "There is no instance" in run_instance_command("dump", tmp_path / "x", "--instance", tmp_path / "nowhere")
    assert "pg_dump failed" in run_instance_command("dump", tmp_path / "no/folder", "--instance", url)
    (tmp_path / "bad").write_text("bad")
    assert "pg_restore failed" in run_instance_command(
        "restore", tmp_path / "bad", "--instance", other, "--identifier", "keep"
    )
    assert "There is no file" in run_instance_command(
        "restore", tmp_path / "none", "--instance", other, "--identifier", "keep"
    )
    assert "is adopted" in run_instance_command("restore", file, "--instance", other, "--identifier", "error")
    assert "already: name another --instance" in run_instance_command(
        "restore", file, "--instance", other, "--identifier", "keep"
    )
    with sb.open(other, upkeep=None) as instance:
        database = instance.database("Shop")
        assert identifier(database) == original.broker
        assert errors(database.receive(STOCK_QUEUE)) == [-9719]
        assert instance.check().findings == []
