"""Master keys and certificates, each as the method of the API that does it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from servicebroker import operations
from servicebroker.operations.operation import Operation
from servicebroker.tsql.context import check_alone
from servicebroker.tsql.interpreter.definitions import transport
from servicebroker.tsql.interpreter.definitions.binding import bound
from servicebroker.tsql.interpreter.definitions.objects import defines, drop, refuses
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.statement_errors import syntax_error, unsupported
from servicebroker.tsql.syntax import Constant, Definition


@defines("CREATE", "MASTER KEY")
def _create_master_key(machine: Machine, statement: Definition) -> None:
    machine.database.run(operations.CreateMasterKey(statement.clauses["password"]))


@refuses("CREATE", "MASTER KEY")
def _only_with_a_password(statement: Definition) -> None:
    if "password" not in statement.clauses:
        raise unsupported("A master key without a password", "Write ENCRYPTION BY PASSWORD = '...'.", statement.line)


@defines("ALTER", "MASTER KEY")
def _alter_master_key(machine: Machine, statement: Definition) -> None:
    clauses = statement.clauses
    action, password = clauses["action"], clauses.get("password", "")
    operation: Operation[None]
    if action.endswith("REGENERATE"):
        operation = operations.RegenerateMasterKey(password, force=action != "REGENERATE")
    elif "service_master_key" in clauses:
        operation = operations.AlterMasterKey(service_master_key=action == "ADD")
    else:
        operation = (operations.AddMasterKeyPassword if action == "ADD" else operations.DropMasterKeyPassword)(password)
    machine.database.run(operation)


@defines("OPEN", "MASTER KEY")
def _open_master_key(machine: Machine, statement: Definition) -> None:
    machine.database.run(operations.OpenMasterKey(statement.clauses["password"]))


@defines("CLOSE", "MASTER KEY")
def _close_master_key(machine: Machine, statement: Definition) -> None:
    machine.database.run(operations.CloseMasterKey())


@defines("DROP", "MASTER KEY")
def _drop_master_key(machine: Machine, statement: Definition) -> None:
    machine.database.run(operations.DropMasterKey())


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
    given = transport.dates(machine, statement.clauses)
    if transport.is_of_the_transport(machine):
        transport.create_certificate(machine, statement, given)
    else:
        machine.database.run(bound(machine, _flat(statement), operations.CreateCertificate, **given))


def _flat(statement: Definition) -> Definition:
    """The clauses of the private key among the others, as fields are."""
    return replace(statement, clauses={**statement.clauses, **statement.clauses.get("private_key", {})})


@defines("ALTER", "CERTIFICATE")
def _alter_certificate(machine: Machine, statement: Definition) -> None:
    if transport.is_of_the_transport(machine):
        machine.context.demand("ALTER CERTIFICATE IN MASTER", "certificate", statement.name.own)
        check_alone(machine, "ALTER CERTIFICATE in master")
        transport.check_alteration(statement)
        machine.instance.run(bound(machine, _flat(statement), operations.AlterTransportCertificate))
    else:
        machine.database.run(bound(machine, _flat(statement), operations.AlterCertificate))


@defines("DROP", "CERTIFICATE")
def _drop_certificate(machine: Machine, statement: Definition) -> None:
    name = statement.name.own
    if not transport.is_of_the_transport(machine):
        drop(statement, lambda: machine.database.run(operations.DropCertificate(name)))
        return
    machine.context.demand("DROP CERTIFICATE IN MASTER", "certificate", name)
    drop(statement, lambda: machine.instance.run(operations.DropTransportCertificate(name)))


@defines("BACKUP", "CERTIFICATE")
def _backup_certificate(machine: Machine, statement: Definition) -> None:
    """In master, what is handed to peers, or with its private key is kept."""
    is_of_the_transport = transport.is_of_the_transport(machine)
    if is_of_the_transport:
        machine.context.demand("BACKUP CERTIFICATE IN MASTER", "certificate", statement.name.own)
    face = machine.instance if is_of_the_transport else machine.database
    face.run(bound(machine, _flat(statement), operations.BackupCertificate))
