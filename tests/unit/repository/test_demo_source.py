"""The input of the demo: complete lines, and the check that a file is still the same."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.cli.commands.demo import input_file as source
from servicebroker.cli.commands.demo.input_file import advanced, batches, default_source, open_source, resume


def read_all(path: Path, offset: int = 0) -> tuple[list[bytes], int]:
    with path.open("rb") as file:
        batches_of_text = list(batches(file, offset, path.stat().st_size))
    return [line for batch in batches_of_text for line in batch.lines], batches_of_text[
        -1
    ].end if batches_of_text else offset


@pytest.mark.parametrize(
    ("content", "lines", "end"),
    [
        (b"", [], 0),
        (b"unfinished", [], 0),
        (b"\n", [b""], 1),
        (b"a\n\nb\r\nc", [b"a", b"", b"b\r"], 6),
        (b"\x00\xff\n", [b"\x00\xff"], 3),
    ],
)
def test_a_line_ends_before_its_line_feed(tmp_path: Path, content: bytes, lines: list[bytes], end: int) -> None:
    path = tmp_path / "input"
    path.write_bytes(content)
    assert read_all(path) == (lines, end)


@given(content=st.binary(max_size=400).map(lambda b: b.replace(b"x", b"\n")), block=st.integers(1, 50))
def test_any_block_size_finds_the_same_lines(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, block: int
) -> None:
    path = tmp_path_factory.mktemp("lines") / "input"
    path.write_bytes(content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source, "BATCH_BYTES", block)
        assert read_all(path)[0] == content.split(b"\n")[:-1]


def test_a_line_longer_than_a_block_stays_whole(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"x" * (3 * source.BATCH_BYTES) + b"\nshort\n")
    lines, _ = read_all(path)
    assert [len(line) for line in lines] == [3 * source.BATCH_BYTES, 5]


def test_reading_stops_where_the_file_ended_at_the_start(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\nb\nc\n")
    with path.open("rb") as file:
        assert [line for batch in batches(file, 0, 4) for line in batch.lines] == [b"a", b"b"]


def read_once(path: Path) -> source.Position:
    with path.open("rb") as file:
        position = resume(file, None)
        for batch in batches(file, 0, path.stat().st_size):
            position = advanced(file, position, batch)
    return position


def resumed_offset(path: Path, known: source.Position) -> int:
    with path.open("rb") as file:
        return resume(file, known).offset


def test_a_file_that_grew_is_read_on(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\nb\n")
    known = read_once(path)
    assert (known.offset, known.lines) == (4, 2)
    with path.open("ab") as file:
        file.write(b"c\n")
    assert resumed_offset(path, known) == 4


@pytest.mark.parametrize("content", [b"a\n", b"", b"A\nb\n", b"a\nB\nc\nd\n"])
def test_a_file_that_shrank_or_was_rewritten_starts_anew(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\nb\n")
    known = read_once(path)
    path.write_bytes(content)
    assert resumed_offset(path, known) == 0


def test_another_file_under_the_name_starts_anew(tmp_path: Path) -> None:
    path = tmp_path / "input"
    path.write_bytes(b"a\nb\n")
    known = read_once(path)
    other_file = tmp_path / "other"
    other_file.write_bytes(b"a\nb\nc\n")
    other_file.replace(path)
    assert resumed_offset(path, known) == 0


def test_without_a_readable_log_the_librarys_text_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source, "_LOGS", ())
    assert default_source().is_file()
    assert default_source().read_bytes().count(b"\n") > 100


def test_a_missing_file_and_a_folder_are_refused_in_one_sentence(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="does not exist"):
        open_source(tmp_path / "none")
    with pytest.raises(OSError, match="not a regular file"):
        open_source(tmp_path)
