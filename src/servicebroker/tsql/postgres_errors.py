"""T-SQL errors for errors of PostgreSQL and of the broker."""

from __future__ import annotations

import re

import psycopg

from servicebroker.model import zero_character
from servicebroker.model.errors import BrokerError
from servicebroker.tsql.definition_errors import find_definition_error, follow
from servicebroker.tsql.query_errors import find_query_error
from servicebroker.tsql.statement_errors import TsqlError, unknown_function_error, unsupported

# SQLSTATE -> number, severity, text; the placeholders are fields of PostgreSQL's diagnosis
_BY_SQLSTATE: dict[str, tuple[int, int, str]] = {
    "22012": (8134, 16, "Divide by zero error encountered."),
    "22003": (8115, 16, "Arithmetic overflow error converting expression: {message}."),
    "22001": (8152, 16, "String or binary data would be truncated: {message}."),
    "22P02": (245, 16, "Conversion failed: {message}."),
    "22007": (241, 16, "Conversion failed when converting date and/or time from character string: {message}."),
    "22008": (242, 16, "The conversion resulted in an out-of-range value: {message}."),
    "22021": (9402, 16, "The text cannot be stored: {message}."),
    "2201E": (3623, 16, "An invalid floating point operation occurred."),
    "2201F": (3623, 16, "An invalid floating point operation occurred."),
    "42846": (529, 16, "Explicit conversion is not allowed: {message}."),
    "42804": (206, 16, "Operand type clash: {message}."),
    "42883": (206, 16, "Operand type clash: {message}."),
    "42725": (206, 16, "Operand type clash: {message}."),
    "23502": (
        515, 16,
        "Cannot insert the value NULL into column '{column}', table '{table}'; column does not allow nulls.",
    ),
    "23503": (547, 16, 'The statement conflicted with the FOREIGN KEY constraint "{constraint}" of table "{table}".'),
    "23514": (547, 16, 'The statement conflicted with the CHECK constraint "{constraint}" of table "{table}".'),
    "44000": (
        550, 16,
        "The attempted insert or update failed because the target view either specifies WITH CHECK OPTION or spans a "
        "view that specifies WITH CHECK OPTION and one or more rows resulting from the operation did not qualify under "
        "the CHECK OPTION constraint.",
    ),
    "42P01": (208, 16, "Invalid object name '{name}'."),
    "3F000": (208, 16, "Invalid object name: {message}."),
    "42703": (207, 16, "Invalid column name '{name}'."),
    "42P07": (2714, 16, "There is already an object named '{name}' in the database."),
    "42701": (2705, 16, "Column names in each table must be unique: {message}."),
    "42601": (102, 15, "Incorrect syntax: {message}."),
    "42702": (209, 16, "Ambiguous column name '{name}'."),
    "42803": (8120, 16, "{message}."),
    "42704": (3701, 11, "Cannot drop the object, because it does not exist: {message}."),
    "42P06": (2714, 16, "There is already an object named '{name}' in the database."),
    "42501": (229, 14, "The permission was denied: {message}."),
    "40P01": (
        1205, 13,
        "Transaction was deadlocked on lock resources with another process and has been chosen as the deadlock "
        "victim. Rerun the transaction.",
    ),
    "40001": (3960, 16, "The transaction was aborted: {message}."),
    "55P03": (1222, 16, "Lock request time out period exceeded."),
    "57014": (3617, 16, "The statement was cancelled: {message}."),
    "54001": (217, 16, "Maximum function or view nesting level exceeded: {message}."),
    "21000": (
        512, 16,
        "Subquery returned more than 1 value. This is not permitted when the subquery follows =, !=, <, <= , >, >= or "
        "when the subquery is used as an expression.",
    ),
    "2BP01": (3729, 16, "Cannot drop the object because something refers to it: {message}."),
    "25006": (3906, 16, "Failed to update the database because it is read-only: {message}."),
    "42712": (1013, 16, "Objects in the FROM clause have the same exposed names: {message}. Use correlation names."),
    "42809": (3705, 16, "Cannot use the statement with this object: {message}. Use the statement of its kind."),
    "42P19": (252, 16, "A recursive common table expression needs a top-level UNION ALL operator: {message}."),
    "428C9": (544, 16, "Cannot insert explicit value for identity column in table when IDENTITY_INSERT is OFF."),
    "2200H": (
        11728, 16,
        "The sequence object '{name}' has reached its minimum or maximum value. Restart the sequence object to allow "
        "new values to be generated.",
    ),
    "22004": (515, 16, "Cannot insert the value NULL: {message}."),
    "22011": (537, 16, "Invalid length parameter passed to the LEFT or SUBSTRING function."),
    "22014": (4116, 16, "The function 'ntile' takes only a positive int or bigint expression as its input."),
    "22019": (506, 16, "The invalid escape character was specified in a LIKE predicate: {message}."),
    "22023": (8116, 16, "Argument data is invalid for the function: {message}."),
    "22025": (506, 16, "The invalid escape character was specified in a LIKE predicate: {message}."),
    "22026": (8152, 16, "String or binary data would be truncated: {message}."),
    "22P05": (9402, 16, "The text cannot be stored: {message}."),
    "2201W": (127, 15, "A TOP N or FETCH rowcount value may not be negative."),
    "2201X": (10742, 15, "The offset specified in a OFFSET clause may not be negative."),
    "22030": (13610, 16, "JSON text has a duplicate property: {message}."),
    "22032": (13609, 16, "JSON text is not properly formatted: {message}."),
    "22033": (13607, 16, "JSON path is not properly formatted: {message}."),
    "23000": (547, 16, "The statement conflicted with a constraint: {message}."),
    "23P01": (2627, 14, "Violation of the constraint \"{constraint}\": {message}."),
    "24000": (16916, 16, "The cursor cannot be used: {message}."),
    "25001": (226, 16, "The statement is not allowed within a multi-statement transaction: {message}."),
    "26000": (8179, 16, "Could not find the prepared statement: {message}."),
    "34000": (16916, 16, "A cursor with the name '{name}' does not exist."),
    "3B001": (6401, 16, "Cannot roll back {name}. No transaction or savepoint of that name was found."),
    "42710": (2714, 16, "There is already an object named '{name}' in the database."),
    "42723": (2714, 16, "There is already an object named '{name}' in the database."),
    "42P10": (145, 15, "The ORDER BY items are not valid: {message}."),
    "42P13": (443, 16, "The definition of the function is not valid: {message}."),
    "42P18": (8117, 16, "The data type of an operand cannot be determined: {message}."),
    "42P20": (4108, 15, "Windowed functions can only appear in the SELECT or ORDER BY clauses."),
    "42P21": (468, 16, "Cannot resolve the collation conflict: {message}."),
    "42P22": (468, 16, "Cannot resolve the collation conflict: {message}."),
    "42611": (102, 15, "Incorrect syntax: {message}."),
    "42622": (103, 15, "The identifier is too long: {message}."),
    "53100": (1105, 17, "Could not allocate space, because the disk is full: {message}."),
    "53200": (701, 17, "There is insufficient system memory to run this query."),
    "54000": (511, 16, "Cannot create a row or index entry of this size: {message}."),
    "54011": (1702, 16, "The statement has more columns than PostgreSQL allows: {message}."),
    "54023": (180, 15, "The function has too many arguments: {message}."),
    "55000": (4406, 16, "The update or insert failed: {message}."),
    "55006": (3702, 16, "Cannot drop the object because it is currently in use: {message}."),
    "0A000": (40515, 16, "The statement is not supported here: {message}."),
    "P0001": (50000, 16, "{message}"),
}  # fmt: skip
_FOREIGN_KEY_DETAIL = re.compile(r"^constraint .* on table .* depends on table ", re.MULTILINE)
_DUPLICATE_KEY_TEXT = (
    "Violation of {kind} constraint '{constraint}'. Cannot insert duplicate key in object '{table}'. "
    "The duplicate key value is {key}."
)
_UNKNOWN_FUNCTION = re.compile(r"function (?:tsql\.)?(\w+)\((.*)\) (?:does not exist|is not unique)")
_UNKNOWN_USER_FUNCTION = re.compile(r"function \w+\.(\w+)\(.*\) does not exist")
_UNKNOWN_COLUMN = re.compile(
    r'column (?:[^".]+\.)?"?(.+?)"?(?: of relation ".+")? does not exist'
)  # the alias has no quotes
_UNKNOWN_ALIAS = re.compile(r'(?:missing|invalid reference to) FROM-clause entry for table "([^"]+)"')
_UNKNOWN_CONSTRAINT = re.compile(r'constraint "(.+)" of relation "(.+)" does not exist')
_WRONG_OBJECT_KIND = re.compile(r'"([^"]+)" is not a (table|view|sequence)')
# first words of PostgreSQL's messages on sequence clauses
_SEQUENCE_ERRORS = {
    "INCREMENT must not": (11700, "The increment for a sequence object cannot be zero"),
    "START value": (11703, "The start value of a sequence object must be between its minimum and maximum value"),
    "RESTART value": (11704, "The current value of a sequence object must be between its minimum and maximum value"),
    "MINVALUE (": (11705, "The minimum value of a sequence object must be less than its maximum value"),
    "MAXVALUE (": (11708, "An invalid value was specified for the given data type"),
}
_NOT_A_SEQUENCE = re.compile(r'"([^"]+)" is not a sequence|cannot open relation "([^"]+)"')
_YEAR_OUT_OF_RANGE = re.compile(r"too (?:large|small) \((?:after year 10K|before year 1)\)")
_OVERFLOW = re.compile(
    r"((?:smallint|integer|bigint)(?= out of range$)|numeric(?= field overflow)|value(?= out of range: overflow))"
)
_OVERFLOWED_TYPES = {"integer": "int", "value": "float"}
_RAISED_MESSAGE = re.compile(r"Msg (\d{1,9}), Level (\d{1,3}), State (\d{1,3}): (.*)", re.DOTALL)
_QUALIFIED_NAME = r"(?:\[[^\]]+\]|[\w$#]+)(?:\s*\.\s*(?:\[[^\]]+\]|[\w$#]+))*"
_DROP_INDEX = re.compile(
    rf"\s*DROP\s+INDEX\s+(?P<index>{_QUALIFIED_NAME})(?:\s+ON\s+(?P<table>{_QUALIFIED_NAME}))?", re.IGNORECASE
)
_TRUNCATE_TABLE = re.compile(rf"\s*TRUNCATE\s+TABLE\s+({_QUALIFIED_NAME})", re.IGNORECASE)
_DROP_STATEMENTS = (["DROP", "TABLE"], ["DROP", "VIEW"], ["DROP", "SEQUENCE"])
UNMAPPED_ERROR = 50000
_TYPES = {
    "timestamp without time zone": "datetime2", "timestamp with time zone": "datetimeoffset", "integer": "int",
    "time without time zone": "time", "double precision": "float", "text": "nvarchar", "bytea": "varbinary",
}  # fmt: skip


