"""Statements of T-SQL without a counterpart here, found by their first words. They are refused, or have no effect.

A statement that only tunes SQL Server has no effect. One that scripts rely on, such as an audit or a backup, is
refused.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import NamedTuple

from servicebroker.tsql.parser.keywords import STARTERS, begins_statement, split_words
from servicebroker.tsql.tokens import VARIABLE, WORD, Tokens


class Feature(NamedTuple):
    """A statement of T-SQL. `alternative` is the advice in the error, "" if the statement has no effect."""

    name: str
    alternative: str

    @property
    def length(self) -> int:
        """The number of words in the name."""
        return self.name.count(" ") + 1

    def can_precede(self, following: Collection[str]) -> bool:
        """Check whether the words after the name include a required one."""
        if not following:
            return self.is_complete
        demanded = _REQUIRED_WORDS.get(self.name)
        return demanded is None or not demanded.isdisjoint(following)

    @property
    def is_complete(self) -> bool:
        """True if nothing has to follow the name."""
        return self.name in _COMPLETE_NAMES or self.name.startswith("DBCC")


# kinds of objects with CREATE, ALTER and DROP
_TUNING_OBJECTS = (
    "RESOURCE POOL", "EXTERNAL RESOURCE POOL", "WORKLOAD GROUP", "WORKLOAD CLASSIFIER", "RESOURCE GOVERNOR",
    "PARTITION FUNCTION", "PARTITION SCHEME", "STATISTICS", "FULLTEXT CATALOG", "FULLTEXT INDEX", "FULLTEXT STOPLIST",
    "SEARCH PROPERTY LIST", "EVENT SESSION", "DATABASE SCOPED CONFIGURATION", "SERVER CONFIGURATION",
)  # fmt: skip
_REFUSED_OBJECTS = {
    "AGGREGATE": "Use the aggregates of T-SQL, or a procedure.",
    "APPLICATION ROLE": "Use a role.",
    "ASSEMBLY": "Write the procedure in T-SQL, or in Python with the package's API.",
    "ASYMMETRIC KEY": "Use a certificate.",
    "AVAILABILITY GROUP": "Use PostgreSQL's replication.",
    "COLUMN ENCRYPTION KEY": "Encrypt in the application.",
    "COLUMN MASTER KEY": "Encrypt in the application.",
    "CREDENTIAL": "Omit it: files are read with the rights of the process.",
    "CRYPTOGRAPHIC PROVIDER": "Omit it.",
    "DATABASE AUDIT SPECIFICATION": "Use an audit extension of PostgreSQL, such as pgaudit.",
    "DATABASE ENCRYPTION KEY": "Encrypt the disk.",
    "DATABASE SCOPED CREDENTIAL": "Omit it: files are read with the rights of the process.",
    "DEFAULT": "Use a DEFAULT constraint.",
    "EXTERNAL DATA SOURCE": "Use a foreign table of PostgreSQL.",
    "EXTERNAL FILE FORMAT": "Use a foreign table of PostgreSQL.",
    "EXTERNAL LANGUAGE": "Write it in Python with the package's API.",
    "EXTERNAL LIBRARY": "Write it in Python with the package's API.",
    "EXTERNAL MODEL": "Write it in Python with the package's API.",
    "EXTERNAL STREAM": "Write it in Python with the package's API.",
    "EXTERNAL TABLE": "Use a foreign table of PostgreSQL.",
    "FEDERATION": "Use another instance.",
    "MATERIALIZED VIEW": "Use a view.",
    "RULE": "Use a CHECK constraint.",
    "SECURITY POLICY": "Use the row security of PostgreSQL.",
    "SERVER AUDIT": "Use an audit extension of PostgreSQL, such as pgaudit.",
    "SERVER AUDIT SPECIFICATION": "Use an audit extension of PostgreSQL, such as pgaudit.",
    "SERVER ROLE": "Grant the login what it needs.",
    "SERVICE MASTER KEY": "Omit it: master keys are stored beside the instance.",
    "SYMMETRIC KEY": "Dialog security creates its session keys itself.",
}
_STATEMENTS_WITHOUT_EFFECT = (
    "ALTER INDEX", "CREATE XML INDEX", "CREATE PRIMARY XML INDEX", "CREATE SELECTIVE XML INDEX", "CREATE SPATIAL INDEX",
    "CREATE COLUMNSTORE INDEX", "CREATE CLUSTERED COLUMNSTORE INDEX", "CREATE NONCLUSTERED COLUMNSTORE INDEX",
    "CREATE JSON INDEX", "CREATE VECTOR INDEX", "UPDATE STATISTICS", "CHECKPOINT", "RECONFIGURE", "LINENO",
    "ADD SENSITIVITY CLASSIFICATION", "DROP SENSITIVITY CLASSIFICATION",
)  # fmt: skip
_USE_SELECT = "Use SELECT and UPDATE. There are no text pointers."
_STATEMENTS_REFUSED = {
    "BEGIN DISTRIBUTED": "Use BEGIN TRANSACTION. Delivery needs no distributed transaction.",
    "BULK INSERT": "Use COPY of PostgreSQL.",
    "INSERT BULK": "Use COPY of PostgreSQL.",
    "COPY INTO": "Use COPY of PostgreSQL.",
    "CLOSE ALL SYMMETRIC KEYS": "Dialog security creates its session keys itself.",
    "CLOSE SYMMETRIC KEY": "Dialog security creates its session keys itself.",
    "OPEN SYMMETRIC KEY": "Dialog security creates its session keys itself.",
    "BACKUP SERVICE MASTER KEY": "Back up the folder of the instance.",
    "RESTORE SERVICE MASTER KEY": "Restore the folder of the instance.",
    "RESTORE MASTER KEY": "Restore the folder of the instance.",
    "DUMP CERTIFICATE": "Use BACKUP CERTIFICATE.",
    "DUMP SERVICE MASTER KEY": "Back up the folder of the instance.",
    "DUMP MASTER KEY": "Back up the folder of the instance.",
    "LOAD SERVICE MASTER KEY": "Restore the folder of the instance.",
    "LOAD MASTER KEY": "Restore the folder of the instance.",
    "DISK INIT": "Omit it.",
    "DISK RESIZE": "Omit it.",
    "KILL": "End the session in PostgreSQL: select pg_terminate_backend(pid).",
    "KILL QUERY NOTIFICATION SUBSCRIPTION": "Omit it.",
    "KILL STATS JOB": "Omit it.",
    "READTEXT": _USE_SELECT,
    "WRITETEXT": _USE_SELECT,
    "UPDATETEXT": _USE_SELECT,
    "RENAME OBJECT": "Create the object under the new name.",
    "RENAME DATABASE": "Create a database of the new name.",
    "SETUSER": "Use EXECUTE AS and REVERT.",
    "SHUTDOWN": "Stop the instance in its shell.",
    "USE FEDERATION": "Use another instance.",
}

_STATEMENTS_REFUSED |= {
    f"{keyword} {kind}": "Back up the PostgreSQL database, see the page on backups."
    for keyword in ("BACKUP", "DUMP")
    for kind in ("DATABASE", "LOG", "TRANSACTION", "TRAN", "SYMMETRIC KEY", "GROUP", "SERVER")
}
_STATEMENTS_REFUSED |= {
    f"{keyword} {kind}": "Restore PostgreSQL's backup, see the page on backups."
    for keyword in ("RESTORE", "LOAD")
    for kind in (
        "DATABASE", "LOG", "TRANSACTION", "TRAN", "HEADERONLY", "FILELISTONLY", "VERIFYONLY", "LABELONLY", "REWINDONLY",
        "SYMMETRIC KEY",
    )
}  # fmt: skip
_COMPLETE_NAMES = frozenset(
    {"CHECKPOINT", "RECONFIGURE", "SETUSER", "SHUTDOWN", "CLOSE ALL SYMMETRIC KEYS", "DROP DATABASE ENCRYPTION KEY"}
)

_REQUIRED_WORDS = {
    "ALTER INDEX": split_words("REBUILD REORGANIZE DISABLE SET RESUME PAUSE ABORT FOR"),
    "BACKUP DATABASE": split_words("TO"),
    "BULK INSERT": split_words("FROM"),
    "CREATE EVENT SESSION": split_words("ON"),
    "CREATE FULLTEXT INDEX": split_words("ON"),
    "CREATE PARTITION FUNCTION": split_words("RANGE"),
    "CREATE PARTITION SCHEME": split_words("PARTITION"),
    "CREATE STATISTICS": split_words("ON"),
    "CREATE SYMMETRIC KEY": split_words("WITH FROM"),
    "CREATE XML INDEX": split_words("ON"),
}
_OBJECT_KINDS = {tuple(kind.split()): "" for kind in _TUNING_OBJECTS} | {
    tuple(kind.split()): _REFUSED_OBJECTS[kind] for kind in _REFUSED_OBJECTS
}
_FEATURES = {
    tuple(name.split()): Feature(name, instead)
    for name, instead in (dict.fromkeys(_STATEMENTS_WITHOUT_EFFECT, "") | _STATEMENTS_REFUSED).items()
}
_FEATURES |= {
    (keyword, *kind): Feature(f"{keyword} {' '.join(kind)}", instead)
    for keyword in ("CREATE", "ALTER", "DROP")
    for kind, instead in _OBJECT_KINDS.items()
}
FIRST_WORDS = frozenset({"DBCC"} | {head[0] for head in _FEATURES})
_MAX_NAME_WORDS = max(map(len, _FEATURES))
# commands that only maintain SQL Server; the other commands of DBCC return results or change data
_DBCC_WITHOUT_EFFECT = split_words(
    "CHECKALLOC CHECKCATALOG CHECKCONSTRAINTS CHECKDB CHECKFILEGROUP CHECKTABLE CLEANTABLE DBREINDEX DROPCLEANBUFFERS "
    "FLUSHPROCINDB FREEPROCCACHE FREESESSIONCACHE FREESYSTEMCACHE INDEXDEFRAG SHRINKDATABASE SHRINKFILE TRACEOFF "
    "TRACEON UPDATEUSAGE"
)
SET_OPTIONS = split_words(
    "ANSI_DEFAULTS ANSI_NULL_DFLT_OFF ANSI_NULL_DFLT_ON ANSI_NULLS ANSI_PADDING ANSI_WARNINGS ARITHABORT ARITHIGNORE "
    "CONCAT_NULL_YIELDS_NULL CONTEXT_INFO CURSOR_CLOSE_ON_COMMIT DATEFIRST DATEFORMAT DEADLOCK_PRIORITY "
    "DISABLE_DEF_CNST_CHK ERRLVL FIPS_FLAGGER FMTONLY FORCEPLAN IDENTITY_INSERT IMPLICIT_TRANSACTIONS LANGUAGE "
    "LOCK_TIMEOUT NOCOUNT NOEXEC NO_BROWSETABLE NUMERIC_ROUNDABORT OFFSETS PARSEONLY QUERY_GOVERNOR_COST_LIMIT "
    "QUOTED_IDENTIFIER REMOTE_PROC_TRANSACTIONS RESULT_SET_CACHING ROWCOUNT SHOWPLAN_ALL SHOWPLAN_TEXT SHOWPLAN_XML "
    "STATISTICS TEXTSIZE TRANSACTION XACT_ABORT"
)


def feature_at(tokens: Tokens, at: int) -> Feature | None:
    """Return the unsupported statement that begins at this index, or None. The longest name wins."""
    if tokens.words[at] == "DBCC":
        command = tokens.words[at + 1] if tokens.kinds[at + 1] == WORD else ""
        name = f"DBCC {tokens.text(at + 1)}"
        instead = "Use servicebroker check and servicebroker doctor to verify the stored data."
        return Feature(name, "" if command in _DBCC_WITHOUT_EFFECT else instead) if command else None
    for length in range(_MAX_NAME_WORDS, 0, -1):
        feature = _FEATURES.get(tuple(tokens.words[at : at + length]))
        if feature is not None:
            return feature
    return None


def feature_end(tokens: Tokens, at: int) -> int:
    """Return the index after an unsupported statement, searched from an index inside it."""
    depth = 0
    for index in range(at, len(tokens.words)):
        word = tokens.words[index]
        if word == "":
            return index
        if word == "(":
            depth += 1
        elif word == ")":
            if depth == 0:
                return index
            depth -= 1
        elif depth == 0 and (
            word == ";" or (word in STARTERS | {"END", "ELSE"} and not _continues_clause(tokens, index))
        ):
            return index
    return len(tokens.words) - 1


def _continues_clause(tokens: Tokens, at: int) -> bool:
    """Check whether a word that can begin a statement is part of a clause at this index."""
    word, following, before = tokens.words[at], tokens.words[at + 1], tokens.words[at - 1]
    if not begins_statement(tokens, at):
        return True
    if word == "WITH":
        return True
    if word == "IF":
        return following == "EXISTS" and tokens.words[at + 2] != "("
    if word in ("CREATE", "ALTER", "DROP"):
        return not _begins_kind(tokens, at)
    if word == "SET":
        return following not in SET_OPTIONS and tokens.kinds[at + 1] != VARIABLE
    if word in ("GRANT", "DENY"):
        return before == "WITH" or tokens.words[at + 1 : at + 3] == ["CREATE", "ANY"]
    if word in ("INSERT", "UPDATE", "DELETE", "MERGE"):
        return (
            before in ("AFTER", "BEFORE", "ON", "START", ",") or following == "RANGE" or _alters_partitions(tokens, at)
        )
    return word == "RECONFIGURE" and before == "GOVERNOR"


def _alters_partitions(tokens: Tokens, at: int) -> bool:
    """Check for ALTER PARTITION FUNCTION name() before this word."""
    return tokens.words[at - 2 : at] == ["(", ")"] and "FUNCTION" in tokens.words[max(at - 6, 0) : at]


def _begins_kind(tokens: Tokens, at: int) -> bool:
    """Check whether CREATE, ALTER or DROP is followed by a kind of object."""
    return (
        tokens.words[at + 1 : at + 3] == ["EVENT", "NOTIFICATION"]
        or tokens.words[at + 1] in _CREATABLE_KINDS
        or feature_at(tokens, at) is not None
    )


_CREATABLE_KINDS = split_words(
    "AUTHORIZATION BROKER CERTIFICATE CLUSTERED CONTRACT DATABASE ENDPOINT FUNCTION INDEX LOGIN MASTER MESSAGE "
    "NONCLUSTERED OR PROC PROCEDURE QUEUE REMOTE ROLE ROUTE SCHEMA SEQUENCE SERVICE SYNONYM TABLE TRIGGER TYPE UNIQUE "
    "USER VIEW XML"
)
