"""Diagnosis for administrators: findings of doctor, counts, consistency checks, history, audit and trail.

**The problem.** An operator asks under stress why a message does not arrive. The answer must be true, cheap on a large
instance, and the same in commands, pages and metrics.

**The flow of doctor.** `facts.py` reads facts (`fact_types.py`) at a bounded cost. `judgement.py` has them judged by
subject: the files named `..._findings.py` are pure functions that return sentences with advice (`findings.py`).
`cli/commands/doctor.py` prints them, and the pages of the dashboard show them.

**The rules.**

* Queries are bounded: a count stops at a limit instead of reading millions of rows (`queue_counts.py`).
* Queries of doctor, status, check, metrics and pages only read.
* Only `judgement.py` and the files of findings judge. Commands and pages show its result and do not judge themselves.
* Each check of `consistency.py` is one statement, so it sees one snapshot of a running instance.

**Where.** `servicebroker check`: `consistency.py`. Metrics: `counters.py`. Counters of applications: `totals.py`. Rates
of the last hour, day and month: `history.py`. Changes of definitions: `audit.py`, written by `store/audit.sql`. The
life of conversations: `trail.py`, written by `store/trail.sql`. A restored copy: `adoption.py`. Poison:
`poison_report.py`. Queries of the dashboard alone: `dashboard_queries.py`. The view of a restricted role:
`own_facts.py`. Clocks, certificates and publications: `wrong_clocks.py`, `engine/security/certificate_ages.py`,
`publications.py`. Begin with `judgement.py`.
"""