def _tsql_type_names(types: str) -> str:
    """Translate a list of PostgreSQL type names to T-SQL."""
    return ", ".join(_TYPES.get(type_name, type_name) for type_name in types.split(", "))


def from_postgres(problem: psycopg.Error, source: str = "") -> TsqlError:
    """Map an error of PostgreSQL to its T-SQL number. An unmapped SQLSTATE keeps PostgreSQL's message as error 50000.

    `source` is the statement, from which names take their spelling.
    """
    diagnosis = problem.diag
    primary = zero_character.from_postgres(diagnosis.message_primary or str(problem) or type(problem).__name__)
    message = primary.rstrip(".")
    table = diagnosis.table_name or ""
    if problem.sqlstate == "23505":
        detail = re.search(r"\)=(\(.*\))", zero_character.from_postgres(diagnosis.message_detail or ""), re.DOTALL)
        is_primary = (diagnosis.constraint_name or "").endswith("_pkey")
        return TsqlError(
            2627, _DUPLICATE_KEY_TEXT.format(
                kind="PRIMARY KEY" if is_primary else "UNIQUE KEY", constraint=diagnosis.constraint_name,
                table=table, key=detail[1] if detail else "there already",
            ), severity=14,
        )  # fmt: skip
    raised = _RAISED_MESSAGE.match(primary)
    if (
        raised is not None and problem.sqlstate and problem.sqlstate.startswith("S")
    ):  # raised by tsql.refuse or servicebroker.refuse
        error = TsqlError(int(raised[1]), raised[4], severity=int(raised[2]), state=int(raised[3]))
        return follow(error) if error.number == 2714 else error  # of tsql.check_constraint_names
    full_message = f"{message}\n{zero_character.from_postgres(diagnosis.message_detail or '')}"
    for find_error in (find_definition_error, find_query_error):
        refused = find_error(problem.sqlstate or "", full_message, source, find_spelling)
        if refused is not None:
            return refused
    if problem.sqlstate == "22023":
        for begin, (number, text) in _SEQUENCE_ERRORS.items():
            if message.startswith(begin):
                number = 11708 if "out of range" in message else number
                return TsqlError(number, f"{text}: {message}.")
    if problem.sqlstate == "42P17" and "generation expression" in message:
        return unsupported(
            "A computed column whose value depends on more than its row", "Write the expression into a view.", 0
        )
    if problem.sqlstate == "0A000" and message.startswith("cannot truncate"):
        truncated = _TRUNCATE_TABLE.match(source)
        return TsqlError(
            4712, f"Cannot truncate table '{truncated[1] if truncated else ''}' because it is being referenced by a "
            "FOREIGN KEY constraint."
        )  # fmt: skip
    if problem.sqlstate == "2BP01" and _FOREIGN_KEY_DETAIL.search(diagnosis.message_detail or ""):
        table = find_spelling(message.split(" because ")[0].split()[-1].replace('"', ""), source)
        return TsqlError(3726, f"Could not drop object '{table}' because it is referenced by a FOREIGN KEY constraint.")
    if _YEAR_OUT_OF_RANGE.search(message):  # psycopg's: Python has the same range of years as T-SQL
        return TsqlError(
            242, "The conversion of a varchar data type to a datetime data type resulted in an out-of-range value."
        )
    if (
        problem.sqlstate is None and "NUL (0x00)" in primary
    ):  # the driver's: in a name, since `run_statement` encodes strings
        return unsupported("A name with the character U+0000", "Choose another name.", 0)
    if problem.sqlstate not in _BY_SQLSTATE:
        return TsqlError(UNMAPPED_ERROR, f"{message} (PostgreSQL {problem.sqlstate or type(problem).__name__}).")
    number, severity, text = _BY_SQLSTATE[problem.sqlstate]
    overflowed = _OVERFLOW.match(message)
    if overflowed is not None:
        kind = _OVERFLOWED_TYPES.get(overflowed[1], overflowed[1])
        return TsqlError(
            8115, f"Arithmetic overflow error converting expression to data type {kind}.",
            state=8 if kind == "numeric" else 2,
        )  # fmt: skip
    call = _UNKNOWN_FUNCTION.fullmatch(message)
    if call is not None and call[1].startswith("to_"):
        of = call[1].removeprefix("to_")
        return TsqlError(529, f"Explicit conversion from data type {_tsql_type_names(call[2])} to {of} is not allowed.")
    if call is not None:
        return TsqlError(
            8116, f"Argument data type {_tsql_type_names(call[2]) or 'none'} is invalid for the {call[1]} function."
        )
    unknown_function = _UNKNOWN_USER_FUNCTION.fullmatch(message) if problem.sqlstate == "42883" else None
    if unknown_function is not None:
        name = find_spelling(unknown_function[1], source)
        if re.search(rf"(?:\b(?:FROM|JOIN|APPLY)|,)\s*{re.escape(name)}\s*\(", source, re.IGNORECASE):
            return TsqlError(208, f"Invalid object name '{name}'.")
        return unknown_function_error(name)
    if message.startswith("arguments to GROUPING"):
        return TsqlError(8161, "An argument of GROUPING does not match any of the expressions in the GROUP BY clause.")
    if message == "input is out of range":  # ASIN, ACOS and similar functions
        return TsqlError(3623, "An invalid floating point operation occurred.")
    keyword = source.split(None, 2)[:2]
    truncated = _TRUNCATE_TABLE.match(source) if problem.sqlstate in ("42P01", "3F000") else None
    if truncated is not None:
        name = re.sub(r"[\[\]]", "", truncated[1])
        return TsqlError(
            4701, f'Cannot find the object "{name}" because it does not exist or you do not have permissions.'
        )
    if problem.sqlstate in ("42P01", "3F000") and [word.upper() for word in keyword] in _DROP_STATEMENTS:
        name = find_spelling(message.split('"')[1], source)
        return TsqlError(
            3701, f"Cannot drop the {keyword[1].lower()} '{name}', because it does not exist or you do not have "
            "permission.", severity=11, state=5,
        )  # fmt: skip
    no_constraint = _UNKNOWN_CONSTRAINT.fullmatch(message)
    if no_constraint is not None and keyword[:1] and keyword[0].upper() == "ALTER":
        return follow(TsqlError(3728, f"'{find_spelling(no_constraint[1], source)}' is not a constraint."), 3727)
    index = _DROP_INDEX.match(source) if problem.sqlstate in ("42704", "3F000") else None
    if index is not None:
        dropped = index["index"] if index["table"] is None else f"{index['table']}.{index['index']}"
        dropped = re.sub(r"[\[\]]", "", dropped)
        return TsqlError(
            3701, f"Cannot drop the index '{dropped}', because it does not exist or you do not have permission.",
            severity=11, state=7,
        )  # fmt: skip
    wrong_kind = _WRONG_OBJECT_KIND.fullmatch(message)
    no_sequence = _NOT_A_SEQUENCE.search(message)
    if no_sequence is not None and problem.sqlstate == "42809" and keyword[:1] and keyword[0].upper() != "DROP":
        name = find_spelling(no_sequence[1] or no_sequence[2], source)
        return TsqlError(11726, f"Object '{name}' is not a sequence object.")
    if wrong_kind is not None and keyword[:1] and keyword[0].upper() == "DROP":
        kind, name = keyword[1].upper(), find_spelling(wrong_kind[1], source)
        return TsqlError(3705, f"Cannot use DROP {kind} with '{name}' because '{name}' is not a {wrong_kind[2]}.")
    if problem.sqlstate == "42809" and source.lstrip().upper().startswith("TRUNCATE"):
        return from_broker(BrokerError(4708, message.split('"')[1]))
    unknown = _UNKNOWN_COLUMN.fullmatch(message) if problem.sqlstate == "42703" else None
    if unknown is not None and unknown[1].endswith("ctid"):  # the address of a row, which rows of a view do not have
        return unsupported("UPDATE or DELETE of a view with FROM or TOP", "Change the table under it.", 0)
    if unknown is not None:
        return TsqlError(207, f"Invalid column name '{find_spelling(unknown[1], source).rpartition('.')[2]}'.")
    unbound = _UNKNOWN_ALIAS.match(message)
    if unbound is not None:
        identifier = re.search(
            rf"(?<![\w.\]])\[?{re.escape(unbound[1])}\]?\s*\.\s*(?:\[[^\]]+\]|\w+)", source, re.IGNORECASE
        )
        name = re.sub(r"[\[\]\s]", "", identifier[0]) if identifier else unbound[1]
        return TsqlError(4104, f'The multi-part identifier "{name}" could not be bound.')
    quoted = re.search(r'"([^"]*)"', message)
    name = find_spelling(quoted[1], source) if quoted else message
    if quoted and number == 2714:  # without its schema
        name = name[-len(quoted[1].rsplit(".", 1)[-1]) :]
    filled = text.format(
        message=message, table=table, column=diagnosis.column_name or "", constraint=diagnosis.constraint_name or "",
        name=name,
    )  # fmt: skip
    return TsqlError(number, filled, severity=severity)


def find_spelling(name: str, source: str) -> str:
    """Return the spelling that a statement uses for a PostgreSQL name: dbo.Orders for `shop_dbo.orders`."""
    table = name.rsplit(".", 1)[-1]
    match = re.search(rf"(?<!\w)(?:[\w\[\]#]+\.)*\[?{re.escape(table)}(?!\w)", source, re.IGNORECASE)
    return re.sub(r"[\[\]]", "", match[0]) if match else table


_GUID = re.compile(r"\b[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")


def from_broker(refused: BrokerError) -> TsqlError:
    """Convert a broker error, which already has its T-SQL number."""
    if isinstance(refused, TsqlError):
        return refused
    if refused.number == 911:  # the hint mentions the Python API
        return TsqlError(
            911, f"{refused.text} Make sure that the name is entered correctly.", severity=refused.severity
        )
    text = f"{refused.text} {refused.hint}" if refused.hint else refused.text
    text = _GUID.sub(lambda match: match[0].upper(), text)  # SQL Server's spelling of a GUID
    return TsqlError(refused.number, text, severity=refused.severity, state=refused.state)
