"""Keywords: words that begin a statement, and reserved words, which cannot be names."""

from __future__ import annotations

from servicebroker.tsql.tokens import NUMBER, QUOTED, VARIABLE, WORD, Tokens


def split_words(text: str) -> frozenset[str]:
    """Return the words of a list as a set."""
    return frozenset(text.split())


# reserved words that begin a statement anywhere outside of parentheses
_STARTERS = split_words(
    "SELECT INSERT UPDATE DELETE MERGE CREATE ALTER DROP TRUNCATE DECLARE SET IF WHILE BEGIN END ELSE "
    "PRINT RAISERROR EXEC EXECUTE RETURN BREAK CONTINUE GOTO WAITFOR COMMIT ROLLBACK SAVE USE GRANT DENY "
    "REVOKE REVERT BACKUP RESTORE DBCC OPEN CLOSE FETCH DEALLOCATE KILL WITH CHECKPOINT RECONFIGURE "
    "SHUTDOWN READTEXT WRITETEXT UPDATETEXT SETUSER LINENO"
)
# words that are also names, and begin a statement only before one of these words
_FOLLOWING_WORDS = {
    "SEND": ("ON",),
    "GET": ("CONVERSATION",),
    "MOVE": ("CONVERSATION",),
    "ADD": ("SIGNATURE", "COUNTER", "SENSITIVITY"),
    "BULK": ("INSERT",),
    "COPY": ("INTO",),
    "DISK": ("INIT", "RESIZE"),
    "DUMP": ("DATABASE", "LOG", "TRANSACTION", "TRAN", "CERTIFICATE", "SERVICE", "MASTER"),
    "LOAD": ("DATABASE", "LOG", "TRANSACTION", "TRAN", "HEADERONLY", "SERVICE", "MASTER"),
    "RENAME": ("OBJECT", "DATABASE"),
    "ENABLE": ("TRIGGER",),
    "DISABLE": ("TRIGGER",),
}
STARTERS = _STARTERS | set(_FOLLOWING_WORDS) | {"THROW", "RECEIVE"}

RESERVED = _STARTERS | split_words(
    "ADD ALL AND ANY AS ASC AUTHORIZATION BETWEEN BY CASCADE CASE CHECK COLLATE COLUMN CONSTRAINT CONVERT "
    "CROSS CURRENT CURSOR DATABASE DEFAULT DESC DISTINCT ESCAPE EXCEPT EXISTS EXTERNAL FILE FOR FOREIGN "
    "FROM FULL FUNCTION GROUP HAVING HOLDLOCK IDENTITY IN INDEX INNER INTERSECT INTO IS JOIN KEY LEFT "
    "LIKE NOT NULL OF OFF ON OPTION OR ORDER OUTER OVER PERCENT PIVOT PLAN PRIMARY PROC PROCEDURE PUBLIC "
    "REFERENCES REPLICATION RIGHT RULE SCHEMA SOME TABLE THEN TO TOP TRAN TRANSACTION TRIGGER UNION "
    "UNIQUE UNPIVOT USER VALUES VIEW WHEN WHERE"
)


def begins_statement(tokens: Tokens, at: int) -> bool:
    """Check whether the word at this index, one of `STARTERS`, begins a statement."""
    word = tokens.words[at]
    following = tokens.words[at + 1] if at + 1 < len(tokens.words) else ""
    if word in _FOLLOWING_WORDS:
        return following in _FOLLOWING_WORDS[word]
    if word == "THROW":
        return following in ("", ";", "END") or tokens.kinds[at + 1] in (NUMBER, VARIABLE)
    if word == "RECEIVE":
        return _begins_receive(tokens, at, following)
    if word == "UPDATE":
        return following != "("  # IF UPDATE (column)
    if word == "WITH":
        third = tokens.words[at + 2] if at + 2 < len(tokens.words) else ""
        return following == "XMLNAMESPACES" or (
            following not in ("(", "TIES", "CHECK", "NOCHECK")
            and third in ("AS", "(")
            and tokens.kinds[at + 1] in (WORD, QUOTED)
        )
    return True


def _begins_receive(tokens: Tokens, at: int, following: str) -> bool:
    """Check whether RECEIVE begins a statement, and is not a name.

    In a statement, a column list follows it. After a name, another name is rare.
    """
    if following in ("TOP", "*", "@", "CAST", "CONVERT"):
        return True
    is_named = at > 0 and tokens.words[at - 1] in ("FROM", "JOIN", "INTO", "UPDATE", "TABLE", "AS", ".", ",")
    return not is_named and tokens.kinds[at + 1] in (WORD, QUOTED) and following not in RESERVED
