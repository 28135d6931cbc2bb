"""Diagnosis for administrators: findings of doctor, counts, consistency checks, history, audit log and event log.

**The problem.** An operator asks under stress why a message does not arrive. The answer must be true, cheap on a large
instance, and the same in commands, pages and metrics.

**The flow of doctor.** `facts.py` reads facts (`fact_types.py`) at a bounded cost. `judgement.py` calls pure functions,
one file for each subject (`..._findings.py`), which return findings: sentences with advice (`findings.py`).
`cli/commands/doctor.py` prints them, and the dashboard shows them.

**The rules.**

* Queries are bounded: a count stops at a limit instead of reading millions of rows (`queue_counts.py`).
* Queries of doctor, status, check, metrics and pages only read.
* Only `judgement.py` and the files of findings decide what is a problem. Commands and pages only show findings.
* Each check of `consistency.py` is one statement, so it sees one snapshot of a running instance.

**Where.** `servicebroker check`: `consistency.py`. Metrics: `counters.py`. Counters of applications: `totals.py`. Rates
of the last hour, day and month: `history.py`. The audit log: `audit.py`, written by `store/audit.sql`. The event log of
conversations ("trail"): `trail.py`, written by `store/trail.sql`. A restored copy: `adoption.py`. Poison messages:
`poison_report.py`. Queries of the dashboard alone: `dashboard_queries.py`. Facts for a restricted role: `own_facts.py`.
Clocks, certificates and publications: `wrong_clocks.py`, `engine/security/certificate_ages.py`, `publications.py`.
Begin with `judgement.py`.
"""
