"""Decisions about shares: stages, their number, the waits between rounds, and which process serves."""

from __future__ import annotations

from itertools import product

import pytest

from servicebroker.broker.sharing.growth import RETRY_INTERVAL_S, Growth, Load
from servicebroker.broker.sharing.lifecycle import FIRST_ACTIONS, STEPS, Event, ShareAction, ShareLife, Stage
from servicebroker.broker.sharing.pace import (
    BUSY_MESSAGES,
    FIRST_POLL_S,
    POLL_INTERVAL_S,
    ROUND_PAUSE_S,
    ROUNDS_UNTIL_POLLING,
    DaemonPace,
    Mode,
    SharePace,
    Wait,
)
from servicebroker.broker.sharing.takeover import STEPS as TAKEOVERS
from servicebroker.broker.sharing.takeover import Challenges, Phase, Takeover
from servicebroker.broker.sharing.takeover import Event as Served
from servicebroker.broker.sharing.takeover import TakeoverAction as Do
from servicebroker.model.errors import InstanceError
from servicebroker.protocol.mirroring import KnownTimeline, Role, RoleReport

NEVER = float("inf")


def actions(*events: Event) -> list[ShareAction]:
    """Return the actions of a share for an event."""
    life = ShareLife()
    return [*FIRST_ACTIONS, *(act for event in events for act in life.on_event(event))]


# ---------------------------------------------------------------- the stages of a share


def test_a_killed_process_is_closed_before_another_one_takes_its_place() -> None:
    """The session of the killed process may still commit until it is terminated."""
    performed = actions(Event.READY, Event.EXITED, Event.PAUSED)
    assert (
        performed.index(ShareAction.CLOSE)
        < performed.index(ShareAction.PAUSE)
        < performed.index(ShareAction.REPLACE)
        < len(performed) - 1
    )
    assert performed[-1] is ShareAction.AWAIT


def test_a_failed_share_is_closed_before_its_report() -> None:
    for events in ((Event.ERROR,), (Event.READY, Event.ERROR), (Event.READY, Event.EXITED_AT_END)):
        assert actions(*events)[-2:] == [ShareAction.CLOSE, ShareAction.REPORT_PROBLEM]


def test_a_pause_that_is_cut_short_is_a_failure() -> None:
    """A standby may lack the last commit of the killed process."""
    assert actions(Event.READY, Event.EXITED, Event.STOP_REQUESTED)[-1] is ShareAction.REPORT_PROBLEM
    assert ShareAction.REPORT_PROBLEM not in actions(Event.READY, Event.STOP_REQUESTED)


def test_each_stage_is_reached_and_each_event_leads_somewhere() -> None:
    assert {stage for stage, _ in STEPS} == set(Stage)
    assert {event for _, event in STEPS} == set(Event)
    assert {step.after for step in STEPS.values()} == set(Stage)
    assert {act for step in STEPS.values() for act in step.actions} == set(ShareAction)


def test_an_event_that_cannot_happen_is_refused() -> None:
    for stage, event in product(Stage, Event):
        life = ShareLife()
        life.stage = stage
        if (stage, event) in STEPS:
            assert life.on_event(event) == STEPS[stage, event].actions
        else:
            with pytest.raises(RuntimeError, match="there is no step"):
                life.on_event(event)


# ---------------------------------------------------------------- the number of shares


def test_growth_waits_while_shares_are_opened() -> None:
    growth = Growth(Load(4, 0.0, 0.0), fixed=3)
    assert [growth.wanted_now([0.0], now, 0.0) for now in (1.0, 2.0)] == [3, None]
    growth.opened()
    assert growth.wanted_now([0.0] * 3, 3.0, 0.0) is None
    growth.fixed = 1
    assert growth.wanted_now([0.0] * 3, 4.0, 0.0) == 1


