# Made from aio/network.py by tools/make_sync.py: change that file, then run `make sync`.
"""Methods of an instance for its network: endpoint, transport certificates, logins, and budgets of peers and roles."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta
from typing import TYPE_CHECKING, Any, TypeVar

from servicebroker import operations
from servicebroker.api import rights
from servicebroker.api.certificates import a_year_after, read_file, write_backup
from servicebroker.api.wrappers import operation_method
from servicebroker.engine.catalog import databases, network_endpoints
from servicebroker.engine.catalog.alter import lock_catalog
from servicebroker.engine.remote import known_peers
from servicebroker.engine.remote.known_peers import AcceptedClaims
from servicebroker.engine.security import budgets, logins, transport_certificates
from servicebroker.engine.security.budgets import RoleBudget
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.arguments import checked_password, checked_termination
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.security.certificates import Facts
from servicebroker.model.wording import short_repr
from servicebroker.operations.operation import Definition, Operation
from servicebroker.protocol.budgets import Budget
from servicebroker.store.concurrency import in_thread
from servicebroker.store.direct import DirectConnection
from servicebroker.store.keys.key_files import KeyFolder, read_private
from servicebroker.store.keys.x509_certificates import (
    CLOCK_SKEW,
    PrivateKey,
    as_pem,
    issue,
    key_pem,
    read,
    read_key,
)
from servicebroker.store.membership import is_in_domain
from servicebroker.store.running import run_alone
from servicebroker.store.statements import Steps

if TYPE_CHECKING:
    from servicebroker.api.database import Database

T = TypeVar("T")


class Network(ABC):
    """Base class of `AsyncInstance`: its methods for endpoint, transport certificates, logins and budgets.

    The PostgreSQL role needs the rights of the schema's owner (15247 otherwise). `servicebroker serve` applies a change
    within a second.
    """

    clock: Callable[[], datetime]

    @abstractmethod
    def connection(self) -> AbstractContextManager[DirectConnection]:
        """Lend a connection of the pool."""

    @abstractmethod
    def key_folder(self) -> KeyFolder:
        """Return the folder of private keys."""

    @abstractmethod
    def database(self, name: str, *, create: bool = False, user: str | None = None) -> Database:
        """Return the broker database of that name."""

    def run(self, operation: Operation[T]) -> T:
        """Run an operation of `servicebroker.operations` that concerns the whole instance.

        Raises:
            BrokerError: as the method with the operation's name; 402 if the operation concerns one broker database.
        """
        kind: Any = type(operation)
        run = _RUNNERS.get(kind, _run_in_transaction if kind in _STEPS_OF_ONE_TRANSACTION else None)
        if run is None:
            raise BrokerError(402, "operation", short_repr(operation), "one for the whole instance; use database.run")
        result: T = run(self, operation)
        return result

    drop_database = operation_method(operations.DropDatabase)

    create_endpoint = operation_method(operations.CreateEndpoint)

    alter_endpoint = operation_method(operations.AlterEndpoint)

    drop_endpoint = operation_method(operations.DropEndpoint)

    create_login = operation_method(operations.CreateLogin)

    drop_login = operation_method(operations.DropLogin)

    grant_connect = operation_method(operations.GrantConnect)

    deny_connect = operation_method(operations.DenyConnect)

    revoke_connect = operation_method(operations.RevokeConnect)

    grant = operation_method(operations.GrantOnInstance)

    deny = operation_method(operations.DenyOnInstance)

    revoke = operation_method(operations.RevokeOnInstance)

    create_certificate = operation_method(operations.CreateTransportCertificate)

    alter_certificate = operation_method(operations.AlterTransportCertificate)

    drop_certificate = operation_method(operations.DropTransportCertificate)

    backup_certificate = operation_method(operations.BackupCertificate)

    def accept_certificate(self, name: str) -> AcceptedClaims:
        """Accept the instances and addresses that the peer with this certificate claims.

        The acceptance holds for every certificate of the same owner.

        Use this if two peers claim to be the same instance, or if a peer answers at an address where another peer
        answered before. The claims of the other peers are rejected from then on.

        Returns:
            The accepted instances and addresses; empty if the peer has no disputed claim.

        Raises:
            BrokerError: 15151 no such certificate of a peer, 15247 no permission.
        """
        return self._administer(known_peers.accept(name, self.clock()))

    def set_peer_budget(self, name: str, amounts: Mapping[str, int] | None) -> Budget:
        """Limit the resources of this instance that a peer, the owner of a certificate, may use at a time.

        Args:
            name: the name of the certificate.
            amounts: a number for each resource, a field of `Budget`. Omitted resources stay unchanged. None restores
                all defaults.

        Returns:
            The whole budget of the owner. The daemon applies it within a second.

        Raises:
            BrokerError: 15151 no such certificate of a peer, 402 no such resource or an impossible amount, 15247 no
                permission.
        """
        return self._administer(budgets.set_budget(name, amounts))

    def set_role_budget(self, role: str, amounts: Mapping[str, int] | None) -> RoleBudget:
        """Limit the resources that a restricted role may use.

        A BEGIN DIALOG or SEND over the limit is refused (10928), until messages are received or conversations end.

        Args:
            role: the PostgreSQL role, which was granted rights.
            amounts: a number for each resource, a field of `RoleBudget`. Omitted resources stay unchanged. None removes
                all limits.

        Returns:
            The whole budget of the role.

        Raises:
            BrokerError: 15007 the role was granted no rights, 402 no such resource or an impossible amount, 15247 no
                permission.
        """
        return self._administer(budgets.set_role_budget(role, amounts))

    def _administer(self, steps: Steps[T]) -> T:
        """Run DDL of the instance, under the lock of the catalog."""

        def checked() -> Steps[T]:
            yield from logins.demand_administrator()
            yield lock_catalog()
            return (yield from steps)

        with self.connection() as connection:
            return run_alone(connection, checked())


# ---------------------------------------------------------------- runners of operations

_STEPS_OF_ONE_TRANSACTION: Mapping[type[Definition[Any]], Callable[[Any, datetime], Steps[Any]]] = {
    operations.AlterEndpoint: network_endpoints.alter_endpoint,
    operations.DropEndpoint: network_endpoints.drop_endpoint,
    operations.CreateLogin: logins.create_login,
    operations.DropLogin: logins.drop_login,
    operations.GrantConnect: logins.set_connect,
    operations.DenyConnect: logins.set_connect,
    operations.RevokeConnect: logins.set_connect,
    operations.GrantOnInstance: logins.set_permission,
    operations.DenyOnInstance: logins.set_permission,
    operations.RevokeOnInstance: logins.set_permission,
}


def _run_in_transaction(instance: Network, operation: Any) -> Any:
    """Run a definition in one transaction."""
    return instance._administer(_STEPS_OF_ONE_TRANSACTION[type(operation)](operation, instance.clock()))


def _drop_database(instance: Network, operation: operations.DropDatabase) -> None:
    drop_database(instance.database(operation.name), operation)


def drop_database(database: Database, operation: operations.DropDatabase) -> None:
    """Run DROP DATABASE as the user of `database`."""
    termination = checked_termination(no_wait=operation.rollback_after is None, rollback_after=operation.rollback_after)
    database_id = database.database_id
    database._define_exclusively(
        lambda: databases.drop_database(database_id),
        operation.permission,
        termination,
        in_use=BrokerError(3702, database.name),
    )
    system = database.instance.database(databases.SYSTEM_DATABASE)
    system._remove_dropped_queues()


def _create_endpoint(instance: Network, operation: operations.CreateEndpoint) -> str | None:
    # a domain: instances that trust one authority (store/membership.py)
    in_domain = in_thread(is_in_domain, instance.key_folder())
    steps = network_endpoints.create_endpoint(operation, instance.clock(), in_domain=in_domain)
    return instance._administer(steps)


def _create_certificate(instance: Network, operation: operations.CreateTransportCertificate) -> bytes:
    operation.check()
    facts, key = _issue(instance, operation) if operation.file is None else _read(operation)
    name, password = operation.name, operation.encryption_password
    if key is None:
        if password is not None:
            raise BrokerError(402, "ENCRYPTION BY PASSWORD", "used without a private key", "omitted")
        login = operation.authorization
        instance._administer(transport_certificates.add_certificate(name, facts, is_own=False, login=login))
        return facts.thumbprint
    if operation.authorization is not None:
        raise BrokerError(402, "AUTHORIZATION", "used for a certificate of this instance", "omitted")
    pem = _key_file(key, facts, password)
    by_password = password is not None
    folder = instance.key_folder()
    is_new = not folder.file(facts.thumbprint).exists()  # else the certificate exists, or an attempt was interrupted
    if is_new:
        in_thread(folder.write, facts.thumbprint, pem)
    try:
        instance._administer(transport_certificates.add_certificate(name, facts, is_own=True, by_password=by_password))
    except BaseException:
        if is_new:
            folder.remove(facts.thumbprint)
        raise
    if not is_new:
        in_thread(folder.write, facts.thumbprint, pem)
    return facts.thumbprint


def _issue(instance: Network, operation: operations.CreateTransportCertificate) -> tuple[Facts, PrivateKey | None]:
    """Create a certificate of this instance, signed with the key of its predecessor."""
    start = instance.clock().replace(microsecond=0) if operation.start_date is None else operation.start_date
    expiry = a_year_after(start) if operation.expiry_date is None else operation.expiry_date
    own = instance._administer(transport_certificates.find_identity())
    before = transport_certificates.choose_own(own.endpoint, own.certificates, instance.clock())
    return issue(
        operation.name if operation.subject is None else operation.subject,
        start,
        expiry,
        CLOCK_SKEW if operation.start_date is None else timedelta(0),
        instance=own.instance,
        predecessor=None if before is None else _find_private_key(instance, before),
    )


def _read(operation: operations.CreateTransportCertificate) -> tuple[Facts, PrivateKey | None]:
    """Read a certificate from its file, and its private key, if the operation names a file for it."""
    assert operation.file is not None
    facts = read(in_thread(read_file, operation.file))
    if operation.private_key_file is None:
        return facts, None
    data = in_thread(read_file, operation.private_key_file)
    return facts, read_key(data, operation.decryption_password, facts)


def _find_private_key(instance: Network, certificate: TransportCertificate) -> PrivateKey | None:
    """Return the private key of a certificate of this instance; None if its file is missing or cannot be opened."""
    with suppress(InstanceError, BrokerError):
        file = (instance.key_folder()).find(certificate.facts.thumbprint)
        return None if file is None else read_key(in_thread(read_file, file), None, certificate.facts)
    return None


def _alter_certificate(instance: Network, operation: operations.AlterTransportCertificate) -> None:
    operation.check()
    certificate = instance._administer(transport_certificates.find_certificate("alter", operation.name))
    key = _load_private_key(instance, certificate, operation.decryption_password)
    pem = _key_file(key, certificate.facts, operation.encryption_password)
    folder, by_password = instance.key_folder(), operation.encryption_password is not None
    if not by_password:
        in_thread(folder.write, certificate.facts.thumbprint, pem)
    instance._administer(transport_certificates.set_by_password(certificate, by_password))
    if by_password:  # the daemon cannot open such a file, so the row must be changed before the file
        in_thread(folder.write, certificate.facts.thumbprint, pem)


def _drop_certificate(instance: Network, operation: operations.DropTransportCertificate) -> None:
    dropped = instance._administer(transport_certificates.drop_certificate(operation.name))
    if dropped.is_own:
        (instance.key_folder()).remove(dropped.facts.thumbprint)


def _backup_certificate(instance: Network, operation: operations.BackupCertificate) -> None:
    operation.check()
    certificate = instance._administer(transport_certificates.find_certificate("find", operation.name))
    with_key = operation.private_key_file is not None
    key = _load_private_key(instance, certificate, operation.decryption_password) if with_key else None
    in_thread(write_backup, operation, certificate.facts, key)


def _load_private_key(instance: Network, certificate: TransportCertificate, password: str | None) -> PrivateKey:
    """Return the private key of a certificate, from the key folder.

    Raises:
        BrokerError: 15556 the folder has no file for it, 15313 a password that the file does not need, or a wrong one.
    """
    folder = instance.key_folder()
    file = folder.find(certificate.facts.thumbprint)
    if file is None:
        hint = f"The key folder {folder.path} has no file for it: open the instance with the right key folder (--keys)."
        raise BrokerError(15556, f"certificate '{certificate.name}'", hint=hint)
    if certificate.by_password:
        password = checked_password("DECRYPTION BY PASSWORD", password)
    elif password is not None:
        raise BrokerError(15313, hint="No password protects the private key: omit the decryption password.")
    return in_thread(read_key, read_private(file), password, certificate.facts)


def _key_file(key: PrivateKey, facts: Facts, password: str | None) -> bytes:
    """Return the content of a private key's file: the key and its certificate, as PEM."""
    if password is not None:
        checked_password("ENCRYPTION BY PASSWORD", password, is_new=True)
    return in_thread(key_pem, key, password) + as_pem(facts.der)


# Operations that need more than one transaction of `_administer`; `_run_in_transaction` runs the others.
_RUNNERS: Mapping[type[Operation[Any]], Callable[[Any, Any], Any]] = {
    operations.DropDatabase: _drop_database,
    operations.CreateEndpoint: _create_endpoint,
    operations.CreateTransportCertificate: _create_certificate,
    operations.AlterTransportCertificate: _alter_certificate,
    operations.DropTransportCertificate: _drop_certificate,
    operations.BackupCertificate: _backup_certificate,
    **rights.RUNNERS,
}
