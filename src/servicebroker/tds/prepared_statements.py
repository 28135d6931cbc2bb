"""Prepared statements of a client: sp_prepare, sp_execute, sp_prepexec and sp_unprepare as calls of sp_executesql."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from typing import NamedTuple

from servicebroker.tds.requests import RpcCall, RpcParameter
from servicebroker.tsql.statement_errors import TsqlError
from servicebroker.tsql.types import NVARCHAR, SqlType

_MAX_STATEMENTS = 10_000  # the most prepared statements of a client
_MAX_CHARACTERS = 16 * 1024 * 1024  # the most characters of their texts together


class PlannedArgument(NamedTuple):
    """An argument of the procedure to call.

    Attributes:
        name, type, value, is_output, is_default: as of `RpcParameter`.
        position: the index of the client's parameter that gets its value; -1 for none.
    """

    name: str
    type: SqlType
    value: object
    is_output: bool = False
    is_default: bool = False
    position: int = -1


class Plan(NamedTuple):
    """The plan of a call.

    Attributes:
        procedure: the procedure to call, "" for none.
        arguments: its arguments.
        values: values of the client's OUTPUT parameters that are known already, by their index.
    """

    procedure: str
    arguments: tuple[PlannedArgument, ...] = ()
    values: Mapping[int, object] = {}


class _Prepared(NamedTuple):
    """A prepared statement: its parameters as in sp_executesql, and its text."""

    parameters: str
    statement: str

    @property
    def characters(self) -> int:
        return len(self.parameters) + len(self.statement)


class PreparedStatements:
    """The prepared statements of one client, by their handles."""

    def __init__(self) -> None:
        self._statements: dict[int, _Prepared] = {}
        self._handles = itertools.count(1)
        self._characters = 0

    def clear(self) -> None:
        """Forget all statements."""
        self._statements.clear()
        self._characters = 0

    def plan(self, name: str, call: RpcCall) -> Plan:
        """Return the plan of a call. `name` is the procedure's name in lower case, without its schema.

        Raises:
            TsqlError: 8179 no statement has that handle, 201 a parameter is missing, 701 there are too many statements.
        """
        parameters = call.parameters
        match name:
            case "sp_prepare":
                return Plan("", values={0: self._prepare(name, parameters)})
            case "sp_prepexec":
                handle = self._prepare(name, parameters)
                return self._execute(handle, parameters, 3)._replace(values={0: handle})
            case "sp_execute":
                return self._execute(_number(name, parameters), parameters, 1)
            case "sp_unprepare":
                prepared = self._statements.pop(_number(name, parameters), None)
                self._characters -= prepared.characters if prepared else 0
                return Plan("")
            case _:
                return Plan(call.procedure, _arguments(parameters, 0))

    def _prepare(self, name: str, parameters: tuple[RpcParameter, ...]) -> int:
        if len(parameters) < 3:
            raise _missing(name)
        prepared = _Prepared(str(parameters[1].value or ""), str(parameters[2].value or ""))
        self._characters += prepared.characters
        if len(self._statements) >= _MAX_STATEMENTS or self._characters > _MAX_CHARACTERS:
            self._characters -= prepared.characters
            raise TsqlError(701, f"The session has more than {_MAX_STATEMENTS} prepared statements, or too long ones.")
        handle = next(self._handles)
        self._statements[handle] = prepared
        return handle

    def _execute(self, handle: int, parameters: tuple[RpcParameter, ...], first: int) -> Plan:
        prepared = self._statements.get(handle)
        if prepared is None:
            raise TsqlError(8179, f"Could not find prepared statement with handle {handle}.", state=4)
        head = [PlannedArgument("", NVARCHAR, prepared.statement)]
        if prepared.parameters:
            head.append(PlannedArgument("", NVARCHAR, prepared.parameters))
        return Plan("sp_executesql", (*head, *_arguments(parameters, first)))


def _arguments(parameters: tuple[RpcParameter, ...], first: int) -> tuple[PlannedArgument, ...]:
    return tuple(
        PlannedArgument(one.name, one.type, one.value, one.is_output, one.is_default, position)
        for position, one in enumerate(parameters)
        if position >= first
    )


def _number(name: str, parameters: tuple[RpcParameter, ...]) -> int:
    value = parameters[0].value if parameters else None
    if not isinstance(value, int):
        raise _missing(name)
    return value


def _missing(name: str) -> TsqlError:
    return TsqlError(201, f"Procedure or function '{name}' expects more parameters, which were not supplied.")