def test_a_share_that_cannot_open_is_retried_after_a_minute_and_logged_once() -> None:
    growth = Growth(Load(4, 0.0, 0.0), fixed=2)
    assert growth.wanted_now([0.0], 1.0, 0.0) == 2
    assert growth.failed("no room", 1.0)
    assert growth.wanted_now([0.0], RETRY_INTERVAL_S, 0.0) is None
    assert growth.wanted_now([0.0], RETRY_INTERVAL_S + 1, 0.0) == 2
    assert not growth.failed("no room", 100.0)
    assert growth.failed("no threads", 200.0)


def test_a_daemon_that_begins_anew_tries_no_sooner_for_that() -> None:
    """Otherwise a daemon that cannot start a thread would restart all shares every second."""
    growth = Growth(Load(4, 0.0, 0.0), fixed=2)
    assert growth.wanted_now([0.0], 1.0, 0.0) == 2
    growth.opened()
    growth.rest(1.0)
    growth.begin(Load(4, 2.0, 0.0))
    assert growth.wanted_now([0.0], 3.0, 0.0) is None
    assert growth.wanted_now([0.0], RETRY_INTERVAL_S + 1, 0.0) == 2


# ---------------------------------------------------------------- the waits between rounds


def rounds(pace: DaemonPace, *handled: int, wake_at: float = NEVER, was_woken: bool = False) -> list[Wait]:
    """Run rounds with these numbers of messages, and return the waits after them."""
    waits = []
    for count in handled:
        waits.append(pace.after_round(count, wake_at, 0.0))
        pace.waited(wake_at, 0.0, was_woken=was_woken)
    return waits


def test_an_idle_daemon_looks_less_and_less_often_and_hears() -> None:
    waits = rounds(DaemonPace(), *[0] * 6)
    assert [wait.seconds for wait in waits] == [FIRST_POLL_S, 0.05, 0.25, POLL_INTERVAL_S, POLL_INTERVAL_S, 1.0]
    assert all(wait.is_interruptible for wait in waits)


def test_the_daemon_polls_under_load_and_listens_when_there_is_little() -> None:
    pace = DaemonPace()
    rounds(pace, *[BUSY_MESSAGES] * (ROUNDS_UNTIL_POLLING - 1), 0, *[1] * 20)
    rounds(pace, *[BUSY_MESSAGES] * (ROUNDS_UNTIL_POLLING - 1))
    assert pace.mode is Mode.LISTEN
    rounds(pace, BUSY_MESSAGES)
    assert pace.mode is Mode.POLL
    assert rounds(pace, *[1] * (ROUNDS_UNTIL_POLLING - 1), BUSY_MESSAGES, 1) == [Wait(ROUND_PAUSE_S, False)] * 5
    assert pace.mode is Mode.POLL
    assert rounds(pace, 0) == [Wait(0.0, False)]
    assert pace.mode is Mode.LISTEN
    rounds(pace, *[BUSY_MESSAGES] * ROUNDS_UNTIL_POLLING, *[1] * ROUNDS_UNTIL_POLLING)
    assert pace.mode is Mode.LISTEN


def test_a_round_follows_at_once_where_there_is_more_to_do() -> None:
    pace = DaemonPace()
    assert rounds(pace, 1, wake_at=0.0) == [Wait(0.0, True)]
    assert rounds(pace, *[BUSY_MESSAGES] * ROUNDS_UNTIL_POLLING, wake_at=0.0)[-1].seconds == 0.0
    assert rounds(pace, BUSY_MESSAGES, wake_at=0.0) == [Wait(0.0, False)]


def test_a_bell_makes_the_next_pauses_short() -> None:
    pace = DaemonPace()
    rounds(pace, 0, 0, 0)
    rounds(pace, 0, was_woken=True)
    assert rounds(pace, 0)[0].seconds == FIRST_POLL_S


