"""sp_xml_preparedocument and sp_xml_removedocument: documents of the session, by number, for OPENXML."""

from __future__ import annotations

from typing import TYPE_CHECKING

import psycopg

from servicebroker.tsql.conversion import convert
from servicebroker.tsql.interpreter.calls import bind_arguments, system_procedure
from servicebroker.tsql.postgres_errors import from_postgres
from servicebroker.tsql.statement_errors import TsqlError, unsupported
from servicebroker.tsql.syntax import Execute, Variable
from servicebroker.tsql.types import INT, NATIONAL, NVARCHAR

if TYPE_CHECKING:
    from servicebroker.tsql.interpreter.machine import Machine

_EMPTY = "<root/>"  # the document of NULL
_HANDLE_STEP = 2  # the difference between two handles, as in SQL Server
_PARAMETERS = ("@hdoc", "@xmltext", "@xpath_namespaces")


@system_procedure("sp_xml_preparedocument")
def _prepare_document(machine: Machine, statement: Execute) -> None:
    """Keep a document, and assign its handle to the first argument.

    Raises:
        TsqlError: 179 the first argument is not a variable, 6602 the document is not well formed, 40515 namespaces.
    """
    arguments = bind_arguments(machine, statement, _PARAMETERS, required=1)
    target = next(argument for argument in statement.arguments if argument.name in ("", "@hdoc")).value
    if not isinstance(target, Variable):
        raise TsqlError(179, "Cannot use the OUTPUT option when passing a constant to a stored procedure.")
    if "@xpath_namespaces" in arguments:
        raise unsupported(
            "sp_xml_preparedocument with namespaces", "Use nodes() of xml WITH XMLNAMESPACES.", statement.line
        )
    text, handle = _EMPTY, 1 + _HANDLE_STEP * machine.xml_document_count
    document = arguments.get("@xmltext")
    if document is not None and document.value is not None:
        text = str(convert(document.value, document.type, NVARCHAR))
        if document.type is None or document.type.name != "xml":
            _check_document(machine, text, is_national=document.type is None or document.type.name in NATIONAL)
    machine.xml_documents[handle] = text
    machine.xml_document_count += 1
    machine.frame.assign(target.name, handle, INT)


def _check_document(machine: Machine, text: str, *, is_national: bool) -> None:
    literal = ("N'" if is_national else "'") + text.replace("'", "''") + "'"
    try:
        machine.queries.evaluate_scalar(f"CAST({literal} AS xml)")
    except psycopg.Error as error:
        raise TsqlError(6602, f"The error description is '{from_postgres(error).text}'.", state=2) from None


@system_procedure("sp_xml_removedocument")
def _remove_document(machine: Machine, statement: Execute) -> None:
    """Forget a document.

    Raises:
        TsqlError: 6607 the handle is unknown.
    """
    handle = bind_arguments(machine, statement, ("@hdoc",), required=1)["@hdoc"].value
    if not isinstance(handle, int) or machine.xml_documents.pop(handle, None) is None:
        raise TsqlError(6607, "sp_xml_removedocument: The value supplied for parameter number 1 is invalid.", state=2)
