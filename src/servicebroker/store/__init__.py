"""PostgreSQL: the embedded server, connections, the schema, and how a statement runs.

**The problem.** The engine yields statements and knows no driver. This package runs them in threads and in asyncio, in
as few round trips as possible. It also creates the tables and functions that the statements use.

**How a statement runs.** A verb is SEND, RECEIVE or another statement of Service Broker: a generator that yields SQL
statements (`statements.py`). `run` (`running.py`) runs these. Static SQL is in a file beside its module
(`sql_files.py`). On connections of servicebroker a statement is prepared at its first use and sent by the driver's
protocol steps (`direct.py`). A deferred BEGIN, COMMIT or pipelined verb is sent with it. `run_alone` runs a verb as its
own transaction, usually one statement without BEGIN.

**The schema.** The tables are in `migrations`: a baseline, then numbered files. `queue.sql` is the template of a queue.
`views.sql` has the catalog views, `verbs.sql` the functions of the schema's owner. `fence.sql` has those of restricted
roles (the "fence"), `tsql` those that translated T-SQL calls.

**The rules.**

* A change of a table is a new migration. A change of a template, view or function ships with a migration too, because
  applying one recreates them.
* `aio/` is written by hand; `tools/make_sync.py` generates the blocking module of the same name from it. Both forms of
  `direct.py` and `concurrency.py` are written by hand.
* The result of a completed statement is returned, also to a task that was cancelled meanwhile (`aio/concurrency.py`).
* Sessions run in READ COMMITTED and UTC. `locks.py` has the classes of the advisory locks.
* The time is that of the PostgreSQL server (`server_clock.py`). Times that Python cannot represent are clamped
  (`clamped_times.py`).
* A copy of an instance is refused until `servicebroker instance adopt` makes it one of its own (`home.py`).
* A forked child uses no connection of its parent (`forked.py`).

**Where.** The embedded server: `embedded.py`, `cluster.py`. Connections and pools: `connection.py`. Group locks kept
after a savepoint: `session_locks.py`. LISTEN: `listener.py`. Keys: `keys/key_files.py`, `keys/opened_keys.py`,
`keys/sealing.py`. Domains of instances: `keys/domain_folder.py`, `membership.py`. Objects that somebody has changed:
`expected_objects.py`. Catalog views in an upgrade: `migrations/catalog_views.py`, and views that read them:
`tsql/dependent_views.py`. Explanations of PostgreSQL's errors: `server_errors.py`. Begin with `statements.py`, then
`running.py`.
"""
