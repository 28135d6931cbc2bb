"""Principals and their permissions; certificates and keys, as rows.

**The problem.** Three kinds of parties act: users of a broker database, PostgreSQL roles that are mapped to them, and
peers in other instances. Each may only do what was granted to it.

**The flow.** A verb calls `authorize` (`authorization.py`) with the object and the statement's name in `NEEDS`. The
function reads what the principal and its roles were granted and denied, and `model/security/permissions.py` decides.
For dbo nothing is read. GRANT, DENY and REVOKE (`grants.py`) renew the catalog version of every queue, so that clients
check again. A PostgreSQL role without rights on our tables has only the functions of `store/fence.sql`, which make the
same checks.

**The rules.**

* Permissions are checked before a verb writes. A new statement gets its row in `NEEDS` of
  `model/security/permissions.py`.
* Cached answers are valid for one catalog version of the queue. Every change of principals, owners or permissions
  renews that version.
* In T-SQL the current principal is checked, not the connection's (`tsql/context.py`). Objects of the broker are closed
  to dbo too (`tsql_objects.py`).
* No private key, master key or session key is in the database in clear: `store/keys/key_files.py`,
  `store/keys/sealing.py`.
* The caller of DDL holds the lock of `lock_catalog` (`engine/catalog/alter.py`).

**Where.** Users and roles: `principals.py`. Logins and CONNECT: `logins.py`. Certificates of the transport:
`transport_certificates.py`; of users in conversations: `user_certificates.py`. Keys of a database: `master_keys.py`; of
conversations: `session_keys.py`. Roles of PostgreSQL: `role_rights.py`. Signed T-SQL modules: `module_signatures.py`.
Begin with `authorization.py`.
"""
