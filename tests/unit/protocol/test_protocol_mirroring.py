"""Which of two brokers is the principal: every pair of reports, and a failover as the sender sees it."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from servicebroker.protocol.mirroring import (
    ANSWER_TIMEOUT_S,
    CHOICE,
    CLAIMS,
    IN_DOUBT,
    NEVER,
    ROLE_QUERY_INTERVAL_S,
    STAYS,
    BrokerStatus,
    Claim,
    KnownTimeline,
    Pair,
    Role,
    RoleReport,
    explain_choice,
    first_use,
    heard,
    tick,
    unreachable,
)

UNKNOWN_TIMELINE = KnownTimeline()
MIRROR = RoleReport(Role.MIRROR, "c", 1)
ADDRESSES = "TCP://a:4022", "TCP://b:4022"


def principal(timeline: int = 1, system: str = "c") -> RoleReport:
    return RoleReport(Role.PRINCIPAL, system, timeline, is_synchronous=True)


def pair_after(*reports: RoleReport | None, known: KnownTimeline = UNKNOWN_TIMELINE) -> Pair:
    """Return a new pair after reports from each side in turn. None stands for an unreachable side."""
    pair = first_use(known, 0.0)
    for number, report in enumerate(reports):
        side = number % 2
        pair = unreachable(pair, side, "refused", 0.0) if report is None else heard(pair, side, report, 0.0)
    return pair


def test_the_tables_are_whole() -> None:
    assert set(CLAIMS) == set(BrokerStatus)
    assert set(CHOICE) == set(itertools.product(Claim, Claim))
    assert set(STAYS) == set(Claim)


@pytest.mark.parametrize(
    ("first", "second", "chosen"),
    [
        (principal(), MIRROR, 0),
        (MIRROR, principal(), 1),
        (principal(), None, 0),
        (None, principal(), 1),
        (principal(), IN_DOUBT, 0),
        (principal(1), principal(2), 1),  # the old primary is back and still claims the role
        (principal(2), principal(1), 0),
        (principal(1), RoleReport(Role.MIRROR, "c", 2), None),  # that standby follows another primary
        (principal(2), principal(2), None),
        (principal(2, "c"), principal(1, "d"), None),  # two clusters
        (principal(1, "c"), principal(2, "d"), None),
        (MIRROR, MIRROR, None),
        (MIRROR, None, None),
        (IN_DOUBT, MIRROR, None),
        (IN_DOUBT, IN_DOUBT, None),
        (None, None, None),
    ],
)
def test_the_principal_of_a_pair_is_chosen(
    first: RoleReport | None, second: RoleReport | None, chosen: int | None
) -> None:
    assert pair_after(first, second).chosen == chosen


def test_one_waits_for_the_answer_of_the_other_but_not_for_ever() -> None:
    pair = pair_after(principal())
    assert (pair.chosen, pair.wake_at) == (None, ANSWER_TIMEOUT_S)
    assert tick(pair, ANSWER_TIMEOUT_S - 0.1) == pair
    pair = tick(pair, ANSWER_TIMEOUT_S)
    assert (pair.chosen, pair.statuses[1], pair.wake_at) == (0, BrokerStatus.UNREACHABLE, NEVER)


def test_both_are_asked_again_while_neither_is_chosen() -> None:
    pair = pair_after(MIRROR, None)
    assert pair.wake_at == ROLE_QUERY_INTERVAL_S
    pair = tick(pair, ROLE_QUERY_INTERVAL_S)
    assert (pair.asked_at, pair.wake_at, pair.questions) == (ROLE_QUERY_INTERVAL_S, 2 * ROLE_QUERY_INTERVAL_S, 2)
    silent = tick(first_use(KnownTimeline(), 0.0), ANSWER_TIMEOUT_S)
    assert (silent.chosen, silent.asked_at) == (None, ANSWER_TIMEOUT_S)


@pytest.mark.parametrize("report", [None, IN_DOUBT, RoleReport(Role.MIRROR, "c", 2)])
def test_the_other_one_takes_over_when_it_claims_the_role_and_not_before(report: RoleReport | None) -> None:
    pair = pair_after(principal(), MIRROR)
    pair = unreachable(pair, 0, "cut", 5.0) if report is None else heard(pair, 0, report, 5.0)
    # both sides are asked
    assert (pair.chosen, pair.statuses[1], pair.asked_at, pair.questions) == (
        None,
        BrokerStatus.UNANSWERED,
        5.0,
        2,
    )
    assert heard(pair, 1, MIRROR, 5.1).chosen is None
    assert heard(pair, 1, principal(2), 5.1).chosen == 1


def test_a_principal_that_returns_before_a_failover_is_chosen() -> None:
    pair = unreachable(pair_after(principal(), MIRROR), 0, "cut", 5.0)
    pair = heard(pair, 1, MIRROR, 5.1)
    assert heard(pair, 0, principal(), 6.0).chosen == 0


def test_the_chosen_one_may_go_on_to_another_timeline() -> None:
    pair = heard(pair_after(principal(), MIRROR), 0, principal(3), 5.0)
    assert (pair.chosen, pair.known) == (0, KnownTimeline("c", 3))


def test_a_timeline_that_was_seen_before_is_not_forgotten() -> None:
    known = KnownTimeline("c", 2)
    pair = pair_after(principal(1), None, known=known)
    assert (pair.chosen, pair.statuses[0]) == (None, BrokerStatus.OUTDATED)
    assert heard(pair, 1, principal(2), 1.0).chosen == 1
    assert pair_after(principal(1, "made anew"), None, known=known).chosen == 0


def test_a_claim_of_another_cluster_keeps_the_known_timeline() -> None:
    pair = pair_after(principal(3), MIRROR)
    pair = heard(heard(pair, 1, principal(1, "other"), 5.0), 1, principal(1), 6.0)
    assert (pair.chosen, pair.known, pair.statuses[1]) == (0, KnownTimeline("c", 3), BrokerStatus.OUTDATED)


def test_doubtful_reports_do_not_change_the_known_timeline() -> None:
    assert KnownTimeline("c", 2).after(RoleReport(Role.IN_DOUBT, "c", 9)) == KnownTimeline("c", 2)
    assert KnownTimeline("c", 2).after(RoleReport(Role.MIRROR, "d", 9)) == KnownTimeline("c", 2)
    assert KnownTimeline("c", 2).after(RoleReport(Role.MIRROR, "c", 3)) == KnownTimeline("c", 3)


@pytest.mark.parametrize("role", [Role.PRINCIPAL, Role.MIRROR])
def test_the_signature_of_a_timeline_is_learned_once(role: Role) -> None:
    unsigned, signed = KnownTimeline("c", 2), KnownTimeline("c", 2, b"first")
    assert unsigned.after(RoleReport(role, "c", 2, True, b"first")) == signed
    for signature in (b"", b"second"):
        assert signed.after(RoleReport(role, "c", 2, True, signature)) == signed
        assert signed.after(RoleReport(role, "c", 1, True, signature)) == signed
        assert signed.after(RoleReport(role, "c", 3, True, signature)) == KnownTimeline("c", 3, signature)


def test_a_reason_is_that_of_the_last_failure() -> None:
    pair = heard(pair_after(MIRROR, None), 1, MIRROR, 1.0)
    assert pair.reasons == ("", "")
    assert "refused" not in explain_choice(pair, ADDRESSES)
    assert unreachable(pair, 1, "cut", 2.0).reasons == ("", "cut")
    chosen = pair_after(principal(), None)
    lost = unreachable(chosen, 0, "cut", 5.0)
    assert lost.reasons == ("cut", "")  # the other one is asked again


def test_the_choice_is_explained() -> None:
    assert explain_choice(pair_after(principal(2), MIRROR), ADDRESSES) == (
        "TCP://a:4022 is the principal: it says so, on timeline 2, and its commits wait for a standby."
    )
    alone = pair_after(None, RoleReport(Role.PRINCIPAL, "c", 1))
    assert explain_choice(alone, ADDRESSES).endswith("on timeline 1, and no standby holds what it commits.")
    assert explain_choice(pair_after(None, MIRROR), ADDRESSES) == (
        "Neither is known to be the principal: TCP://a:4022 cannot be reached (refused); "
        "TCP://b:4022 says that it is the mirror."
    )


role_reports = st.builds(
    RoleReport, st.sampled_from(Role), st.sampled_from(["c", "d"]), st.integers(1, 3), is_synchronous=st.booleans()
)
steps = st.tuples(st.sampled_from(["hear", "lose", "wait"]), st.integers(0, 1), role_reports, st.floats(0, 5))


@given(st.lists(steps, max_size=40))
def test_the_chosen_broker_has_claimed_the_role_on_the_highest_timeline(
    reports: list[tuple[str, int, RoleReport, float]],
) -> None:
    pair, now = first_use(KnownTimeline(), 0.0), 0.0
    for what, side, role_report, seconds in reports:
        now += seconds
        before = pair
        if what == "hear":
            pair = heard(pair, side, role_report, now)
        elif what == "lose":
            pair = unreachable(pair, side, "cut", now)
        else:
            pair = tick(pair, now)
        if pair.known.system == before.known.system:
            assert pair.known.timeline >= before.known.timeline
        if pair.chosen is not None:
            assert pair.statuses[pair.chosen] is BrokerStatus.PRINCIPAL
            report = pair.role_reports[pair.chosen]
            assert report.role is Role.PRINCIPAL
            assert report.system != pair.known.system or report.timeline == pair.known.timeline
        if before.chosen is not None and pair.chosen == 1 - before.chosen:
            raise AssertionError("it changed over without asking")
