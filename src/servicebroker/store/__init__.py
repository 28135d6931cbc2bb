"""PostgreSQL: the embedded server, connections, the schema, and how a statement runs.

**The problem.** The engine yields statements and knows no driver. This package runs them in a thread and in asyncio, in
as few round trips as possible, and creates the tables and functions that they use.

**How a statement runs.** Static text is in a file beside its module, under its name (`sql_files.py`). `run`
(`running.py`) drives a verb's steps. On our own connections a statement is prepared at its first use and sent by the
driver's protocol steps (`direct.py`). Deferred commands, a BEGIN, a COMMIT or verbs of a pipeline, are sent with it.
`run_alone` runs a verb as its own transaction: usually one statement, without BEGIN.

**The schema.** The tables are in `migrations`: a baseline, then numbered files. Each queue is made from `queue.sql`.
`views.sql` has the catalog views, `verbs.sql` the owner's functions, `fence.sql` those of restricted roles, `tsql` the
functions that translated T-SQL calls.

**The rules.**

* A change of a table is a new migration. A change of a template, view or function ships with a migration too, because
  applying one recreates them.
* `aio/` is written by hand; `tools/make_sync.py` makes the files of the same name here. `direct.py` and
  `concurrency.py` exist twice, by hand.
* The result of a completed statement is returned, also to a task that was cancelled meanwhile (`aio/concurrency.py`).
* Sessions run in READ COMMITTED and UTC. A lock of ours has its class in `locks.py`.
* The time is the server's (`server_clock.py`). Times that Python cannot represent are clamped (`clamped_times.py`).
* A copy of an instance is refused until it is adopted (`home.py`). A forked child uses no connection of its parent.

**Where.** The embedded server: `embedded.py`, `cluster.py`. Connections and pools: `connection.py`. Locks beyond a
savepoint: `session_locks.py`. NOTIFY: `listener.py`. Keys: `keys/key_files.py`, `keys/opened_keys.py`,
`keys/sealing.py`. Domains: `keys/domain_folder.py`, `membership.py`. Changed definitions: `expected_objects.py`.
Catalog views in an upgrade: `migrations/catalog_views.py`, and views that read them: `tsql/dependent_views.py`.
Explained errors of PostgreSQL: `server_errors.py`. Begin with `statements.py`, then `running.py`.
"""
