"""Master keys, certificates and remote service bindings, each as the method of the API that does it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from servicebroker.tsql.interpreter.definitions import transport
from servicebroker.tsql.interpreter.definitions.objects import defines, drop, refuses
from servicebroker.tsql.interpreter.evaluation import text
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.statement_errors import syntax_error, unsupported
from servicebroker.tsql.syntax import Constant, Definition


@defines("CREATE", "MASTER KEY")
def _create_master_key(machine: Machine, statement: Definition) -> None:
    machine.database.create_master_key(statement.clauses["password"])


@refuses("CREATE", "MASTER KEY")
def _only_with_a_password(statement: Definition) -> None:
    if "password" not in statement.clauses:
        raise unsupported("A master key without a password", "Write ENCRYPTION BY PASSWORD = '...'.", statement.line)


@defines("ALTER", "MASTER KEY")
def _alter_master_key(machine: Machine, statement: Definition) -> None:
    clauses, database = statement.clauses, machine.database
    action = clauses["action"]
    if action.endswith("REGENERATE"):
        database.regenerate_master_key(clauses["password"], force=action != "REGENERATE")
    elif "service_master_key" in clauses:
        database.alter_master_key(service_master_key=action == "ADD")
    elif action == "ADD":
        database.add_master_key_password(clauses["password"])
    else:
        database.drop_master_key_password(clauses["password"])


@defines("OPEN", "MASTER KEY")
def _open_master_key(machine: Machine, statement: Definition) -> None:
    machine.database.open_master_key(statement.clauses["password"])


@defines("CLOSE", "MASTER KEY")
def _close_master_key(machine: Machine, statement: Definition) -> None:
    machine.database.close_master_key()


@defines("DROP", "MASTER KEY")
def _drop_master_key(machine: Machine, statement: Definition) -> None:
    machine.database.drop_master_key()


@refuses("BACKUP", "MASTER KEY")
def _backed_up_anyhow(statement: Definition) -> None:
    raise unsupported("BACKUP MASTER KEY", "It is in PostgreSQL's backup, encrypted by its password.", statement.line)


# ---------------------------------------------------------------- certificates


@refuses("CREATE", "CERTIFICATE")
@refuses("ALTER", "CERTIFICATE")
@refuses("BACKUP", "CERTIFICATE")
def _only_files(statement: Definition) -> None:
    encoded = statement.clauses.get("binary", Constant(b"")).value
    if not isinstance(encoded, bytes):
        raise syntax_error(str(encoded)[:30], statement.line)
    if "binary" in statement.clauses.get("private_key", {}):
        raise unsupported("A private key in BINARY", "Use FILE.", statement.line)


@defines("CREATE", "CERTIFICATE")
def _create_certificate(machine: Machine, statement: Definition) -> None:
    if "binary" not in statement.clauses:
        _create(machine, statement)
        return
    encoded = statement.clauses["binary"].value
    with TemporaryDirectory() as folder:  # the API reads files
        file = Path(folder) / "certificate"
        file.write_bytes(encoded)
        clauses = {name: value for name, value in statement.clauses.items() if name != "binary"}
        _create(machine, replace(statement, clauses=clauses | {"file": str(file)}))


def _create(machine: Machine, statement: Definition) -> None:
    clauses = statement.clauses
    if transport.is_of_the_transport(machine):
        transport.create_certificate(machine, statement, _private_key(statement))
        return
    given: dict[str, Any] = {
        name: clauses[name]
        for name in ("authorization", "subject", "file", "active_for_begin_dialog")
        if name in clauses
    }
    if "password" in clauses:
        given["encryption_password"] = clauses["password"]
    dates = transport.dates(machine, clauses)
    machine.database.create_certificate(statement.name.own, **given, **dates, **_private_key(statement))


def _private_key(statement: Definition) -> dict[str, Any]:
    said = statement.clauses.get("private_key", {})
    names = {"file": "private_key_file"}
    return {names.get(name, name): value for name, value in said.items()}


@defines("ALTER", "CERTIFICATE")
def _alter_certificate(machine: Machine, statement: Definition) -> None:
    clauses = statement.clauses
    if transport.is_of_the_transport(machine):
        machine.context.demand("ALTER CERTIFICATE IN MASTER", "certificate", statement.name.own)
        transport.alter_certificate(machine, statement, _private_key(statement))
        return
    given = {name: clauses[name] for name in ("active_for_begin_dialog", "remove_private_key") if name in clauses}
    machine.database.alter_certificate(statement.name.own, **given, **_private_key(statement))


@defines("DROP", "CERTIFICATE")
def _drop_certificate(machine: Machine, statement: Definition) -> None:
    name = statement.name.own
    if not transport.is_of_the_transport(machine):
        drop(statement, lambda: machine.database.drop_certificate(name))
        return
    machine.context.demand("DROP CERTIFICATE IN MASTER", "certificate", name)
    drop(statement, lambda: machine.instance.drop_certificate(name))


@defines("BACKUP", "CERTIFICATE")
def _backup_certificate(machine: Machine, statement: Definition) -> None:
    if transport.is_of_the_transport(machine):
        transport.backup_certificate(machine, statement, _private_key(statement))
        return
    machine.database.backup_certificate(statement.name.own, statement.clauses["file"], **_private_key(statement))


# ---------------------------------------------------------------- remote service bindings


@defines("CREATE", "REMOTE SERVICE BINDING")
def _create_binding(machine: Machine, statement: Definition) -> None:
    clauses = statement.clauses
    machine.database.create_remote_service_binding(
        statement.name.own,
        to_service=text(machine, clauses["service"]) or "",
        user=clauses.get("user", ""),
        anonymous=clauses.get("anonymous", False),
        authorization=clauses.get("authorization"),
    )


@defines("ALTER", "REMOTE SERVICE BINDING")
def _alter_binding(machine: Machine, statement: Definition) -> None:
    given = {name: statement.clauses[name] for name in ("user", "anonymous") if name in statement.clauses}
    machine.database.alter_remote_service_binding(statement.name.own, **given)


@defines("DROP", "REMOTE SERVICE BINDING")
def _drop_binding(machine: Machine, statement: Definition) -> None:
    drop(statement, lambda: machine.database.drop_remote_service_binding(statement.name.own))
