"""Error texts, their classes, and the display of wrong values."""

from __future__ import annotations

import ast
import string
from collections.abc import Iterator
from pathlib import Path

import pytest

import servicebroker
import servicebroker as sb
import servicebroker.testing
from servicebroker.model.errors import LONGEST_TEXT, LONGEST_VALUE, RULES, BrokerError, InstanceError
from servicebroker.model.wording import LONGEST_SHOWN, short_repr


def test_an_error_has_number_severity_state_and_text() -> None:
    error = sb.BrokerError(8429, "DO")
    assert (error.number, error.severity, error.state) == (8429, 16, 1)
    assert (
        error.text == "The conversation endpoint is not in a valid state for SEND. The current endpoint state is 'DO'."
    )
    assert str(error) == f"Msg 8429, Level 16, State 1: {error.text}"


def test_a_hint_follows_the_text_but_is_not_part_of_it() -> None:
    error = sb.BrokerError(911, "X", hint="Create it.", state=2)
    assert str(error).endswith("State 2: Database 'X' does not exist. Create it.")
    assert "Create" not in error.text


def test_values_are_never_taken_for_placeholders() -> None:
    assert "{0} {x} %s" in str(sb.BrokerError(8423, "{0} {x} %s"))


def test_every_error_is_a_service_broker_error() -> None:
    assert issubclass(sb.BrokerError, sb.ServiceBrokerError)
    assert issubclass(sb.InstanceError, sb.ServiceBrokerError)


@pytest.mark.parametrize("number", sorted(RULES))
def test_a_text_uses_each_of_its_values(number: int) -> None:
    fields = [name for _, name, _, _ in string.Formatter().parse(RULES[number].text) if name is not None]
    assert sorted(set(map(int, fields))) == list(range(len(set(fields))))
    values = [f"value{index}" for index in range(len(set(fields)))]
    text = sb.BrokerError(number, *values).text
    assert all(value in text for value in values)
    assert text.endswith(".")


def test_error_402_is_also_a_type_error_and_a_value_error() -> None:
    with servicebroker.testing.open() as instance:
        database = instance.database("Shop", create=True)
        for expected in (TypeError, ValueError, sb.BrokerError):
            with pytest.raises(expected, match=r"402, .*Wrong argument: wait is -1; it must be seconds, 0 or more\.$"):
                database.receive("Q", wait=-1)
    assert not isinstance(sb.BrokerError(911, "Shop"), TypeError | ValueError)


def find_repr_in_402(tree: ast.AST) -> Iterator[int]:
    """Return the lines that show a wrong argument by `repr`, which may raise or be very long."""
    for call in ast.walk(tree):
        if isinstance(call, ast.Call) and ast.unparse(call).startswith("BrokerError(402,"):
            for node in ast.walk(call):
                if (isinstance(node, ast.FormattedValue) and node.conversion == ord("r")) or (
                    isinstance(node, ast.Call) and ast.unparse(node.func) == "repr"
                ):
                    yield call.lineno


def test_error_402_never_uses_repr() -> None:
    sources = Path(servicebroker.__file__).parent
    locations = {
        (str(file.relative_to(sources)), line)
        for file in sources.rglob("*.py")
        for line in find_repr_in_402(ast.parse(file.read_bytes()))
    }
    assert locations == set()


def test_any_value_can_be_shown() -> None:
    class Mute:
        def __repr__(self) -> str:
            raise LookupError("there is no text of it")

    assert short_repr("a\x1b\u202e\n") == r"'a\x1b\u202e\n'"
    assert short_repr(10**5_000) == "<int, whose text cannot be had>"
    assert short_repr(Mute()) == "<Mute, whose text cannot be had>"
    assert len(short_repr("x" * 10**7)) == len(short_repr(["x"] * 10**4)) == LONGEST_SHOWN + 1
    assert len(str(BrokerError(911, "x" * 10**6))) < LONGEST_VALUE + 100
    assert len(str(InstanceError("x" * 10**6))) == LONGEST_TEXT + 1
