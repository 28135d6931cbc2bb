"""The state tables of a transmitted conversation: every stage with every event, and who writes the stages."""

from __future__ import annotations

import ast
from itertools import product
from pathlib import Path

import pytest

import make_conversation_states
import servicebroker
from servicebroker.broker import conversations
from servicebroker.protocol.conversation_states import (
    ARRIVING,
    SENDER_TRANSITIONS,
    Action,
    BatchEvent,
    Event,
    Impossible,
    Stage,
    Storing,
    step,
)

BROKER = Path(servicebroker.__file__).parent / "broker"
ADDRESSED = {Stage.MATCHED, Stage.CLAIMED, Stage.LINKED}
CLAIMED = {Stage.CLAIMED_UNROUTED, Stage.CLAIMED, Stage.LINKED}
LIVE_STAGES = [stage for stage in Stage if stage is not Stage.FORGOTTEN]
TAKEN = """
                    UNROUTED          MATCHED           CLAIMED_UNROUTED  CLAIMED           LINKED
ROUTED              MATCHED           MATCHED           CLAIMED           CLAIMED           LINKED
REROUTED            -                 MATCHED           -                 CLAIMED           CLAIMED
UNROUTED            UNROUTED          UNROUTED          CLAIMED_UNROUTED  CLAIMED_UNROUTED  CLAIMED_UNROUTED
ROUTED_LOCALLY      FORGOTTEN         FORGOTTEN         CLAIMED_UNROUTED  CLAIMED_UNROUTED  CLAIMED_UNROUTED
WON                 -                 CLAIMED           -                 -                 -
BUSY                -                 MATCHED           -                 -                 -
UNSECURED           -                 UNROUTED          -                 -                 -
LINK_FOUND          -                 MATCHED           -                 LINKED            -
REACHED             -                 MATCHED           -                 CLAIMED           LINKED
UNREACHED           -                 MATCHED           -                 CLAIMED           LINKED
LINK_LOST           -                 -                 -                 -                 CLAIMED
SEND_BLOCKED        UNROUTED          MATCHED           CLAIMED_UNROUTED  CLAIMED           CLAIMED
LEFT                FORGOTTEN         FORGOTTEN         FORGOTTEN         FORGOTTEN         FORGOTTEN
"""
STORED = """
                    NOTHING           BATCH             POSTPONED
STORE_BEGUN         BATCH             -                 BATCH
ROW_LOCKED          -                 POSTPONED         -
COMMITTED           NOTHING           NOTHING           -
TOO_MANY_POSTPONED  -                 -                 NOTHING
"""


def read_matrix(matrix: str) -> dict[tuple[str, str], str]:
    """Return the next stage by stage and event. '-' marks an impossible event."""
    head, *rows = [line.split() for line in matrix.strip().splitlines()]
    return {(before, row[0]): after for row in rows for before, after in zip(head, row[1:], strict=True)}


@pytest.mark.parametrize(("stage", "event"), [*product(Stage, Event)])
def test_every_stage_with_every_event(stage: Stage, event: Event) -> None:
    after = read_matrix(TAKEN).get((stage.name, event.name), "-")
    if after == "-":
        with pytest.raises(Impossible, match=rf"^A conversation is {stage}, and {event}: there is no step "):
            step(SENDER_TRANSITIONS, stage, event)
    else:
        assert step(SENDER_TRANSITIONS, stage, event).after is Stage[after]


@pytest.mark.parametrize(("storing", "event"), [*product(Storing, BatchEvent)])
def test_every_batch_with_every_event(storing: Storing, event: BatchEvent) -> None:
    after = read_matrix(STORED)[storing.name, event.name]
    if after == "-":
        with pytest.raises(Impossible, match=rf"^A conversation is {storing}, and {event}: there is no step "):
            step(ARRIVING, storing, event)
    else:
        assert step(ARRIVING, storing, event).after is Storing[after]


@pytest.mark.parametrize(("before", "event"), [*SENDER_TRANSITIONS])
def test_actions_agree_with_the_stage(before: Stage, event: Event) -> None:
    """A conversation has an address, a link and a claim exactly in the stages whose names say so."""
    after, actions = SENDER_TRANSITIONS[before, event]
    assert (Action.FORGET in actions) == (after is Stage.FORGOTTEN)
    assert (Action.TAKE_LINK in actions) == (after is Stage.LINKED and before is not Stage.LINKED)
    assert (Action.DROP_LINK in actions) == (before is Stage.LINKED and after is not Stage.LINKED)
    if after is not Stage.FORGOTTEN:
        assert (after in CLAIMED) >= (before in CLAIMED), "a claim is for good"
        if (before in ADDRESSED) != (after in ADDRESSED):
            assert Action.NOTE_ADDRESS in actions
        if Action.DROP_LINK in actions:
            assert {Action.RESEND, Action.TRY_LATER} & set(actions), "what was under way is not lost"


def test_a_claim_is_won_where_the_address_is_known_and_a_link_is_taken_with_it() -> None:
    """No byte is sent before both."""
    claims = {
        (before, event)
        for (before, event), transition in SENDER_TRANSITIONS.items()
        if (transition.after in CLAIMED) > (before in CLAIMED)
    }
    links = {
        (before, event)
        for (before, event), transition in SENDER_TRANSITIONS.items()
        if Action.TAKE_LINK in transition.actions
    }
    assert claims == {(Stage.MATCHED, Event.WON)}
    assert links == {(Stage.CLAIMED, Event.LINK_FOUND)}


@pytest.mark.parametrize("stage", LIVE_STAGES)
def test_from_everywhere_there_is_a_way_onto_a_link_and_out_of_memory(stage: Stage) -> None:
    reached = {stage}
    while (
        more := {transition.after for (before, _), transition in SENDER_TRANSITIONS.items() if before in reached}
        - reached
    ):
        reached |= more
    assert reached >= {Stage.LINKED, Stage.FORGOTTEN}
    waits = [
        transition.actions
        for (before, event), transition in SENDER_TRANSITIONS.items()
        if before is stage and event is Event.UNROUTED
    ]
    assert all(Action.MATCH_LATER in actions for actions in waits)


@pytest.mark.parametrize("file", sorted(BROKER.glob("*.py")), ids=lambda file: file.stem)
def test_only_one_module_writes_the_fields_of_an_entry(file: Path) -> None:
    if file.stem == conversations.__name__.rpartition(".")[2]:
        return
    fields = set(conversations.Entry.__dataclass_fields__)
    written = [
        f"{file.name}:{target.lineno} {ast.unparse(target)}"
        for node in ast.walk(ast.parse(file.read_text()))
        for target in targets(node)
        if isinstance(target, ast.Attribute) and target.attr in fields and ast.unparse(target.value) in ("entry", "one")
    ]
    assert written == []


def targets(node: ast.AST) -> list[ast.expr]:
    """Return the targets of an assignment."""
    match node:
        case ast.Assign(targets=found):
            return [part for node in found for part in (node.elts if isinstance(node, ast.Tuple) else [node])]
        case ast.AugAssign(target=target) | ast.AnnAssign(target=target):
            return [target]
        case _:
            return []


def test_the_page_shows_the_tables() -> None:
    assert (
        make_conversation_states.documented(make_conversation_states.DOCUMENT.read_text())
        == make_conversation_states.as_text()
    ), "run python tools/make_conversation_states.py"