def test_a_share_polls_often_while_it_is_not_notified() -> None:
    pace = SharePace()
    idle = [pace.after_round(0, NEVER, 0.0, is_polling=True) for _ in range(3)]
    assert idle == [Wait(ROUND_PAUSE_S, True)] * 3
    assert [pace.after_round(0, NEVER, 0.0, is_polling=False).seconds for _ in range(4)] == [0.1, 0.5, 1.0, 1.0]
    pace.on_wake()
    assert pace.after_round(0, NEVER, 0.0, is_polling=False).seconds == 5 * FIRST_POLL_S
    assert pace.after_round(BUSY_MESSAGES, NEVER, 0.0, is_polling=False) == Wait(ROUND_PAUSE_S, False)
    assert pace.after_round(1, 0.005, 0.0, is_polling=False) == Wait(0.005, True)


# ---------------------------------------------------------------- which process serves


def actions_for(*events: Served) -> list[Do]:
    """Return the actions of a process for an event."""
    takeover = Takeover()
    return [Do.ASK_ROLE, *(act for event in events for act in takeover.on_event(event))]


def test_a_process_proves_that_it_is_the_principal_only_with_the_lease() -> None:
    for (phase, event), step in TAKEOVERS.items():
        if Do.PROVE in step.actions:
            assert event is Served.WON or phase is Phase.PROVING
        if Do.SERVE in step.actions:
            assert (phase, event) == (Phase.PROVING, Served.PROVED)


def test_a_standby_daemon_logs_once_and_has_no_connections() -> None:
    performed = actions_for(Served.PRIMARY, Served.HELD, Served.HELD, Served.HELD, Served.WON, Served.PROVED)
    assert performed.count(Do.LOG_STANDBY) == performed.count(Do.STOP_LISTENING) == 1
    assert performed.count(Do.WAIT_FOR_LEASE) == 3
    assert performed[-1] is Do.SERVE


def test_a_mirror_that_is_promoted_is_in_doubt_until_a_commit_went_through() -> None:
    performed = actions_for(Served.MIRROR, Served.MIRROR, Served.PRIMARY, Served.WON, Served.UNPROVED, Served.PROVED)
    assert performed.count(Do.LOG_MIRROR) == performed.count(Do.LOG_PROMOTED) == 1
    assert (
        performed.index(Do.ANNOUNCE_DOUBT)
        < performed.index(Do.TRY_LEASE)
        < performed.index(Do.PROVE)
        < performed.index(Do.SERVE)
    )
    assert performed.count(Do.ANNOUNCE_DOUBT) == 2


def test_each_phase_is_reached_and_impossible_events_are_refused() -> None:
    assert {step.after for step in TAKEOVERS.values()} == set(Phase) - {Phase.ASKING}
    assert {event for _, event in TAKEOVERS} == set(Served)
    assert {act for step in TAKEOVERS.values() for act in step.actions} == set(Do)
    for phase, event in product(Phase, Served):
        takeover = Takeover()
        takeover.phase = phase
        if (phase, event) not in TAKEOVERS:
            with pytest.raises(RuntimeError, match="there is no step"):
                takeover.on_event(event)


def test_a_higher_timeline_has_to_be_refuted_once() -> None:
    challenges, known = Challenges(), KnownTimeline("c", 2)
    plain, guarded = (
        RoleReport(Role.PRINCIPAL, "c", 1, is_synchronous=is_synchronous) for is_synchronous in (False, True)
    )
    with pytest.raises(InstanceError, match="timeline 2"):
        challenges.take(known)
    challenges.take(known)
    assert "pg_rewind" in challenges.objection(plain)
    assert challenges.objection(guarded) == ""
    assert challenges.objection(RoleReport(Role.PRINCIPAL, "other", 1, is_synchronous=False)) == ""
    challenges.refute()
    challenges.take(known)
    with pytest.raises(InstanceError, match="timeline 3"):
        challenges.take(KnownTimeline("c", 3))
    for repeated in (known, KnownTimeline("c", 3)):  # other peers still report the refuted one
        challenges.take(repeated)
