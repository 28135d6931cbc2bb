"""Verdicts of `tsql check` on single statements, without a server."""

from __future__ import annotations

import pytest

from servicebroker.tsql.check import Verdict, check

DENIED, RUNS, DIFFERS = Verdict.REFUSED, Verdict.RUNS, Verdict.DIFFERS


@pytest.mark.parametrize(
    ("statement", "verdict"),
    [
        ("GRANT EXECUTE ON TYPE::dbo.Code TO App", DIFFERS),  # never checked, so it does no harm
        ("GRANT VIEW DEFINITION, CONTROL ON XML SCHEMA COLLECTION::dbo.Forms TO App", DIFFERS),
        ("REVOKE CONTROL ON ROLE::Team FROM App", DIFFERS),
        ("DENY EXECUTE ON TYPE::dbo.Code TO App", DENIED),  # prevents nothing
        ("GRANT CONTROL ON ASSEMBLY::Code TO App", DENIED),
        ("GRANT SEND ON SERVICE::Stock TO App", RUNS),
    ],
)
def test_permissions(statement: str, verdict: Verdict) -> None:
    assert [finding.verdict for finding in check(statement)] == [verdict]


@pytest.mark.parametrize(
    ("items", "verdict"),
    [
        ("CUBE (Kind)", RUNS),
        ("ROLLUP (Kind, Day), Place", RUNS),
        ("GROUPING SETS ((Kind, Day), (Kind), ())", RUNS),
        ("CUBE", DENIED),
        ("ROLLUP (Kind", DENIED),
        ("ROLLUP Kind", DENIED),
    ],
)
def test_items_of_group_by(items: str, verdict: Verdict) -> None:
    assert [finding.verdict for finding in check(f"SELECT COUNT(*) FROM Sales GROUP BY {items}")] == [verdict]


@pytest.mark.parametrize("elements", [", a INT", "a INT,, b INT", "a INT,,"])
def test_elements_of_a_table_that_are_missing(elements: str) -> None:
    (finding,) = check(f"CREATE TABLE Sales ({elements})")
    assert finding.verdict == DENIED
    assert "Incorrect syntax near ','" in str(finding)


def test_a_trailing_comma_of_a_table_is_allowed() -> None:
    assert [finding.verdict for finding in check("CREATE TABLE Sales (a INT,)")] == [RUNS]


@pytest.mark.parametrize(
    "script",
    [
        "DECLARE @i int; SET @i = dbo.Plus(1, default)",
        "SELECT dbo.Plus(DEFAULT, DEFAULT)",
        f"DECLARE @s varchar(max); SET @s = {' + '.join(['CAST(1 AS varchar(9))'] * 2000)}",
    ],
)
def test_scripts_that_run(script: str) -> None:
    assert {finding.verdict for finding in check(script)} == {RUNS}
