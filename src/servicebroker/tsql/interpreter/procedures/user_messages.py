"""sp_addmessage, sp_altermessage and sp_dropmessage: texts of errors by number, for RAISERROR and FORMATMESSAGE."""

from __future__ import annotations

from typing import NamedTuple

from servicebroker.model.zero_character import from_postgres, to_postgres
from servicebroker.store.running import execute, fetch
from servicebroker.tsql.conversion import convert
from servicebroker.tsql.date_texts import settings_of_language
from servicebroker.tsql.interpreter.calls import bind_arguments, system_procedure
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.interpreter.simple_expressions import Value
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.syntax import Execute
from servicebroker.tsql.types import INT, NVARCHAR

_FIRST_USER_NUMBER = 50_001
_MAX_TEXT_CHARS = 255
_MAX_SEVERITY = 25
_ENGLISH_ID = 1033  # us_english, in which sessions read messages
_LANGUAGE_IDS = {  # msglangid of sys.syslanguages
    "Deutsch": 1031, "Français": 1036, "日本語": 1041, "Dansk": 1030, "Español": 3082, "Italiano": 1040,
    "Nederlands": 1043, "Norsk": 2068, "Português": 2070, "Suomi": 1035, "Svenska": 1053, "čeština": 1029,
    "magyar": 1038, "polski": 1045, "română": 1048, "hrvatski": 1050, "slovenčina": 1051, "slovenski": 1060,
    "ελληνικά": 1032, "български": 1026, "русский": 1049, "Türkçe": 1055, "Português (Brasil)": 1046,
    "繁體中文": 1028, "한국어": 1042, "简体中文": 2052, "eesti": 1061, "latviešu": 1062, "lietuvių": 1063,
    "Arabic": 1025, "ไทย": 1054,
}  # fmt: skip


class UserMessage(NamedTuple):
    """A message that sp_addmessage has stored, in English."""

    severity: int
    is_event_logged: bool
    text: str


def find_message(machine: Machine, number: int) -> UserMessage | None:
    """Return the message of a number, or None."""
    rows = fetch(
        machine.connection,
        "user_messages.find_message",
        "select severity, is_event_logged, text from servicebroker.tsql_messages "
        "where message_id = $1 and language_id = $2",
        (number, _ENGLISH_ID),
    )
    return UserMessage(rows[0][0], rows[0][1], from_postgres(rows[0][2])) if rows else None


def _text_of(value: Value | None) -> str | None:
    return None if value is None or value.value is None else str(convert(value.value, value.type, NVARCHAR))


def _number_of(value: Value) -> int:
    return 0 if value.value is None else int(convert(value.value, value.type, INT))


def _find_language(name: str | None) -> int:
    """Return the number of a language, that of us_english for None.

    Raises:
        TsqlError: 15033 the name is that of no language.
    """
    if name is None:
        return _ENGLISH_ID
    language = settings_of_language(name)
    if language is None:
        raise TsqlError(15033, f"'{name}' is not a valid official language name.")
    return _LANGUAGE_IDS.get(language.language, _ENGLISH_ID)


@system_procedure("sp_addmessage")
def _add_message(machine: Machine, statement: Execute) -> None:
    """Store a message.

    Raises:
        TsqlError: 15033 unknown language, 15040 the number is too low, 15041 the severity is out of bounds, 15043 the
            number is taken, 15279 the English text is missing.
    """
    names = ("@msgnum", "@severity", "@msgtext", "@lang", "@with_log", "@replace")
    arguments = bind_arguments(machine, statement, names, required=3)
    machine.context.require("CHANGE MESSAGES")
    number, severity = _number_of(arguments["@msgnum"]), _number_of(arguments["@severity"])
    if number < _FIRST_USER_NUMBER:
        raise TsqlError(15040, "User-defined error messages must have an ID greater than 50000.")
    if not 1 <= severity <= _MAX_SEVERITY:
        raise TsqlError(15041, "User-defined error messages must have a severity level between 1 and 25.")
    language = _text_of(arguments.get("@lang"))
    language_id = _find_language(language)
    if language_id != _ENGLISH_ID and find_message(machine, number) is None:
        raise TsqlError(
            15279, f"You must add the us_english version of this message before you can add the '{language}' version."
        )
    replace = (_text_of(arguments.get("@replace")) or "").lower() == "replace"
    is_logged = (_text_of(arguments.get("@with_log")) or "false").lower() == "true"
    text = to_postgres((_text_of(arguments["@msgtext"]) or "")[:_MAX_TEXT_CHARS])
    action = "update set severity = $3, is_event_logged = $4, text = $5" if replace else "nothing"
    added = execute(
        machine.connection,
        "user_messages.add_message",
        "insert into servicebroker.tsql_messages (message_id, language_id, severity, is_event_logged, text) "
        f"values ($1, $2, $3, $4, $5) on conflict (message_id, language_id) do {action} returning 1",
        number, language_id, severity, is_logged, text,
    )  # fmt: skip
    if not added:
        raise TsqlError(15043, "You must specify 'REPLACE' to overwrite an existing message.")


@system_procedure("sp_altermessage")
def _alter_message(machine: Machine, statement: Execute) -> None:
    """Switch the writing of a message to the log.

    Raises:
        TsqlError: 15178 the number is too low, 15179 the message does not exist.
    """
    arguments = bind_arguments(machine, statement, ("@message_id", "@parameter", "@parameter_value"), required=3)
    machine.context.require("CHANGE MESSAGES")
    number = _check_number(_number_of(arguments["@message_id"]))
    is_logged = (_text_of(arguments["@parameter_value"]) or "").lower() == "true"
    changed = execute(
        machine.connection,
        "user_messages.alter_message",
        "update servicebroker.tsql_messages set is_event_logged = $2 where message_id = $1 returning 1",
        number,
        is_logged,
    )
    if not changed:
        raise _missing(number)


@system_procedure("sp_dropmessage")
def _drop_message(machine: Machine, statement: Execute) -> None:
    """Delete a message: that of one language, or with 'all' that of every language.

    Raises:
        TsqlError: 15178 the number is too low, 15179 the message does not exist.
    """
    arguments = bind_arguments(machine, statement, ("@msgnum", "@lang"), required=1)
    machine.context.require("CHANGE MESSAGES")
    number, language = _check_number(_number_of(arguments["@msgnum"])), _text_of(arguments.get("@lang"))
    language_id = None if (language or "").lower() == "all" else _find_language(language)
    dropped = execute(
        machine.connection,
        "user_messages.drop_message",
        "delete from servicebroker.tsql_messages where message_id = $1 and language_id = coalesce($2, language_id) "
        "returning 1",
        number,
        language_id,
    )
    if not dropped:
        raise _missing(number)


def _check_number(number: int) -> int:
    if number < _FIRST_USER_NUMBER:
        raise TsqlError(15178, "Cannot drop or alter a message with an ID less than 50,000.")
    return number


def _missing(number: int) -> TsqlError:
    return TsqlError(15179, f"The message number {number} or specified language version does not exist.")
