# Made from aio/network.py by tools/make_sync.py: change that file, then run `make sync`.
"""The network of an instance as methods: its endpoint, its certificates, and who its peers are."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager, suppress
from datetime import datetime, timedelta
from typing import TypeVar

from servicebroker.api.certificates import CertificateBackup, File, after, read_file
from servicebroker.api.definitions import administered
from servicebroker.engine.catalog import network_endpoints
from servicebroker.engine.catalog.alter import lock_catalog
from servicebroker.engine.remote import known_peers
from servicebroker.engine.remote.known_peers import Accepted
from servicebroker.engine.security import logins, transport_certificates
from servicebroker.engine.security.transport_certificates import TransportCertificate
from servicebroker.model.arguments import checked_password
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.model.security.certificates import Facts
from servicebroker.store.concurrency import in_thread
from servicebroker.store.direct import DirectConnection
from servicebroker.store.keys.key_files import KeyFolder, read_private
from servicebroker.store.keys.x509_certificates import DAYS, SKEW, PrivateKey, as_pem, issue, key_pem, read, read_key
from servicebroker.store.membership import is_in_domain
from servicebroker.store.running import run_alone
from servicebroker.store.statements import Steps

T = TypeVar("T")


class Network(CertificateBackup):
    """CREATE, ALTER and DROP ENDPOINT; the certificates of the transport; logins, and what is granted to them.

    All of it is for roles of PostgreSQL with the rights of the schema's owner (15247). `servicebroker serve` follows
    within a second.
    """

    clock: Callable[[], datetime]

    @abstractmethod
    def connection(self) -> AbstractContextManager[DirectConnection]:
        """A connection of the pool."""

    @abstractmethod
    def key_folder(self) -> KeyFolder:
        """Where the private keys are."""

    def create_endpoint(
        self,
        name: str,
        *,
        listener_port: int,
        listener_ip: str = "ALL",
        state: str = "STOPPED",
        authentication: str | None = None,
        encryption: str = "REQUIRED",
        message_forwarding: str = "DISABLED",
        message_forward_size: int = 10,
    ) -> str | None:
        """CREATE ENDPOINT name STATE = ... AS TCP (...) FOR SERVICE_BROKER (...): where other instances connect to.

        `state` is STARTED, STOPPED (no connections, either way) or DISABLED (peers are answered with an error);
        `authentication` is CERTIFICATE, or CERTIFICATE and the name of one of this instance; WINDOWS, or WINDOWS and
        NTLM, KERBEROS or NEGOTIATE, which mean the same: the domain that this instance is in; or both, in the order in
        which they are tried. WINDOWS by default for an instance that is in a domain and has no certificate of its own.
        `encryption` is REQUIRED, SUPPORTED or DISABLED; `message_forward_size` is in MB. `servicebroker serve` obeys
        it.

        Returns:
            What to know of it: with SUPPORTED and DISABLED nothing proves who a peer is. Else None.

        Raises:
            BrokerError: 5837 port, 5838 authentication, 5839 forward size, 5840 forwarding, 7874 there is one
                already, 15151 unknown certificate, 28055 one that cannot be used now, 402 anything else that a clause
                may not say.
        """
        clauses = network_endpoints.Clauses(
            listener_port, listener_ip, state, authentication, encryption, message_forwarding, message_forward_size
        )
        in_domain = in_thread(is_in_domain, self.key_folder())
        steps = network_endpoints.create_endpoint(name, clauses, self.clock(), in_domain=in_domain)
        return self._administer(steps)

    def alter_endpoint(
        self,
        name: str,
        *,
        listener_port: int | None = None,
        listener_ip: str | None = None,
        state: str | None = None,
        authentication: str | None = None,
        encryption: str | None = None,
        message_forwarding: str | None = None,
        message_forward_size: int | None = None,
    ) -> str | None:
        """ALTER ENDPOINT name ...: what is given changes; the daemon follows within a second.

        Returns:
            As `create_endpoint`.

        Raises:
            BrokerError: as `create_endpoint`, and 15151 when there is none of that name.
        """
        clauses = network_endpoints.Clauses(
            listener_port, listener_ip, state, authentication, encryption, message_forwarding, message_forward_size
        )
        return self._administer(network_endpoints.alter_endpoint(name, clauses, self.clock()))

    drop_endpoint = administered(network_endpoints.drop_endpoint)

    create_login = administered(logins.create_login)

    drop_login = administered(logins.drop_login)

    grant_connect = administered(logins.grant_connect)

    deny_connect = administered(logins.deny_connect)

    revoke_connect = administered(logins.revoke_connect)

    grant = administered(logins.grant)

    deny = administered(logins.deny)

    revoke = administered(logins.revoke)

    def create_certificate(
        self,
        name: str,
        *,
        authorization: str | None = None,
        subject: str | None = None,
        start_date: datetime | None = None,
        expiry_date: datetime | None = None,
        encryption_password: str | None = None,
        file: File | None = None,
        private_key_file: File | None = None,
        decryption_password: str | None = None,
    ) -> bytes:
        """CREATE CERTIFICATE, as in the database master: who this instance, or a peer, is in the network.

        Args:
            name: compared without case.
            authorization: the login that a peer with this certificate is: it needs CONNECT on the endpoint. Without it
                the peer is let in because of its certificate.
            subject: "CN=...", or just a name, of a new one; its name when it is not given. It proves nothing.
            start_date: a new one is valid from then on, with a time zone; from now on when it is not given, also for
                clocks that are 10 minutes behind.
            expiry_date: valid until then; for a year when it is not given.
            encryption_password: encrypts the private key: the endpoint cannot use it before `alter_certificate` has
                opened it.
            file: a certificate in PEM or DER: that of a peer, or with `private_key_file` one of this instance. Without
                it a new one of this instance is made, whose key goes into the key folder.
            private_key_file: its key in PKCS #8.
            decryption_password: of that file.

        Returns:
            The SHA-256 of the certificate.

        Raises:
            BrokerError: 15232 the name is taken, or the certificate is there already, 15208 no such file, or not what
                it should be, 15465 wrong password, 15116 the password is too short, 15151 no such login, 15247, 402.
        """
        key = None
        if file is None:
            if private_key_file is not None or decryption_password is not None:
                raise BrokerError(402, "WITH PRIVATE KEY", "given without a file", "given with FROM FILE")
            start = self.clock().replace(microsecond=0) if start_date is None else start_date
            expiry = after(start, DAYS) if expiry_date is None else expiry_date
            own = self._administer(transport_certificates.myself())
            before = transport_certificates.shown(own.endpoint, own.certificates, self.clock())
            facts, key = issue(
                name if subject is None else subject,
                start,
                expiry,
                SKEW if start_date is None else timedelta(0),
                instance=own.instance,
                predecessor=None if before is None else self._private_key(before),
            )
        else:
            if any(one is not None for one in (subject, start_date, expiry_date)):
                raise BrokerError(402, "SUBJECT, START_DATE or EXPIRY_DATE", "given with a file", "left out")
            facts = read(in_thread(read_file, file))
            if private_key_file is not None:
                key = read_key(in_thread(read_file, private_key_file), decryption_password, facts)
        if key is None:
            if encryption_password is not None:
                raise BrokerError(402, "ENCRYPTION BY PASSWORD", "given without a private key", "left out")
            steps = transport_certificates.add_certificate(name, facts, is_own=False, login=authorization)
            self._administer(steps)
            return facts.thumbprint
        if authorization is not None:
            raise BrokerError(402, "AUTHORIZATION", "given for a certificate of this instance", "left out")
        pem = self._key_file(key, facts, encryption_password)
        by_password = encryption_password is not None
        folder = self.key_folder()
        is_new = not folder.file(facts.thumbprint).exists()  # else the certificate is here, or an attempt was cut
        if is_new:
            in_thread(folder.write, facts.thumbprint, pem)
        try:
            self._administer(transport_certificates.add_certificate(name, facts, is_own=True, by_password=by_password))
        except BaseException:
            if is_new:
                folder.remove(facts.thumbprint)
            raise
        if not is_new:
            in_thread(folder.write, facts.thumbprint, pem)
        return facts.thumbprint

    def _private_key(self, certificate: TransportCertificate) -> PrivateKey | None:
        """The key of one of our certificates, when it is here and nobody else's."""
        with suppress(InstanceError, BrokerError):
            file = (self.key_folder()).find(certificate.facts.thumbprint)
            return None if file is None else read_key(in_thread(read_file, file), None, certificate.facts)
        return None

    def accept_certificate(self, name: str) -> Accepted:
        """Believe what the peer with that certificate claims to be, and its owner's other certificates with it.

        It is about instances that somebody else claims too, and about addresses at which somebody else has answered
        before. From then on the others are not believed to be that.

        Returns:
            The instances and the addresses; neither, when nobody claims anything of it.

        Raises:
            BrokerError: 15151 no such certificate of a peer, 15247.
        """
        return self._administer(known_peers.accept(name, self.clock()))

    def alter_certificate(
        self, name: str, *, decryption_password: str | None = None, encryption_password: str | None = None
    ) -> None:
        """ALTER CERTIFICATE name WITH PRIVATE KEY (DECRYPTION BY PASSWORD = ..., ENCRYPTION BY PASSWORD = ...).

        `decryption_password` opens a private key that lies under one; then the endpoint can use it, unless an
        `encryption_password` is to encrypt it anew.

        Raises:
            BrokerError: 15151 no such certificate, 15556 its private key is not here, 15465 wrong password, 15313 it
                lies under none, 15116 the password is too short, 15247, 402.
        """
        if decryption_password is None and encryption_password is None:
            raise BrokerError(402, "ALTER CERTIFICATE", "empty", "WITH PRIVATE KEY")
        found = self._administer(transport_certificates.find_certificate("alter", name))
        key = self._open(found, decryption_password)
        pem = self._key_file(key, found.facts, encryption_password)
        folder, by_password = self.key_folder(), encryption_password is not None
        if not by_password:
            in_thread(folder.write, found.facts.thumbprint, pem)
        self._administer(transport_certificates.set_by_password(found, by_password))
        if by_password:  # the daemon opens no such file: it is told first
            in_thread(folder.write, found.facts.thumbprint, pem)

    def _find_to_back_up(self, name: str, password: str | None, *, with_key: bool) -> tuple[Facts, PrivateKey | None]:
        found = self._administer(transport_certificates.find_certificate("find", name))
        return found.facts, self._open(found, password) if with_key else None

    def drop_certificate(self, name: str) -> None:
        """DROP CERTIFICATE: of a peer, it is let in no more; of this instance, its key is removed too.

        Raises:
            BrokerError: 15151 no such certificate, 3716 the endpoint names it, 15247.
        """
        dropped = self._administer(transport_certificates.drop_certificate(name))
        if dropped.is_own:
            (self.key_folder()).remove(dropped.facts.thumbprint)

    def _open(self, certificate: transport_certificates.TransportCertificate, password: str | None) -> PrivateKey:
        """The private key that is in the key folder."""
        file = (self.key_folder()).find(certificate.facts.thumbprint)
        if file is None:
            raise BrokerError(15556, f"certificate '{certificate.name}'")
        if certificate.by_password:
            password = checked_password("DECRYPTION BY PASSWORD", password)
        elif password is not None:
            raise BrokerError(15313)
        return in_thread(read_key, read_private(file), password, certificate.facts)

    def _key_file(self, key: PrivateKey, facts: Facts, password: str | None) -> bytes:
        """What stands in the file of a private key."""
        if password is not None:
            checked_password("ENCRYPTION BY PASSWORD", password, is_new=True)
        return in_thread(key_pem, key, password) + as_pem(facts.der)

    def _administer(self, steps: Steps[T]) -> T:
        """DDL of the instance, one at a time."""

        def checked() -> Steps[T]:
            yield from logins.demand_administrator()
            yield lock_catalog()
            return (yield from steps)

        with self.connection() as connection:
            return run_alone(connection, checked())
