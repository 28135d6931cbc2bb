"""Drivers of SQL Server behind one face, for tests: each runs statements and returns values as texts.

A driver that is not installed raises `NotInstalled`. Values are texts, so that one table of cases serves all languages.
"""

from __future__ import annotations

import base64
import importlib
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from datetime import date, datetime, time
from decimal import Decimal
from pathlib import Path
from typing import Any, NamedTuple, Protocol
from uuid import UUID

PROGRAMS = Path(__file__).parent / "integration" / "tds" / "clients"
_JTDS_PLACES = (*os.environ.get("CLASSPATH", "").split(":"), "/usr/share/java/jtds.jar")
_START_TIMEOUT_S = 60.0

Row = tuple[str, ...]


class NotInstalled(Exception):
    """The driver, or its program, is missing. The message names it."""


class ClientError(Exception):
    """An error that the driver reports. `number` is 0 if the driver does not tell."""

    def __init__(self, number: int, text: str) -> None:
        super().__init__(f"{number}: {text}")
        self.number, self.text = number, text


class Parameter(NamedTuple):
    """A value for `@p1` and so on: its kind, and its text as in a result."""

    kind: str
    text: str

    @property
    def value(self) -> Any:
        """The value for a driver of Python."""
        match self.kind:
            case "int":
                return int(self.text)
            case "decimal":
                return Decimal(self.text)
            case "datetime":
                return datetime.fromisoformat(self.text)
            case "varbinary":
                return bytes.fromhex(self.text)
            case "null":
                return None
            case "uniqueidentifier":
                return UUID(self.text)
            case _:
                return self.text


class Server(NamedTuple):
    """The server to connect to, with a login."""

    port: int
    database: str
    user: str
    password: str


class Client(Protocol):
    """One connection of a driver."""

    def open(self, server: Server, timeout_s: int) -> None:
        """Connect. Statements get the timeout."""

    def query(self, sql: str, *parameters: Parameter) -> list[Row]:
        """Run a statement, and return the rows of its result sets."""

    def begin(self) -> None:
        """Begin a transaction as the driver does."""

    def commit(self) -> None:
        """Commit it."""

    def rollback(self) -> None:
        """Roll it back."""

    def close(self) -> None:
        """Close the connection."""


def text_of(value: Any) -> str:
    """Return a value of Python as the cases write it."""
    match value:
        case None:
            return "NULL"
        case bool():
            return str(int(value))
        case bytes() | bytearray() | memoryview():
            return bytes(value).hex()
        case Decimal():
            return f"{value.normalize():f}"
        case datetime():
            return f"{value.replace(tzinfo=None):%Y-%m-%d %H:%M:%S}"
        case date() | time():
            return value.isoformat()
        case _:
            return str(value).lower() if isinstance(value, UUID) else str(value)


