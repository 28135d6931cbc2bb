"""Who somebody is, and what each may do, as plain values.

**The problem.** The engine, the functions of restricted roles, the daemon and T-SQL ask the same two questions: who is
it, and is this allowed? Each answer is decided here once, from values that others have read.

**What stands where.**

* `permissions.py`: principals, securables and permissions. `NEEDS` says what each statement needs; `is_allowed`
  decides over what a principal and its roles were granted and denied.
* `peers.py`: what the certificate of a peer proves, and whose an instance is. `domain.py`: names within a domain.
* `authentication.py`: how an endpoint knows its peers. `certificates.py`: what a certificate says of itself.
* `dialog_security.py`: whether a conversation with another instance is secured, and under whose certificates.

**The rules.**

* Nothing here reads a table, a file or a clock.
* DENY wins over GRANT; dbo is asked nothing.
* A peer is what its certificate proves. What it says of itself is only a claim.

Begin with `NEEDS` in `permissions.py`.
"""
