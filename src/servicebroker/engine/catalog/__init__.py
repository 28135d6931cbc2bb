"""CREATE, ALTER and DROP: databases, message types, contracts, queues, services, routes and the other objects.

**The problem.** Objects change while other sessions send and receive by them, and while processes remember them.

**The flow.** A definition is a value of `servicebroker.operations`. `api/aio/definitions.py` runs its steps in a
transaction: `INTERPRETERS` in `definitions.py` has them for each operation. The steps take the catalog's lock
(`lock_catalog` in `alter.py`), ask for the permission and change rows. Then what waited for the new state is
delivered.

**The rules.**

* Definitions change one at a time in an instance: `lock_catalog`. SEND and RECEIVE do not take this lock.
* A process remembers objects in `Catalog` (`catalog.py`). Each entry cannot change in the database, or is compared with
  a version when it is used. A change that makes an entry wrong renews the version: `renew_versions` for queues,
  permissions and validation, `renew_routes` for routes.
* A definition may wait for readers and senders while they wait for it. So it gives way: `api/giving_way.py`.
* A queue is a table of its own with functions of its own, made from `store/queue.sql`.
* Triggers of the catalog note who has defined what (`store/audit.sql`).

**Where.** CREATE of contracts, queues and services, and finding them: `catalog.py`. ALTER and DROP of queues, DROP
CONTRACT: `alter.py`; of services: `services.py`. ALTER DATABASE: `database_options.py`, `read_only.py`; who uses a
database: `database_users.py`. What a database has, as one value: `present.py`. Every other kind of object has the file
of its name. Begin with `create_service` in `catalog.py`, then `services.py`.
"""
