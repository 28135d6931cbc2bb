"""Create, encrypt, store and load keys and certificates.

**The problem.** Every process of an instance must be able to use its private keys, but readers of the database or of a
dump must not.

**The flow.** The service master key is a file in the key folder (`key_files.py`). It decrypts the master key of a
broker database, which decrypts private keys (`opened_keys.py`). These keys are stored encrypted, or "sealed"
(`sealing.py`). Certificates are X.509 (`x509_certificates.py`). A domain is a certificate authority in a shared folder
(`domain_folder.py`). Its member instances trust the authority, which signs the certificates of their endpoints
(`domain_certificates.py`).

**The rules.**

* No private key, master key or session key is written unencrypted into a table or a log.
* Only its owner may read a key file. A file with other modes is refused.
* A file is written under a temporary name and renamed, so that a crash leaves the old file or the new one.

Begin with `sealing.py`, then `opened_keys.py`.
"""
