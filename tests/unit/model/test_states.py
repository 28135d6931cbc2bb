"""The table of states and events is compared with a second copy from the reference."""

from __future__ import annotations

import pytest

from servicebroker.model.states import REFUSALS, REMOVED, EndpointState, Event, after
from support import refused

SO, SI, CO, DI, DO, ER, CD = "SO", "SI", "CO", "DI", "DO", "ER", "CD"
NO = "refused"

EXPECTED: dict[Event, dict[str, str | None]] = {
    Event.SEND: {SO: CO, SI: NO, CO: CO, DI: NO, DO: NO, ER: NO, CD: NO},
    Event.END: {SO: REMOVED, SI: NO, CO: DO, DI: CD, DO: NO, ER: CD, CD: NO},
    Event.TIMER: {SO: SO, SI: SI, CO: CO, DI: DI, DO: NO, ER: ER, CD: NO},
    Event.MOVE: {SO: SO, SI: SI, CO: CO, DI: DI, DO: NO, ER: ER, CD: NO},
    Event.END_DIALOG_ARRIVED: {SO: NO, SI: NO, CO: DI, DI: NO, DO: DO, ER: NO, CD: NO},
    Event.ERROR_ARRIVED: {SO: ER, SI: ER, CO: ER, DI: ER, DO: REMOVED, ER: NO, CD: NO},
    Event.ACKNOWLEDGED: {SO: NO, SI: NO, CO: NO, DI: NO, DO: CD, ER: NO, CD: NO},
}


@pytest.mark.parametrize("event", Event)
@pytest.mark.parametrize("state", EndpointState)
def test_every_event_leads_each_state_to_its_next_state_or_is_refused(state: EndpointState, event: Event) -> None:
    expected = EXPECTED[event][state.value]
    if expected != NO:
        assert after(state, event) == expected
    elif event in REFUSALS:
        with refused(REFUSALS[event], f"'{state.value}'"):
            after(state, event)
    else:
        with pytest.raises(KeyError):
            after(state, event)


def test_the_refusals_have_the_numbers_of_the_verbs() -> None:
    assert REFUSALS == {Event.SEND: 8429, Event.END: 8427, Event.TIMER: 8458, Event.MOVE: 8438}
