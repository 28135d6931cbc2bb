"""Clauses of queries and tables without a counterpart here. An error about unreadable text names them."""

from __future__ import annotations

from servicebroker.tsql.parser.keywords import RESERVED
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.tokens import QUOTED, VARIABLE, WORD, Tokens

_USE_CONVERSATION = "Use a conversation to reach another instance, or a foreign table of PostgreSQL."
_USE_COPY = "Read the file in the application, or use COPY of PostgreSQL."
_USE_LIKE = "Use LIKE, or the text search of PostgreSQL."
_USE_JOINS = "Use tables and joins."
_USE_HISTORY_TABLE = "Keep old rows in a history table filled by a trigger."
_USE_VIEW = "Grant access to a view of the columns."
_USE_API = "Compute it in Python with the package's API."
_USE_TRIGGER = "Use a trigger, or a column of the type rowversion."
_AI_FUNCTIONS = (
    "ANALYZE_SENTIMENT", "CLASSIFY", "EXTRACT", "FIX_GRAMMAR", "GENERATE_CHUNKS", "GENERATE_EMBEDDINGS",
    "GENERATE_RESPONSE", "SUMMARIZE", "TRANSLATE",
)  # fmt: skip
# words and signs of each clause, with the advice; longer clauses stand before their prefixes
_CLAUSES = {
    "OPENROWSET (": _USE_COPY,
    "OPENQUERY (": _USE_CONVERSATION,
    "OPENDATASOURCE (": _USE_CONVERSATION,
    "OPENXML (": "Write OPENXML(@handle, 'path', flags) WITH (column type 'path', ...).",
    "CONTAINSTABLE (": _USE_LIKE,
    "FREETEXTTABLE (": _USE_LIKE,
    "SEMANTICKEYPHRASETABLE (": _USE_LIKE,
    "SEMANTICSIMILARITYTABLE (": _USE_LIKE,
    "SEMANTICSIMILARITYDETAILSTABLE (": _USE_LIKE,
    "CONTAINS (": _USE_LIKE,
    "FREETEXT (": _USE_LIKE,
    "CHANGETABLE (": _USE_TRIGGER,
    "WITH CHANGE_TRACKING_CONTEXT": _USE_TRIGGER,
    "PREDICT (": _USE_API,
    **{f"AI_{name} (": _USE_API for name in _AI_FUNCTIONS},
    "VECTOR (": "Keep the numbers in a text of JSON.",
    "AS XML (": "Omit the schema collection.",
    "VECTOR_SEARCH (": _USE_API,
    "FOR SYSTEM_TIME": _USE_HISTORY_TABLE,
    "PERIOD FOR SYSTEM_TIME": _USE_HISTORY_TABLE,
    "GENERATED ALWAYS": _USE_HISTORY_TABLE,
    "MATCH (": _USE_JOINS,
    "GRAPH PATH": _USE_JOINS,
    "AS NODE": _USE_JOINS,
    "AS EDGE": _USE_JOINS,
    "CONNECTION (": _USE_JOINS,
    "AS FILETABLE": "Keep the files in a column of the type varbinary(max).",
    "COLUMN_SET FOR": "Name the columns.",
    "MASKED WITH": _USE_VIEW,
    "MASKED": _USE_VIEW,
    "ENCRYPTED WITH": "Encrypt in the application.",
    **{
        f"WITH ( {option}": "Create the table, and fill it with INSERT."
        for option in ("DISTRIBUTION", "CLUSTERED", "HEAP")
    },
    "CLUSTER BY": "Omit it.",
    "FEDERATED ON": "Omit it.",
    "NOT ENFORCED": "Omit the constraint, or NOT ENFORCED.",
    "HIDDEN": "Omit it.",
    "WITH APPROXIMATE": "Omit it.",
    "WITH APPROX": "Omit it.",
    "FETCH APPROXIMATE": "Omit APPROXIMATE.",
    "FETCH APPROX": "Omit APPROX.",
    **{f"DISTINCT FROM {word}": "Use EXISTS with a subquery." for word in ("ALL", "ANY", "SOME")},
    "EXCEPT ALL": "Omit ALL.",
    "INTERSECT ALL": "Omit ALL.",
    "WITH ( PARTITIONS": "Delete the rows by a condition.",
    "WITH ( DISTRIBUTED_AGG": "Omit it.",
    "TSEQUAL (": "Use =.",
    "FOR BROWSE": "Omit it.",
    "COMPUTE": "Use another query, or ROLLUP.",
    ". WRITE (": "Use STUFF.",
    "JSON_OBJECT (": "Use FOR JSON.",
    "JSON_ARRAY (": "Use FOR JSON.",
    "$ PARTITION": "Use the column itself.",
    "$ NODE_ID": _USE_JOINS,
    "$ EDGE_ID": _USE_JOINS,
    "$ FROM_ID": _USE_JOINS,
    "$ TO_ID": _USE_JOINS,
    "$ IDENTITY": "Name the column.",
    "$ ROWGUID": "Name the column.",
    "% %": "Use the key.",
    "AS CLONE": "Use SELECT ... INTO.",
    "FOR TIMESTAMP": _USE_HISTORY_TABLE,
    "WITHIN GROUP": "Use a subquery.",
    "IGNORE NULLS": "Use a condition.",
    "RESPECT NULLS": "Omit it.",
    "GROUP BY ALL": "Omit ALL.",
    "*=": "Write LEFT JOIN.",
    "= *": "Write RIGHT JOIN.",
    "::": "Use a user-defined function.",
    "WITH EXTRACT": "Omit it.",
    "RETURNING": "Use CAST or CONVERT.",
    "WITH ARRAY": "Use JSON_QUERY without it.",
    "REMOTE JOIN": "Omit REMOTE.",
}
_BY_FIRST: dict[str, list[tuple[str, ...]]] = {}
for _clause in _CLAUSES:
    _BY_FIRST.setdefault(_clause.split()[0], []).append(tuple(_clause.split()))


def find_unsupported_clause(tokens: Tokens) -> TsqlError | None:
    """Build the error for the first unsupported clause in a text that could not be parsed."""
    words = tokens.words
    for at, word in enumerate(words):
        if word == "." and not _ends_name(tokens, at - 1):
            return unsupported("A name that begins with a dot", "Write its schema, or omit the dot.", 0)
        for clause in _BY_FIRST.get(word, ()):
            if tuple(words[at : at + len(clause)]) == clause:
                name = " ".join(part for part in clause if part not in "(.")
                return unsupported(name, _CLAUSES[" ".join(clause)], 0)
    return None


def _ends_name(tokens: Tokens, at: int) -> bool:
    """Check whether a dot can follow the token at this index."""
    if at < 0:
        return False
    word, kind = tokens.words[at], tokens.kinds[at]
    return kind in (QUOTED, VARIABLE) or word in (")", ".") or (kind == WORD and word not in RESERVED)
