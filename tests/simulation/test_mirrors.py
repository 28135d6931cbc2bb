"""Simulated mirrored pairs whose servers fail: no message is lost or duplicated, and wrong rules are detected."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from servicebroker.cli.main import single_command
from servicebroker.protocol.mirroring import STAYS, Claim, Role, RoleReport
from servicebroker_lab.simulation import mirrors
from servicebroker_lab.simulation.command import simulate_command
from servicebroker_lab.simulation.store import GuaranteeBroken

program = single_command(simulate_command)

SEEDS = range(40)


def is_bad(seed: int) -> bool:
    try:
        mirrors.run(seed)
    except GuaranteeBroken:
        return True
    return False


def failures() -> int:
    return sum(map(is_bad, SEEDS))


def test_no_message_is_lost_or_duplicated_by_failures() -> None:
    runs = [mirrors.run(seed) for seed in SEEDS]
    assert sum(mirror_run.promotions for mirror_run in runs) > len(SEEDS)
    assert sum(mirror_run.changes for mirror_run in runs) > len(SEEDS)


def test_a_seed_replays() -> None:
    lines: list[list[str]] = [[], []]
    for trace in lines:
        mirrors.run(7, trace.append)
    assert lines[0] == lines[1]
    assert len(lines[0]) > 50


def test_acknowledging_before_the_standby_has_it_loses_messages(monkeypatch: pytest.MonkeyPatch) -> None:
    def commit(self: mirrors._Server, entries: list[mirrors.Entry], done: object, now: float) -> None:
        self.log += entries
        assert callable(done)
        done()

    monkeypatch.setattr(mirrors._Server, "commit", commit)
    assert failures() > len(SEEDS) // 4


def test_a_mirror_that_claims_the_role_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    rightly = mirrors._Server.role_report

    def role_report(self: mirrors._Server, now: float) -> RoleReport:
        return RoleReport(Role.PRINCIPAL, "c", self.timeline) if self.is_standby else rightly(self, now)

    monkeypatch.setattr(mirrors._Server, "role_report", role_report)
    assert failures() > 0


def test_a_sender_that_never_switches_is_detected(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAYS, Claim.NO, True)
    assert failures() > 0


def test_the_mirrors_command_counts_failures() -> None:
    result = CliRunner().invoke(program, ["--mirrors", "--seeds", "0:3", "--json"])
    assert result.exit_code == 0
    document = json.loads(result.stdout)
    assert (document["runs"], document["failures"]) == (3, [])


def test_the_command_replays_a_seed_that_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(STAYS, Claim.NO, True)
    bad = next(seed for seed in range(200) if is_bad(seed))
    result = CliRunner().invoke(program, ["--mirrors", "--seeds", str(bad)])
    assert result.exit_code == 1
    assert f"seed {bad}: sender" in result.stdout
    assert "faults stop" in result.stderr
