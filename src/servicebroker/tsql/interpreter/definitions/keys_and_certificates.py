"""Master keys and certificates, through the API."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory

from servicebroker import operations
from servicebroker.operations.operation import Operation
from servicebroker.tsql.context import refuse_in_transaction
from servicebroker.tsql.interpreter.definitions import transport_certificates
from servicebroker.tsql.interpreter.definitions.binding import bind_operation
from servicebroker.tsql.interpreter.definitions.objects import defines, refuses, run_drop
from servicebroker.tsql.interpreter.machine import Machine
from servicebroker.tsql.statement_errors import syntax_error, unsupported
from servicebroker.tsql.syntax import Constant, Definition


@defines("CREATE", "MASTER KEY")
def _create_master_key(machine: Machine, statement: Definition) -> None:
    machine.database.run(operations.CreateMasterKey(statement.clauses["password"]))


@refuses("CREATE", "MASTER KEY")
def _check_password(statement: Definition) -> None:
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
def _refuse_master_key_backup(statement: Definition) -> None:
    raise unsupported("BACKUP MASTER KEY", "It is in PostgreSQL's backup, encrypted by its password.", statement.line)


# ---------------------------------------------------------------- certificates


@refuses("CREATE", "CERTIFICATE")
@refuses("ALTER", "CERTIFICATE")
@refuses("BACKUP", "CERTIFICATE")
def _check_sources(statement: Definition) -> None:
    """Refuse BINARY without a binary constant, and BINARY for a private key."""
    encoded = statement.clauses.get("binary", Constant(b"")).value
    if not isinstance(encoded, bytes):
        raise syntax_error(str(encoded)[:30], statement.line)
    if "binary" in statement.clauses.get("private_key", {}):
        raise unsupported("A private key in BINARY", "Use FILE.", statement.line)


@defines("CREATE", "CERTIFICATE")
def _create_certificate(machine: Machine, statement: Definition) -> None:
    if "binary" not in statement.clauses:
        _create_from_file(machine, statement)
        return
    encoded = statement.clauses["binary"].value
    with TemporaryDirectory() as folder:  # the API reads files
        file = Path(folder) / "certificate"
        file.write_bytes(encoded)
        clauses = {name: value for name, value in statement.clauses.items() if name != "binary"}
        _create_from_file(machine, replace(statement, clauses=clauses | {"file": str(file)}))


def _create_from_file(machine: Machine, statement: Definition) -> None:
    """Create a certificate, in master one of the transport."""
    dates = transport_certificates.parse_dates(statement.clauses, machine.instance.clock())
    if transport_certificates.is_in_master(machine):
        transport_certificates.create_certificate(machine, statement, dates)
    else:
        machine.database.run(
            bind_operation(machine, _flatten_private_key(statement), operations.CreateCertificate, **dates)
        )


def _flatten_private_key(statement: Definition) -> Definition:
    """Return the statement with the clauses of WITH PRIVATE KEY among the others, as the operation's fields are."""
    return replace(statement, clauses={**statement.clauses, **statement.clauses.get("private_key", {})})


@defines("ALTER", "CERTIFICATE")
def _alter_certificate(machine: Machine, statement: Definition) -> None:
    if transport_certificates.is_in_master(machine):
        machine.context.require("ALTER CERTIFICATE IN MASTER", "certificate", statement.name.object)
        refuse_in_transaction(machine, "ALTER CERTIFICATE in master")
        transport_certificates.check_alteration(statement)
        machine.instance.run(
            bind_operation(machine, _flatten_private_key(statement), operations.AlterTransportCertificate)
        )
    else:
        machine.database.run(bind_operation(machine, _flatten_private_key(statement), operations.AlterCertificate))


@defines("DROP", "CERTIFICATE")
def _drop_certificate(machine: Machine, statement: Definition) -> None:
    name = statement.name.object
    if not transport_certificates.is_in_master(machine):
        run_drop(statement, lambda: machine.database.run(operations.DropCertificate(name)))
        return
    machine.context.require("DROP CERTIFICATE IN MASTER", "certificate", name)
    run_drop(statement, lambda: machine.instance.run(operations.DropTransportCertificate(name)))


@defines("BACKUP", "CERTIFICATE")
def _backup_certificate(machine: Machine, statement: Definition) -> None:
    """Run BACKUP CERTIFICATE.

    In master it exports a transport certificate for peers, or with its private key as a backup.
    """
    is_in_master = transport_certificates.is_in_master(machine)
    if is_in_master:
        machine.context.require("BACKUP CERTIFICATE IN MASTER", "certificate", statement.name.object)
    target = machine.instance if is_in_master else machine.database
    target.run(bind_operation(machine, _flatten_private_key(statement), operations.BackupCertificate))
