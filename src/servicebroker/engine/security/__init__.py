"""Principals (users, roles, logins) and their permissions; certificates and keys: their statements.

**The problem.** Users of a broker database, PostgreSQL roles that are mapped to them, and peers in other instances run
statements. Each may only do what was granted to it.

**The flow.** A verb calls `authorize` (`authorization.py`) with the object and the statement's name in `NEEDS`. The
function reads the grants and denials of the principal and its roles, and `model/security/permissions.py` decides. For
dbo nothing is read. GRANT, DENY and REVOKE (`grants.py`) renew the catalog version of every queue, so that clients
check again. A PostgreSQL role without rights on the broker's tables can only call the functions of `store/fence.sql`,
which make the same checks.

**The rules.**

* Permissions are checked before a verb writes. A new statement gets its row in `NEEDS` of
  `model/security/permissions.py`.
* Cached answers are valid for one catalog version of the queue. Every change of principals, owners or permissions
  renews that version.
* In T-SQL the current principal is checked, not the connection's (`tsql/context.py`). T-SQL statements of dbo cannot
  use the broker's own tables either (`tsql_objects.py`).
* Private keys, master keys and session keys are stored encrypted only: `store/keys/key_files.py`,
  `store/keys/sealing.py`.
* The caller of DDL holds the lock of `lock_catalog` (`engine/catalog/alter.py`).

**Where.** Users and roles: `principals.py`. Logins and CONNECT: `logins.py`. Certificates of the transport:
`transport_certificates.py`; of users in conversations: `user_certificates.py`. Keys of a database: `master_keys.py`; of
conversations: `session_keys.py`. Roles of PostgreSQL: `role_rights.py`. Signed T-SQL modules: `module_signatures.py`.
Begin with `authorization.py`.
"""
