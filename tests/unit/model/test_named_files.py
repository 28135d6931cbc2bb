"""Files named by users: devices, pipes, large files, links, foreign keys; and modules that read files directly."""

from __future__ import annotations

import ast
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from typer.testing import CliRunner

import servicebroker
import servicebroker as sb
from servicebroker.cli.main import app
from servicebroker.cli.people_file import People
from servicebroker.model.errors import InstanceError
from servicebroker.model.named_files import read_argument, read_file
from servicebroker.pipeline.file import read_pipeline
from servicebroker.store.keys.key_files import KeyFolder

SOURCES = Path(servicebroker.__file__).parent
READERS = {"read_bytes", "read_text"}
MODULES_THAT_READ_FILES = {  # reads of our own package, of /proc, or of the log of a Delta table
    *("broker/shares.py", "cli/orphans.py", "cli/shutdown.py", "pipeline/sinks/delta.py", "store/expected_objects.py"),
    *(
        "store/migrations/__init__.py",
        "store/migrations/catalog_views.py",
        "store/queue.py",
        "store/sql_files.py",
        "store/sql_verbs.py",
        "store/tsql/__init__.py",
    ),
    *("tsql/function_table.py", "store/cluster.py"),
}
PIPELINE = """
[pipeline]
name = "x"
warehouse = "w"
[[queue]]
instance = "i"
database = "Test"
queue = "Q"
[[message]]
type = "t"
format = "json"
table = "t"
schema = "SCHEMA"
"""


@pytest.fixture
def pipe(tmp_path: Path) -> Path:
    """Create a pipe without a writer."""
    path = tmp_path / "pipe"
    os.mkfifo(path)
    return path


@pytest.fixture
def large(tmp_path: Path) -> Path:
    """Create a sparse file that is larger than any memory."""
    path = tmp_path / "large"
    with path.open("wb") as file:
        file.truncate(2**40)
    return path


@pytest.mark.timeout(30)
def test_devices_pipes_and_large_files_are_refused(pipe: Path, large: Path, tmp_path: Path) -> None:
    for path, why in ((Path("/dev/zero"), "pipe or device"), (pipe, "pipe or device"), (large, "more than")):
        with pytest.raises(OSError, match=why):
            read_file(path)
    for path in (Path("/dev/zero"), large):
        with pytest.raises(OSError, match="more than 16,777,216 bytes"):
            read_argument(path)
    with pytest.raises(IsADirectoryError):
        read_file(tmp_path)


def test_an_argument_may_be_a_pipe(pipe: Path) -> None:
    writer = threading.Thread(target=pipe.write_bytes, args=(b"x" * 100_000,))
    writer.start()
    assert read_argument(pipe, 100_000) == b"x" * 100_000
    writer.join()


COMMANDS = [
    ["tsql", "check", "FILE"],
    ["activator", "FILE"],
    ["pipeline", "check", "FILE"],
    ["sql", "-i", "FILE", "--database", "Test"],
    ["dead-letters", "replay", "1", "--body", "FILE", "--database", "Test"],
]


@pytest.mark.timeout(60)
@pytest.mark.parametrize("arguments", COMMANDS, ids=lambda arguments: " ".join(arguments[:2]))
def test_commands_refuse_a_device_in_a_sentence(arguments: list[str]) -> None:
    given = [*("/dev/zero" if argument == "FILE" else argument for argument in arguments)]
    result = CliRunner().invoke(app, given)
    assert isinstance(result.exception, OSError | sb.ServiceBrokerError | SystemExit)
    assert result.exit_code == 1
    pattern = f"{result.output} {result.exception}"  # `tsql check` reports one file, and checks the others
    assert "/dev/zero" in pattern
    assert "more than" in pattern or "pipe or device" in pattern


@pytest.mark.timeout(30)
def test_a_script_names_no_pipe(pipe: Path, tmp_path: Path) -> None:
    script = tmp_path / "script.sql"
    script.write_text(f":r {pipe}\n")
    result = CliRunner().invoke(app, ["tsql", "check", str(script)])
    assert "pipe or device" in result.output


@pytest.mark.timeout(30)
@pytest.mark.parametrize("which", ["pipe", "/dev/zero"])
def test_a_pipeline_file_names_no_device(pipe: Path, tmp_path: Path, which: str) -> None:
    file = tmp_path / "pipeline.toml"
    file.write_text(PIPELINE.replace("SCHEMA", which))
    with pytest.raises(InstanceError, match="pipe or device"):
        read_pipeline(file)


@pytest.mark.timeout(30)
def test_people_that_become_a_pipe_do_not_stop_the_dashboard(tmp_path: Path) -> None:
    file = tmp_path / "people"
    file.write_text("")
    file.chmod(0o600)
    people = People(file)
    file.unlink()
    os.mkfifo(file, 0o600)
    with pytest.raises(InstanceError, match="pipe or device"):
        people.all()


# ---------------------------------------------------------------- keys

THUMBPRINT = bytes(20)


def test_a_key_of_another_user_is_refused(tmp_path: Path) -> None:
    keys = KeyFolder(tmp_path / "keys")
    keys.write(THUMBPRINT, b"key")
    assert keys.find(THUMBPRINT) is not None
    os.chown(keys.file(THUMBPRINT), 65_534, 65_534)
    with pytest.raises(InstanceError, match="belongs to user 65534, who is neither you nor"):
        keys.find(THUMBPRINT)
    os.chown(keys.path, 65_534, 65_534)  # the owner of the folder may put keys there
    assert keys.find(THUMBPRINT) is not None


@pytest.mark.timeout(30)
@pytest.mark.parametrize("kind", ["pipe", "link to nothing", "link to itself", "device", "large"])
def test_no_service_master_key_is_read_that_is_none(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "service-master-key"
    match kind:
        case "pipe":
            os.mkfifo(file, 0o600)
        case "link to nothing":
            file.symlink_to(tmp_path / "nothing")
        case "link to itself":
            file.symlink_to(file)
        case "device":
            file.symlink_to("/dev/zero")
        case _:
            file.touch(0o600)
            os.truncate(file, 2**40)
    with pytest.raises(InstanceError, match=r"The key in .* cannot be read"):
        KeyFolder(tmp_path).ensure_service_master_key()


# ---------------------------------------------------------------- direct reads


def readers(file: Path) -> Iterator[str]:
    """Return the methods by which a module reads whole files."""
    for node in ast.walk(ast.parse(file.read_bytes())):
        if isinstance(node, ast.Attribute):
            yield from READERS & {node.attr}


def test_all_reads_of_named_files_are_bounded() -> None:
    files = {str(file.relative_to(SOURCES)): file for file in SOURCES.rglob("*.py")}
    assert {name for name, file in files.items() if [*readers(file)]} == MODULES_THAT_READ_FILES


@pytest.mark.parametrize("name", ["a\0b", "a\ud800b"])
def test_a_name_that_no_file_can_have_is_an_os_error(tmp_path: Path, name: str) -> None:
    for read in (read_file, read_argument):
        with pytest.raises(OSError, match="No file can have this name"):
            read(tmp_path / name)
