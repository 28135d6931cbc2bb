"""Explanation of routing: every decision that is possible for a conversation, with the reasons in sentences."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from types import MappingProxyType
from typing import NamedTuple

from servicebroker.model.errors import RULES
from servicebroker.protocol.routing import (
    DYNAMIC_ROUTING_SERVICE,
    LOCAL,
    TRANSPORT,
    Ask,
    Conversation,
    Decision,
    Delayed,
    Dropped,
    Elsewhere,
    Local,
    Refused,
    Route,
    RoutingTable,
    Rule,
    Site,
    classify,
)

MAX_OUTCOMES = 100  # decisions in one explanation
NONE: Mapping[Elsewhere, str] = MappingProxyType({})


class Explanation(NamedTuple):
    """All decisions that are possible for a conversation now.

    Attributes:
        conversation: the conversation in question.
        decisions: every possible one, at most `MAX_OUTCOMES`; equally likely if they differ by one random choice.
        expired: routes that would have matched and are ignored.
        is_here: a database of the instance has the service, and its broker is enabled.
        mirrors: mirrored pair -> a sentence with the daemon's knowledge of it.
    """

    conversation: Conversation
    decisions: tuple[Decision, ...]
    expired: tuple[Route, ...]
    is_here: bool
    mirrors: Mapping[Elsewhere, str] = NONE


def explain(
    conversation: Conversation,
    own: RoutingTable,
    outside: RoutingTable,
    site: Site,
    now: datetime,
    mirrors: Mapping[Elsewhere, str] = NONE,
) -> Explanation:
    """Return every decision that `classify` can make, for all random numbers."""
    table = outside if conversation.database is None else own
    expired = tuple(
        route
        for route in table.routes
        if route.expires is not None
        and route.expires <= now
        and route.service in (conversation.service, None)
        and route.broker_instance in (conversation.broker_instance, None)
    )
    decisions: list[Decision] = []
    random_paths: list[list[int]] = [[]]
    while random_paths and len(decisions) < MAX_OUTCOMES:
        path = random_paths.pop()
        taken: list[int] = []

        def pick(count: int, path: list[int] = path, taken: list[int] = taken) -> int:
            depth = len(taken)
            if depth == len(path):  # a new random choice: take 0 now, and the others later
                random_paths.extend([*path, other] for other in range(min(count, MAX_OUTCOMES) - 1, 0, -1))
                path.append(0)
            taken.append(path[depth])
            return path[depth]

        decision = classify(conversation, own, outside, site, now, pick)
        if decision not in decisions:
            decisions.append(decision)
    return Explanation(conversation, tuple(decisions), expired, bool(site.homes(conversation.service)), mirrors)


def words(explanation: Explanation, databases: dict[str, str]) -> list[str]:
    """Return the explanation as sentences. `databases`: names of this instance's databases, by broker identifier."""
    conversation, decisions = explanation.conversation, explanation.decisions
    database, broker = conversation.database, conversation.broker_instance
    origin = "from outside" if database is None else f"from database {_name(database, databases)}"
    target = f"broker instance {broker}" if broker else "no broker instance given"
    sentences = [f"A conversation {origin} to service {conversation.service}, {target}."]
    if explanation.expired:
        sentences.append(f"Ignored, because they have expired: {_list(explanation.expired)}.")
    if len(decisions) > 1:
        sentences.append(f"Chance decides for each conversation which of these {len(decisions)} it is:")
    for decision in decisions:
        sentence = " ".join(_decision(decision, explanation, databases))
        sentences.append(sentence if len(decisions) == 1 else f"- {sentence}")
    return sentences


def _decision(decision: Decision, explanation: Explanation, databases: dict[str, str]) -> list[str]:
    table = "sys.routes of msdb" if explanation.conversation.database is None else "sys.routes of that database"
    sentences = []
    if decision.through_outside:
        table = "sys.routes of msdb"
        sentences.append("The route leads back to this instance, so the routes for conversations from outside decide.")
    sentences.append(_matched(decision, table))
    if decision.chosen is not None:
        sentences.append(_chosen(decision, explanation.is_here))
    elif decision.matched:
        sentences.append(f"None of them can be taken: {_unusable(decision, explanation.is_here)}.")
    sentences.append(_destination(decision, explanation, databases))
    return sentences


_RULES = {
    Rule.REPLY: "It is a reply, and its broker instance is a database of this instance: no route is needed.",
    Rule.DYNAMIC: f"No route names the service, but one leads to {DYNAMIC_ROUTING_SERVICE}, which is asked for one.",
    Rule.HERE: "No route matches; a broker instance is given and the service is here, which counts as a LOCAL route.",
    Rule.NONE: "No route matches.",
}


def _matched(decision: Decision, table: str) -> str:
    if decision.rule in _RULES:
        return _RULES[decision.rule]
    return f"Matched in {table} are the {decision.rule.value}: {_list(decision.matched)}."


def _chosen(decision: Decision, is_here: bool) -> str:
    chosen = decision.chosen
    assert chosen is not None
    passed = ""
    if chosen.mirror_address is not None:
        why = "it has a mirror address"
    elif chosen.address.upper() == LOCAL:
        why = "its address is LOCAL and the service is in this instance"
    else:
        why = (
            "the service's name begins with an address" if chosen.address.upper() == TRANSPORT else "it has an address"
        )
        if not is_here and any(route.address.upper() == LOCAL for route in decision.matched):
            passed = ", and LOCAL is passed over because the service is not in this instance"
    return f"Chosen is {chosen.name}: {why}{passed}."


def _unusable(decision: Decision, is_here: bool) -> str:
    reasons = []
    if not is_here and any(route.address.upper() == LOCAL for route in decision.matched):
        reasons.append("LOCAL needs the service in this instance, which has none of that name")
    if any(route.address.upper() == TRANSPORT for route in decision.matched):
        reasons.append("TRANSPORT needs a service whose name begins with TCP://host:port")
    return "; ".join(reasons)


def _destination(decision: Decision, explanation: Explanation, databases: dict[str, str]) -> str:
    destination, service = decision.destination, explanation.conversation.service
    match destination:
        case Local(broker):
            return f"It is delivered in this instance, to database {_name(broker, databases)}."
        case Elsewhere(address, None):
            return f"It is sent to {address}."
        case Elsewhere(address, mirror) if knowledge := explanation.mirrors.get(destination):
            return f"It is sent to whichever of {address} and its mirror {mirror} is the principal. {knowledge}"
        case Elsewhere(address, mirror):
            return (
                f"It is sent to whichever of {address} and its mirror {mirror} is the principal: both are asked when "
                "the first message leaves."
            )
        case Ask():
            return f"It waits for the answer: {RULES[9770].text}"
        case Refused(number):
            return f"The conversation fails with Error -{number}: {RULES[number].text.format(service)}"
        case Delayed(number):
            return f"It waits and is matched again, with the status: {RULES[number].text.format(service)}"
        case Dropped(number):
            return f"It is dropped, and its sender sends it again: {RULES[number].text.format(service)}"


def _list(routes: tuple[Route, ...]) -> str:
    return ", ".join(f"{route.name} ({_address(route)})" for route in routes)


def _address(route: Route) -> str:
    at = route.address if route.mirror_address is None else f"{route.address}, mirror {route.mirror_address}"
    return at if route.broker_instance is None else f"{at}, broker instance {route.broker_instance}"


def _name(broker: str, databases: dict[str, str]) -> str:
    return databases.get(broker, broker)
