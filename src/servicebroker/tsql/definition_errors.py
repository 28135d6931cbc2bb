"""SQL Server's errors for definitions of tables, indexes and views that PostgreSQL refuses.

`_RULES` is the table: SQLSTATE, the statement's first words and PostgreSQL's message on one side, number and text on
the other side. The first rule that fits counts. Every other error has its row in `postgres_errors.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import NamedTuple

from servicebroker.tsql.statement_errors import TsqlError

_NAME = r"(?:\[[^\]]+\]|\"[^\"]+\"|[\w$#@]+)(?:\s*\.+\s*(?:\[[^\]]+\]|\"[^\"]+\"|[\w$#@]+))*"
_TABLE = re.compile(rf"\s*(?:CREATE|ALTER)\s+TABLE\s+({_NAME})", re.IGNORECASE)
_INDEX = re.compile(
    rf"\s*CREATE\s+(?:UNIQUE\s+|CLUSTERED\s+|NONCLUSTERED\s+)*INDEX\s+({_NAME})\s+ON\s+({_NAME})", re.IGNORECASE
)
_FOREIGN_KEY = re.compile(
    rf"(?:CONSTRAINT\s+(?P<key>{_NAME})\s+)?(?:FOREIGN\s+KEY\s*\((?P<own>[^)]*)\)\s*)?REFERENCES\s+(?P<table>{_NAME})"
    r"(?:\s*\((?P<other>[^)]*)\))?",
    re.IGNORECASE,
)
_CREATE, _ALTER, _TABLES = "CREATE TABLE", "ALTER TABLE", "(?:CREATE|ALTER) TABLE"
_INDEXES = "CREATE (?:UNIQUE |CLUSTERED |NONCLUSTERED )*INDEX"
_ADDED_KEY = r"ALTER TABLE .* ADD (?:CONSTRAINT \S+ )?(?:PRIMARY KEY|UNIQUE)"
_CANNOT_FIND = 'Cannot find the object "{table}" because it does not exist or you do not have permissions.'


# errors that follow another one
_FOLLOW_UPS = {
    1750: "Could not create constraint or index. See previous errors.",
    3727: "Could not drop constraint. See previous errors.",
    4922: "ALTER TABLE {} failed because one or more objects access this column.",
}


class _Rule(NamedTuple):
    """An error of PostgreSQL, and that of SQL Server.

    `message` is matched against PostgreSQL's message and, in the next lines, its detail. The text may contain {0}, the
    first group of the match as the statement spells it, and the names of `_Names`. The message may contain {referenced}
    and {other}, the referenced table and its columns. `follow_up` is the number of the error that follows, 0 for none.
    """

    sqlstate: str
    statement: str
    message: str
    number: int
    text: str
    follow_up: int = 0


class _Names(NamedTuple):
    """The names that a definition writes, "" for a missing one."""

    table: str
    new_index: str
    key: str
    referenced: str
    other: str

    def fill(self, pattern: str) -> str:
        """Return the pattern of a message with the referenced table and its columns in their places."""
        columns = "|".join(re.escape(_plain(column).lower()) for column in self.other.split(","))
        table = re.escape(self.referenced.rpartition(".")[2].lower())
        return pattern.replace("{referenced}", table).replace("{other}", columns)


_RULES = (
    _Rule(
        "42P16",
        _CREATE,
        "multiple primary keys for",
        8110,
        "Cannot add multiple PRIMARY KEY constraints to table '{table}'.",
    ),
    _Rule(
        "42P16",
        _ALTER,
        "multiple primary keys for",
        1779,
        "Table '{table}' already has a primary key defined on it.",
        1750,
    ),
    _Rule(
        "42710",
        _TABLES,
        'constraint "(.+)" for relation',
        2714,
        "There is already an object named '{0}' in the database.",
        1750,
    ),
    _Rule(
        "42703",
        _TABLES,
        'column "(.+)" named in key does not exist',
        1911,
        "Column name '{0}' does not exist in the target table or view.",
        1750,
    ),
    _Rule(
        "42703",
        _TABLES,
        'column "({other})" referenced in foreign key constraint does not exist',
        1770,
        "Foreign key '{key}' references invalid column '{0}' in referenced table '{referenced}'.",
        1750,
    ),
    _Rule(
        "42703",
        _TABLES,
        'column "(.+)" referenced in foreign key constraint does not exist',
        1769,
        "Foreign key '{key}' references invalid column '{0}' in referencing table '{table}'.",
        1750,
    ),
    _Rule(
        "42P01",
        _TABLES,
        r'relation "(?:.+\.)?{referenced}" does not exist',
        1767,
        "Foreign key '{key}' references invalid table '{referenced}'.",
        1750,
    ),
    _Rule("42P01", _ALTER, 'relation ".+" does not exist', 4902, _CANNOT_FIND),
    _Rule("3F000", _ALTER, "", 4902, _CANNOT_FIND),
    _Rule(
        "42830",
        _TABLES,
        "number of",
        8139,
        "Number of referencing columns in foreign key differs from number of referenced columns, table '{table}'.",
        1750,
    ),
    _Rule(
        "42830",
        _TABLES,
        "",
        1776,
        "There are no primary or candidate keys in the referenced table '{referenced}' that match the referencing "
        "column list in the foreign key '{key}'.",
        1750,
    ),
    _Rule(
        "42704",
        _TABLES,
        "there is no primary key for",
        1773,
        "Foreign key '{key}' has implicit reference to object '{referenced}' which does not have a primary key defined "
        "on it.",
        1750,
    ),
    _Rule(
        "42804",
        _TABLES,
        "foreign key constraint .* cannot be implemented",
        1778,
        "The columns of the foreign key '{key}' and those of the referenced table '{referenced}' are not of the same "
        "data type.",
        1750,
    ),
    _Rule(
        "42701",
        _TABLES,
        'column "(.+?)" ',
        2705,
        "Column names in each table must be unique. Column name '{0}' in table '{table}' is specified more than once.",
    ),
    _Rule(
        "42704",
        _TABLES,
        "data type (.+) has no default operator class",
        1919,
        "A column of the type {0} is of a type that is invalid for use as a key column in an index.",
        1750,
    ),
    _Rule("42809", _TABLES, '"(.+)" is not a table', 4909, "Cannot alter '{0}' because it is not a table."),
    _Rule(
        "42703",
        r"ALTER TABLE .* DROP COLUMN",
        'column "(.+)" of relation',
        4924,
        "ALTER TABLE DROP COLUMN failed because column '{0}' does not exist in table '{table}'.",
    ),
    _Rule(
        "42703",
        _ADDED_KEY,
        'column "(.+)" of relation',
        1911,
        "Column name '{0}' does not exist in the target table or view.",
        1750,
    ),
    _Rule(
        "42703",
        r"ALTER TABLE .* ALTER COLUMN",
        'column "(.+)"(?: of relation .*)? does not exist',
        4924,
        "ALTER TABLE ALTER COLUMN failed because column '{0}' does not exist in table '{table}'.",
    ),
    _Rule(
        "42703",
        _ALTER,
        'column "(.+)" of relation',
        1752,
        "Column '{0}' in table '{table}' is invalid for creating a default constraint.",
        1750,
    ),
    _Rule(
        "23502",
        r"ALTER TABLE .* ADD",
        'column "(.+)" of relation',
        4901,
        "ALTER TABLE only allows columns to be added that can contain nulls, or have a DEFAULT definition specified, "
        "or the column being added is an identity or timestamp column, or alternatively if none of the previous "
        "conditions are satisfied the table must be empty to allow addition of this column. Column '{0}' cannot "
        "be added to non-empty table '{table}' because it does not satisfy these conditions.",
    ),
    _Rule(
        "2BP01",
        "ALTER TABLE .* DROP",
        r"cannot drop constraint (\S+) on .*\nconstraint (\S+) on table (\S+) depends",
        3725,
        "The constraint '{0}' is being referenced by table '{2}', foreign key constraint '{1}'.",
        3727,
    ),
    _Rule(
        "2BP01",
        "ALTER TABLE .* DROP",
        r"cannot drop column (\S+) of .*\n\w+ (\S+)(?: on table \S+)? depends",
        5074,
        "The object '{1}' is dependent on column '{0}'.",
        4922,
    ),
    _Rule(
        "0A000",
        "ALTER TABLE .* ALTER COLUMN",
        r'cannot alter type of a column used by .*\n.* (\S+) depends on column "(.+)"',
        5074,
        "The object '{0}' is dependent on column '{1}'.",
        4922,
    ),
    _Rule(
        "42P16",
        "ALTER TABLE .* ALTER COLUMN",
        'column "(.+)" is in a primary key',
        4922,
        "ALTER TABLE ALTER COLUMN {0} failed because one or more objects access this column.",
    ),
    _Rule(
        "54011",
        _TABLES,
        "",
        1702,
        "CREATE TABLE failed because a column in table '{table}' exceeds the maximum of 1024 columns.",
    ),
    _Rule(
        "42803",
        _TABLES,
        "aggregate",
        1774,
        "An aggregate may not appear in a computed column expression or check constraint.",
        1750,
    ),
    _Rule(
        "0A000",
        _TABLES,
        "cannot use subquery",
        1046,
        "Subqueries are not allowed in this context. Only scalar expressions are allowed.",
    ),
    _Rule("42P17", _INDEXES, "", 10735, "Incorrect WHERE clause for filtered index '{new_index}' on table '{table}'."),
    _Rule(
        "42P07",
        _INDEXES,
        "relation",
        1913,
        "The operation failed because an index or statistics with name '{new_index}' already exists on table "
        "'{table}'.",
    ),
    _Rule(
        "42703",
        _INDEXES,
        'column "(.+)" does not exist',
        1911,
        "Column name '{0}' does not exist in the target table or view.",
    ),
    _Rule("42P01", _INDEXES, "", 1088, _CANNOT_FIND),
    _Rule("3F000", _INDEXES, "", 1088, _CANNOT_FIND),
    _Rule("42809", _INDEXES, "", 1939, "Cannot create index on view '{table}' because the view is not schema bound."),
    _Rule(
        "42704",
        _INDEXES,
        "data type (.+) has no default operator class",
        1919,
        "A column in table '{table}' is of the type {0}, which is invalid for use as a key column in an index.",
    ),
    _Rule(
        "54000",
        _INDEXES,
        "index row",
        1946,
        "Operation failed. An index entry exceeds the maximum length for the index '{new_index}'.",
    ),
)


def find_definition_error(
    sqlstate: str, message: str, source: str, spell: Callable[[str, str], str]
) -> TsqlError | None:
    """Return SQL Server's error for a refused definition, or None if no rule fits.

    `spell` returns the spelling of a PostgreSQL name in the statement `source`.
    """
    flat = " ".join(source.split()).upper()
    if not flat.startswith(("CREATE", "ALTER")):
        return None
    names = _read_names(source)
    for rule in _RULES:
        if rule.sqlstate != sqlstate or not re.match(rule.statement, flat):
            continue
        match = re.match(names.fill(rule.message), message)
        if match is None:
            continue
        groups = [spell(group, source) for group in match.groups()]
        error = TsqlError(rule.number, rule.text.format(*groups, **names._asdict()))
        return follow(error, rule.follow_up, _changed_column(flat)) if rule.follow_up else error
    return None


def follow(cause: TsqlError, number: int = 1750, subject: str = "") -> TsqlError:
    """Return the error that SQL Server raises after `cause`. CATCH handles only this one."""
    error = TsqlError(number, _FOLLOW_UPS[number].format(subject), state=0)
    error.cause = cause
    return error


def _changed_column(statement: str) -> str:
    """Return DROP COLUMN or ALTER COLUMN with the column's name, "" for another change."""
    match = re.search(rf"((?:ALTER|DROP) COLUMN (?:IF EXISTS )?{_NAME})", statement)
    return re.sub(r"[\[\]\"]", "", match[1]) if match else ""


def _read_names(source: str) -> _Names:
    """Read the names that a definition writes."""
    table, index, key = _TABLE.match(source), _INDEX.match(source), _FOREIGN_KEY.search(source)
    return _Names(
        _plain(index[2] if index else table[1] if table else ""),
        _plain(index[1] if index else ""),
        _plain((key["key"] or "") if key else ""),
        _plain(key["table"] if key else ""),
        (key["other"] or "") if key else "",
    )


def _plain(name: str) -> str:
    """Return a name without brackets, quotation marks and blanks."""
    return re.sub(r'[\[\]"\s]', "", name)
