"""Hostile TOML that would take time or memory, and TOML from a Windows editor."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from servicebroker.model.errors import InstanceError
from servicebroker.model.toml import MAX_DEPTH, MAX_KEY_PARTS, parse_toml
from servicebroker.operations.application import read

DEEP = ".a" * (MAX_KEY_PARTS - 1)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a" + ".a" * 500_000 + " = 1", "more than 100 parts"),
        ("[a" + " . 'a'" * 200 + "]", "more than 100 parts"),
        ("a = {" + '"a" . ' * 200 + "a = 1}", "more than 100 parts"),
        ("a = " + "[" * 100_000, "nested too deeply"),
        ("a = " + "[" * (MAX_DEPTH + 1) + "]" * (MAX_DEPTH + 1), "nested too deeply"),
        (f"a{DEEP} = {{ a{DEEP} = {{ a = 1 }} }}", "nested too deeply"),
        ("a = " + "9" * 100_000, "too many digits"),
    ],
    ids=range(7),
)
def test_a_text_that_would_take_long_is_refused_at_once(text: str, message: str) -> None:
    started_at = time.process_time()
    with pytest.raises(ValueError, match=message):
        parse_toml(text)
    assert time.process_time() - started_at < 2


def test_other_dots_are_no_parts_of_keys() -> None:
    prose = "One sentence. " * 500
    numbers = ", ".join(["1.5"] * 500)
    content = parse_toml(f'text = "{prose}"\nnumbers = [{numbers}]\nlong = """\n{prose}\n"""\na{DEEP} = 1\n')
    assert (content["text"], content["numbers"]) == (prose, [1.5] * 500)


def test_a_byte_order_mark_is_skipped() -> None:
    assert parse_toml("\ufeffa = 1") == {"a": 1}


def test_a_definition_is_read_with_the_same_bounds(tmp_path: Path) -> None:
    file = tmp_path / "shop.toml"
    file.write_text("a" + ".a" * 500_000 + " = 1")
    with pytest.raises(InstanceError, match="more than 100 parts"):
        read(file)
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(InstanceError, match="cannot be used: 'utf-8' codec"):
        read(file)
