from __future__ import annotations

import string

import pytest

import servicebroker as sb
import servicebroker.testing
from servicebroker.model.errors import RULES


def test_an_error_carries_number_severity_state_and_text() -> None:
    error = sb.BrokerError(8429, "DO")
    assert (error.number, error.severity, error.state) == (8429, 16, 1)
    assert (
        error.text == "The conversation endpoint is not in a valid state for SEND. The current endpoint state is 'DO'."
    )
    assert str(error) == f"Msg 8429, Level 16, State 1: {error.text}"


def test_a_hint_follows_the_text_and_is_no_part_of_it() -> None:
    error = sb.BrokerError(911, "X", hint="Create it.", state=2)
    assert str(error).endswith("State 2: Database 'X' does not exist. Create it.")
    assert "Create" not in error.text


def test_values_are_never_taken_for_placeholders() -> None:
    assert "{0} {x} %s" in str(sb.BrokerError(8423, "{0} {x} %s"))


def test_every_error_is_of_one_family() -> None:
    assert issubclass(sb.BrokerError, sb.ServiceBrokerError)
    assert issubclass(sb.InstanceError, sb.ServiceBrokerError)


@pytest.mark.parametrize("number", sorted(RULES))
def test_a_text_uses_each_of_its_values(number: int) -> None:
    fields = [name for _, name, _, _ in string.Formatter().parse(RULES[number].text) if name is not None]
    assert sorted(set(map(int, fields))) == list(range(len(set(fields))))
    values = [f"value{place}" for place in range(len(set(fields)))]
    text = sb.BrokerError(number, *values).text
    assert all(value in text for value in values)
    assert text.endswith(".")


def test_a_wrong_argument_is_a_mistake_of_the_program_too() -> None:
    with servicebroker.testing.open() as instance:
        database = instance.database("Shop", create=True)
        for expected in (TypeError, ValueError, sb.BrokerError):
            with pytest.raises(expected, match=r"402, .*Wrong argument: wait is -1; it must be seconds, 0 or more\.$"):
                database.receive("Q", wait=-1)
    assert not isinstance(sb.BrokerError(911, "Shop"), TypeError | ValueError)