def _module(name: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as problem:
        raise NotInstalled(f"{name} is not installed ({problem})") from None


# ---------------------------------------------------------------- Python


class PythonClient:
    """A driver of Python's DB-API. Subclasses connect, and read errors."""

    placeholder = "%s"

    def __init__(self) -> None:
        self.connection: Any = None

    def connect(self, server: Server, timeout_s: int) -> Any:
        """Return a connection with autocommit."""
        raise NotImplementedError

    def value_of(self, parameter: Parameter) -> Any:
        """Return the value that the driver takes for a parameter."""
        return parameter.value

    def error_of(self, problem: Exception) -> ClientError:
        """Return the number and text of a driver's exception."""
        match = re.search(r"\((\d+)\) \(SQL", str(problem))
        return ClientError(int(match[1]) if match else 0, str(problem))

    def _guarded(self, work: Callable[[], Any]) -> Any:
        try:
            return work()
        except NotInstalled:
            raise
        except Exception as problem:
            raise self.error_of(problem) from problem

    def open(self, server: Server, timeout_s: int) -> None:
        self.connection = self._guarded(lambda: self.connect(server, timeout_s))

    def query(self, sql: str, *parameters: Parameter) -> list[Row]:
        return list(self._guarded(lambda: self._query(sql, parameters)))

    def _query(self, sql: str, parameters: tuple[Parameter, ...]) -> list[Row]:
        cursor = self.connection.cursor()
        values = tuple(map(self.value_of, parameters))
        if parameters:
            cursor.execute(re.sub(r"@p\d+", self.placeholder, sql), values)
        else:
            cursor.execute(sql)
        rows: list[Row] = []
        while True:
            if cursor.description:
                rows += [tuple(map(text_of, row)) for row in cursor.fetchall()]
            if not cursor.nextset():
                cursor.close()
                return rows

    def set_autocommit(self, *, is_on: bool) -> None:
        """Turn autocommit on or off."""
        self.connection.autocommit = is_on

    def begin(self) -> None:
        self.set_autocommit(is_on=False)

    def commit(self) -> None:
        self.connection.commit()
        self.set_autocommit(is_on=True)

    def rollback(self) -> None:
        self.connection.rollback()
        self.set_autocommit(is_on=True)

    def close(self) -> None:
        self.connection.close()


class PythonTds(PythonClient):
    """python-tds. It takes bytes for a text, unless they are marked as binary."""

    def value_of(self, parameter: Parameter) -> Any:
        value = parameter.value
        return _module("pytds").Binary(value) if isinstance(value, bytes) else value

    def connect(self, server: Server, timeout_s: int) -> Any:
        pytds = _module("pytds")
        port, database, user, password = server
        return pytds.connect(
            "127.0.0.1", database, user, password, port=port, autocommit=True, timeout=timeout_s, login_timeout=60
        )

    def error_of(self, problem: Exception) -> ClientError:
        return ClientError(getattr(problem, "msg_no", 0) or 0, str(problem))


class Pymssql(PythonClient):
    """pymssql, over FreeTDS's db-lib."""

    def connect(self, server: Server, timeout_s: int) -> Any:
        port, database, user, password = server
        return _module("pymssql").connect(
            server="127.0.0.1", port=str(port), user=user, password=password, database=database, autocommit=True,
            timeout=timeout_s, login_timeout=60,
        )  # fmt: skip

    def error_of(self, problem: Exception) -> ClientError:
        number = problem.args[0] if problem.args else 0
        if isinstance(number, tuple):
            number = number[0]
        return ClientError(number if isinstance(number, int) else 0, str(problem))

    def set_autocommit(self, *, is_on: bool) -> None:
        self.connection.autocommit(is_on)


class MssqlPython(PythonClient):
    """mssql-python, over Microsoft's ODBC driver."""

    placeholder = "?"

    def connect(self, server: Server, timeout_s: int) -> Any:
        port, database, user, password = server
        connection = _module("mssql_python").connect(
            f"Server=127.0.0.1,{port};Database={database};UID={user};PWD={password};"
            "Encrypt=yes;TrustServerCertificate=yes",
            autocommit=True,
        )
        connection.timeout = timeout_s
        return connection


class FreeTdsOdbc(PythonClient):
    """pyodbc, over FreeTDS's ODBC driver."""

    placeholder = "?"
    max_parameter_characters = 4_000  # FreeTDS cuts longer ones itself, before it sends them

    def connect(self, server: Server, timeout_s: int) -> Any:
        pyodbc = _module("pyodbc")
        if "FreeTDS" not in pyodbc.drivers():
            raise NotInstalled("FreeTDS's ODBC driver (tdsodbc) is not installed")
        port, database, user, password = server
        connection = pyodbc.connect(
            f"DRIVER=FreeTDS;SERVER=127.0.0.1;PORT={port};DATABASE={database};UID={user};PWD={password};"
            "TDS_Version=7.4;ClientCharset=UTF-8",
            autocommit=True,
        )
        connection.timeout = timeout_s
        return connection


class SqlAlchemy(Pymssql):
    """SQLAlchemy Core, over pymssql."""

    def connect(self, server: Server, timeout_s: int) -> Any:
        sqlalchemy = _module("sqlalchemy")
        _module("pymssql")
        port, database, user, password = server
        self._engine = sqlalchemy.create_engine(
            sqlalchemy.engine.URL.create("mssql+pymssql", user, password, "127.0.0.1", port, database),
            connect_args={"timeout": timeout_s, "login_timeout": 60},
        )
        self._text = sqlalchemy.text
        self._transaction: Any = None
        return self._engine.connect().execution_options(isolation_level="AUTOCOMMIT")

    def error_of(self, problem: Exception) -> ClientError:
        return super().error_of(getattr(problem, "orig", None) or problem)

    def _query(self, sql: str, parameters: tuple[Parameter, ...]) -> list[Row]:
        text = self._text(re.sub(r"@(p\d+)", r":\1", sql.replace(":", r"\:")))
        values = {f"p{index}": parameter.value for index, parameter in enumerate(parameters, 1)}
        result = (self._transaction or self.connection).execute(text, values)
        return [tuple(map(text_of, row)) for row in result.fetchall()] if result.returns_rows else []

    def begin(self) -> None:
        self._transaction = self._engine.connect()

    def commit(self) -> None:
        self._transaction.commit()
        self._end()

    def rollback(self) -> None:
        self._transaction.rollback()
        self._end()

    def _end(self) -> None:
        self._transaction.close()
        self._transaction = None

    def close(self) -> None:
        self.connection.close()
        self._engine.dispose()


# ---------------------------------------------------------------- other languages


def _encoded(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


def _decoded(text: str) -> str:
    return base64.b64decode(text).decode()


class ProgramClient:
    """A driver of another language, in a program of the folder `clients` that runs commands from its input.

    Commands are `open SECONDS`, `query SQL KIND:VALUE...`, `begin`, `commit`, `rollback` and `close`; texts are in
    base64. The answer to each is a line: `rows CELL,CELL;...` or `error NUMBER TEXT`.
    """

    def __init__(self) -> None:
        self._process: subprocess.Popen[str] | None = None

    def command(self) -> list[str]:
        """Return the command that starts the program, without its arguments.

        Raises:
            NotInstalled: something is missing.
        """
        raise NotImplementedError

    def open(self, server: Server, timeout_s: int) -> None:
        arguments = [str(server.port), server.database, server.user, server.password]
        self._process = subprocess.Popen(
            [*self.command(), *arguments], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, encoding="utf-8"
        )
        self._ask(f"open {timeout_s}")

    def query(self, sql: str, *parameters: Parameter) -> list[Row]:
        words = [f"{parameter.kind}:{_encoded(parameter.text)}" for parameter in parameters]
        return self._ask(" ".join(["query", _encoded(sql), *words]))

    def _ask(self, line: str) -> list[Row]:
        process = self._process
        assert process is not None
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(line + "\n")
        process.stdin.flush()
        answer = process.stdout.readline().rstrip("\n")
        kind, _, rest = answer.partition(" ")
        if kind == "rows":
            return [tuple(map(_decoded, row.split(","))) for row in rest.split(";")] if rest else []
        number, _, text = rest.partition(" ")
        raise ClientError(int(number or 0), _decoded(text) if text else "The program has ended.")

    def begin(self) -> None:
        self._ask("begin")

    def commit(self) -> None:
        self._ask("commit")

    def rollback(self) -> None:
        self._ask("rollback")

    def close(self) -> None:
        process, self._process = self._process, None
        if process is None:
            return
        try:
            process.communicate("close\n", timeout=20)
        finally:
            process.kill()
            process.wait()


class Node(ProgramClient):
    """A package of Node.js."""

    package = "tedious"

    def command(self) -> list[str]:
        node = shutil.which("node")
        if node is None:
            raise NotInstalled("Node.js is not installed")
        if subprocess.run(
            [node, "-e", f"require.resolve('{self.package}')"], capture_output=True, check=False
        ).returncode:
            raise NotInstalled(f"{self.package} of Node.js is not installed")
        return [node, str(PROGRAMS / "client.js"), self.package]


class NodePool(Node):
    """mssql: a pool of tedious."""

    package = "mssql"


class Jtds(ProgramClient):
    """jTDS, which speaks TDS 7.1."""

    def command(self) -> list[str]:
        java = shutil.which("java")
        jar = next((place for place in _JTDS_PLACES if "jtds" in place and Path(place).exists()), None)
        if java is None or jar is None:
            raise NotInstalled("Java or jTDS (libjtds-java) is not installed")
        return [java, "-XX:TieredStopAtLevel=1", "-cp", jar, str(PROGRAMS / "JtdsClient.java")]


_TSQL_TEXTS = {  # of values that tsql prints in its own form
    "2.5000": "2.5",
    "Jan  2 2026 03:04AM": "2026-01-02 03:04:05",
    "Jan  2 2026 12:00AM": "2026-01-02",
    "Jan  1 1900 12:30PM": "12:30:01",
}


class Tsql:
    """FreeTDS's tsql: a program for batches, without parameters. A failed statement is an error of its output."""

    def open(self, server: Server, timeout_s: int) -> None:
        program = shutil.which("tsql")
        if program is None:
            raise NotInstalled("FreeTDS's tsql (freetds-bin) is not installed")
        port, database, user, password = server
        self._command = [
            program, "-H", "127.0.0.1", "-p", str(port), "-U", user, "-P", password, "-D", database,
            "-o", "qfh", "-t", "\x1f",
        ]  # fmt: skip
        self._batches: list[str] | None = None
        self.query("SELECT 1")

    def query(self, sql: str, *parameters: Parameter) -> list[Row]:
        for place, parameter in reversed(list(enumerate(parameters, 1))):
            sql = sql.replace(f"@p{place}", _literal(parameter))
        if self._batches is not None:
            self._batches.append(sql)
            return []
        return self._run([sql])

    def _run(self, batches: list[str]) -> list[Row]:
        script = "".join(f"{batch}\ngo\n" for batch in batches)
        result = subprocess.run(
            self._command, input=script, capture_output=True, encoding="utf-8", check=False, timeout=60,
            env={**os.environ, "LC_ALL": "C.UTF-8"},
        )  # fmt: skip
        lines = [line for line in result.stdout.splitlines() if line]
        if match := re.search(r"Msg (\d+) \(severity (1[1-9]|2\d)", result.stdout + result.stderr):
            raise ClientError(int(match[1]), result.stdout + result.stderr)
        if result.returncode:
            raise ClientError(0, result.stdout + result.stderr)
        return [tuple(_TSQL_TEXTS.get(cell, cell) for cell in line.split("\x1f")) for line in lines]

    def begin(self) -> None:
        self._batches = ["BEGIN TRANSACTION"]

    def commit(self) -> None:
        self._end("COMMIT")

    def rollback(self) -> None:
        self._end("ROLLBACK")

    def _end(self, statement: str) -> None:
        batches, self._batches = [*(self._batches or []), statement], None
        self._run(batches)

    def close(self) -> None:
        pass


def _literal(parameter: Parameter) -> str:
    match parameter.kind:
        case "int" | "decimal":
            return parameter.text
        case "varbinary":
            return "0x" + parameter.text
        case "null":
            return "NULL"
        case "datetime":
            return f"CAST('{parameter.text}' AS datetime)"
        case _:
            return "N'" + parameter.text.replace("'", "''") + "'"


CLIENTS: dict[str, Callable[[], Client]] = {
    "python-tds": PythonTds,
    "pymssql": Pymssql,
    "mssql-python (ODBC Driver 18)": MssqlPython,
    "pyodbc with FreeTDS": FreeTdsOdbc,
    "SQLAlchemy Core": SqlAlchemy,
    "tedious": Node,
    "mssql (Node.js)": NodePool,
    "jTDS": Jtds,
    "tsql of FreeTDS": Tsql,
}
