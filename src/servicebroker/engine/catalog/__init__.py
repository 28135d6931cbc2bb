"""CREATE, ALTER and DROP: databases, message types, contracts, queues, services, routes and the other objects.

**The problem.** Objects change while other sessions send and receive with them, and while processes cache them.

**The flow.** A definition is a value of `servicebroker.operations`. `api/aio/definitions.py` runs its steps in a
transaction. `INTERPRETERS` in `definitions.py` of this package has the steps of each operation. They take the
catalog's lock (`lock_catalog` in `alter.py`), check the permission and change rows. Then they deliver messages that
waited for the new state.

**The rules.**

* Definitions change one at a time in an instance: `lock_catalog`. SEND and RECEIVE do not take this lock.
* A process caches objects in `Catalog` (`catalog.py`). Each entry is immutable in the database, or is compared with a
  version when it is used. A change that makes an entry wrong renews the version: `renew_versions` for queues,
  permissions and validation, `renew_routes` for routes.
* CREATE, ALTER and DROP could deadlock with readers and senders. So they use a short lock timeout, and retry:
  `api/aio/lock_retry.py`.
* A queue is a table with functions of its own, generated from `store/queue.sql`.
* Triggers on the catalog tables record who has defined each object (`store/audit.sql`).

**Where.** CREATE of contracts, queues and services, and their lookup: `catalog.py`. ALTER and DROP QUEUE, DROP
CONTRACT: `alter.py`; ALTER and DROP SERVICE: `services.py`. ALTER DATABASE: `database_options.py`, `read_only.py`;
transactions that use a database: `database_transactions.py`. The objects of a database as one value:
`current_application.py`. Every other kind of object has the file of its name. Begin with `create_service` in
`catalog.py`, then `services.py`.
"""
