"""What administrators look at: findings of doctor, counts, checks of what is stored, history, audit and trail.

**The problem.** Somebody asks under stress why a message does not arrive. The answer must be true, cheap on a large
instance, and the same in commands, pages and metrics.

**The flow of doctor.** `facts.py` reads facts at a bounded cost. `findings.py` judges them: pure functions that return
sentences with what to do. `cli/commands/doctor.py` prints them, and the pages of the dashboard show them.

**The rules.**

* Questions are bounded: a count stops at a limit instead of reading millions of rows (`queue_counts.py`).
* What is asked for doctor, status, check, metrics and pages only reads.
* Judgement stands in `findings.py` alone. Commands and pages ask it and do not judge themselves.
* Each check of `consistency.py` is one statement, so it sees one moment of a running instance.

**Where.** `servicebroker check`: `consistency.py`. Metrics: `counters.py`. Counts of applications: `totals.py`. Rates
of the last hour, day and month: `history.py`. Who defined what: `audit.py`, written by `store/audit.sql`. The life of
conversations: `trail.py`, written by `store/trail.sql`. A restored copy: `adopting.py`. Poison: `poison_report.py`.
What only the dashboard asks: `looks.py`. What a restricted role sees: `own_facts.py`. Clocks, certificates and
publications: `wrong_clocks.py`, `engine/security/certificate_ages.py`, `publications.py`. Begin with `findings.py`.
"""
