"""Identities and permissions, as plain values.

**The problem.** The engine, the functions for restricted roles, the daemon and T-SQL ask the same two questions: whose
identity is this, and is this allowed? Each answer is decided here once, from values that callers have read.

**Modules.**

* `permissions.py`: principals, securables and permissions. `NEEDS` lists what each statement needs; `is_allowed`
  decides by what a principal and its roles were granted and denied.
* `peers.py`: the identity that a peer's certificate proves, and the owner of an instance. `domain.py`: names within a
  domain.
* `authentication.py`: how an endpoint authenticates peers. `certificates.py`: the contents of a certificate.
* `dialog_security.py`: whether a conversation with another instance is secured, and with whose certificates.

**The rules.**

* No module here reads a table, a file or a clock.
* DENY wins over GRANT; dbo needs no permission.
* A peer is what its certificate proves. Its own statements are only claims.

Begin with `NEEDS` in `permissions.py`.
"""
