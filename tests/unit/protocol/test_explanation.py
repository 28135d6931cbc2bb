"""Explanations of routing decisions: the text of every outcome."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from servicebroker.protocol.explanation import MAX_OUTCOMES, explain, words
from servicebroker.protocol.routing import Address, Conversation, Elsewhere, Local, Route, RoutingTable, Site

NOW = datetime(2026, 1, 1, tzinfo=UTC)
PAST = NOW - timedelta(seconds=1)
NOWHERE = Site({}, frozenset({"here"}))
HERE = Site({"s": ["here"]}, frozenset({"here"}), frozenset({Address("me", 1)}))
ANY_LOCAL = Route("AutoCreatedLocal", None, None, None, "LOCAL")


def explanation_of(
    *routes: Route, site: Site = NOWHERE, broker: str | None = None, outside: tuple[Route, ...] = ()
) -> str:
    conversation = Conversation("s", broker, "here")
    explanation = explain(conversation, RoutingTable(routes), RoutingTable(outside), site, NOW)
    return "\n".join(words(explanation, {"here": "Warehouse"}))


@pytest.mark.parametrize(
    ("routes", "site", "expected"),
    [
        ([], NOWHERE, "No route matches. It waits and is matched again, with the status: No route matches the"),
        ([ANY_LOCAL], HERE, "Chosen is AutoCreatedLocal: its address is LOCAL and the service is in this instance."),
        ([ANY_LOCAL], HERE, "It is delivered in this instance, to database Warehouse."),
        ([ANY_LOCAL], NOWHERE, "None of them can be taken: LOCAL needs the service in this instance"),
        (
            [ANY_LOCAL, Route("far", None, None, None, "TCP://far:4022")],
            NOWHERE,
            "Chosen is far: it has an address, and LOCAL is passed over because the service is not in this instance.",
        ),
        ([Route("far", "s", None, None, "TCP://far:4022")], HERE, "It is sent to TCP://far:4022."),
        ([Route("old", "s", None, PAST, "LOCAL")], HERE, "Ignored, because they have expired: old (LOCAL)."),
        (
            [Route("m", "s", "b", None, "TCP://a:1", "TCP://b:1")],
            NOWHERE,
            "It is sent to whichever of TCP://a:1 and its mirror TCP://b:1 is the principal: both are asked when",
        ),
        ([Route("t", None, None, None, "TRANSPORT")], NOWHERE, "TRANSPORT needs a service whose name begins with"),
        ([Route("cfg", "SQL/ServiceBroker/BrokerConfiguration", None, None, "LOCAL")], NOWHERE, "which is asked"),
    ],
)
def test_an_explanation_has_matches_choice_and_destination(routes: list[Route], site: Site, expected: str) -> None:
    assert expected in explanation_of(*routes, site=site)


def test_an_explanation_has_the_state_of_a_mirrored_pair() -> None:
    pair = Route("m", "s", "b", None, "TCP://a:1", "TCP://b:1")
    mirrors = {Elsewhere(Address("a", 1), Address("b", 1)): "TCP://b:1 is the principal: it says so."}
    explanation = explain(
        Conversation("s", "b", "here"), RoutingTable([pair]), RoutingTable(()), NOWHERE, NOW, mirrors=mirrors
    )
    assert words(explanation, {})[-1].endswith("is the principal. TCP://b:1 is the principal: it says so.")


def test_an_identifier_of_ours_without_the_service_fails() -> None:
    assert "fails with Error -8490: Cannot find the remote service 's'" in explanation_of(ANY_LOCAL, broker="here")


def test_a_route_to_this_instance_is_explained_by_the_routes_of_msdb() -> None:
    back = Route("back", "s", None, None, "TCP://ME:1")
    report = explanation_of(back, site=HERE, outside=(ANY_LOCAL,))
    assert "The route leads back to this instance, so the routes for conversations from outside decide." in report
    assert "Matched in sys.routes of msdb" in report


def test_every_outcome_of_chance_is_found() -> None:
    routes = [Route(f"r{n}", "s", f"b{n}", None, f"TCP://h{n}:1") for n in range(3)]
    routes += [Route("r0again", "s", "b0", None, "TCP://other:1")]
    explanation = explain(Conversation("s", None, "x"), RoutingTable(routes), RoutingTable(()), NOWHERE, NOW)
    hosts = {step.destination.address.host for step in explanation.decisions if isinstance(step.destination, Elsewhere)}
    assert hosts == {"h0", "h1", "h2", "other"}
    assert "Chance decides for each conversation which of these 4 it is:" in words(explanation, {})[1]


@pytest.mark.slow
def test_the_list_of_outcomes_is_cut() -> None:
    routes = [Route(f"r{n}", "s", f"b{n}", None, f"TCP://h{n}:1") for n in range(5_000)]
    explanation = explain(Conversation("s", None, "x"), RoutingTable(routes), RoutingTable(()), NOWHERE, NOW)
    assert len(explanation.decisions) == MAX_OUTCOMES


def test_the_explanation_of_an_arriving_conversation() -> None:
    explanation = explain(Conversation("s"), RoutingTable(()), RoutingTable([ANY_LOCAL]), HERE, NOW)
    assert explanation.decisions[0].destination == Local("here")
    assert words(explanation, {})[0] == "A conversation from outside to service s, no broker instance given."
    (decision,) = explain(
        Conversation("s"), RoutingTable(()), RoutingTable([Route("f", "s", None, None, "TCP://far:1")]), HERE, NOW
    ).decisions
    report = words(explanation._replace(decisions=(decision,)), {})
    assert "It is dropped, and its sender sends it again: Could not forward the message because forwarding" in report[1]
