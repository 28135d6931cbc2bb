"""Keys and certificates: created, sealed, stored in files, opened.

**The problem.** Private keys have to survive and to be usable by every process of an instance, and readers of the
database or a dump must not get them.

**The flow.** The service master key is a file of the key folder (`key_files.py`). It opens the master key of a
database, and that one opens private keys (`opened_keys.py`), which are stored sealed (`sealing.py`). Certificates are
X.509 (`x509_certificates.py`). Instances of a domain trust its authority, a shared folder (`domain_folder.py`), which
signs the certificates of their endpoints (`domain_certificates.py`).

**The rules.**

* No private key, master key or session key is written in clear, neither into a table nor into a log.
* A key file may be readable by its owner alone; one with other modes is refused.
* A file is written beside its place and renamed, so that a crash leaves the old one or the new one.

Begin with `sealing.py`, then `opened_keys.py`.
"""
