"""The network of an instance as methods: its endpoint, its certificates, and who its peers are."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, suppress
from datetime import datetime
from typing import TypeVar

from servicebroker.api.aio.certificates import File, read_file, write_file
from servicebroker.engine import logins, network_endpoints, peers, transport_certificates
from servicebroker.engine.alter import lock_catalog
from servicebroker.engine.peers import Accepted
from servicebroker.engine.transport_certificates import Certificate
from servicebroker.model.errors import BrokerError, InstanceError
from servicebroker.store.aio.concurrency import in_thread
from servicebroker.store.aio.direct import AsyncDirectConnection
from servicebroker.store.aio.running import run_alone
from servicebroker.store.certificates import DAYS, PrivateKey, as_pem, key_pem, make, read, read_key
from servicebroker.store.keys import KeyFolder
from servicebroker.store.statements import Steps

T = TypeVar("T")


class AsyncNetwork(ABC):
    """CREATE, ALTER and DROP ENDPOINT; the certificates of the transport; logins, and CONNECT ON ENDPOINT.

    All of it is for roles of PostgreSQL with the rights of the schema's owner (15247). `servicebroker serve` follows
    within a second.
    """

    clock: Callable[[], datetime]

    @abstractmethod
    def connection(self) -> AbstractAsyncContextManager[AsyncDirectConnection]:
        """A connection of the pool."""

    @abstractmethod
    async def key_folder(self) -> KeyFolder:
        """Where the private keys are."""

    async def create_endpoint(
        self,
        name: str,
        *,
        listener_port: int,
        listener_ip: str = "ALL",
        state: str = "STOPPED",
        authentication: str = "CERTIFICATE",
        encryption: str = "REQUIRED",
        message_forwarding: str = "DISABLED",
        message_forward_size: int = 10,
    ) -> str | None:
        """CREATE ENDPOINT name STATE = ... AS TCP (...) FOR SERVICE_BROKER (...): where other instances connect to.

        `state` is STARTED, STOPPED (no connections, either way) or DISABLED (peers are answered with an error);
        `authentication` is CERTIFICATE, or CERTIFICATE and the name of one of this instance; `encryption` REQUIRED,
        SUPPORTED or DISABLED; `message_forward_size` is in MB. `servicebroker serve` obeys it.

        Returns:
            What to know of it: with SUPPORTED and DISABLED nothing proves who a peer is. Else None.

        Raises:
            BrokerError: 5837 port, 5838 authentication, 5839 forward size, 5840 forwarding, 7874 there is one
                already, 15151 unknown certificate, 402 anything else that a clause may not say.
        """
        clauses = network_endpoints.Clauses(
            listener_port,
            listener_ip,
            state,
            authentication,
            encryption,
            message_forwarding,
            message_forward_size,
        )
        return await self._administer(network_endpoints.create_endpoint(name, clauses))

    async def alter_endpoint(
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
            listener_port,
            listener_ip,
            state,
            authentication,
            encryption,
            message_forwarding,
            message_forward_size,
        )
        return await self._administer(network_endpoints.alter_endpoint(name, clauses))

    async def drop_endpoint(self, name: str) -> None:
        """DROP ENDPOINT name: no connections any more; what is sent to other instances waits.

        Raises:
            BrokerError: 15151 when there is none of that name.
        """
        await self._administer(network_endpoints.drop_endpoint(name))

    async def create_login(self, name: str) -> None:
        """CREATE LOGIN: a name for a peer. It has no password: nobody opens a session as a login.

        Raises:
            BrokerError: 15025 name taken, 15247.
        """
        await self._administer(logins.create_login(name))

    async def drop_login(self, name: str) -> None:
        """DROP LOGIN, with what was granted to it.

        Raises:
            BrokerError: 15151 no such login, or public, 15141 a certificate is its, 15247.
        """
        await self._administer(logins.drop_login(name))

    async def grant_connect(self, endpoint: str, login: str) -> None:
        """GRANT CONNECT ON ENDPOINT::endpoint TO login, which may be public: peers that are this login are let in.

        Raises:
            BrokerError: 15151 no such endpoint or login, 15247.
        """
        await self._administer(logins.set_connect(endpoint, login, logins.GRANT))

    async def deny_connect(self, endpoint: str, login: str) -> None:
        """DENY CONNECT ON ENDPOINT::endpoint TO login: counts more than what was granted to public.

        Raises:
            BrokerError: as `grant_connect`.
        """
        await self._administer(logins.set_connect(endpoint, login, logins.DENY))

    async def revoke_connect(self, endpoint: str, login: str) -> None:
        """REVOKE CONNECT ON ENDPOINT::endpoint FROM login, granted or denied; nothing there is no error.

        Raises:
            BrokerError: as `grant_connect`.
        """
        await self._administer(logins.set_connect(endpoint, login, None))

    async def create_certificate(
        self,
        name: str,
        *,
        authorization: str | None = None,
        subject: str | None = None,
        days: int = DAYS,
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
            days: how long a new one is valid.
            file: a certificate in PEM or DER: that of a peer, or with `private_key_file` one of this instance. Without
                it a new one of this instance is made, whose key goes into the key folder.
            private_key_file: its key in PKCS #8.
            decryption_password: of that file.

        Returns:
            The SHA-256 of the certificate.

        Raises:
            BrokerError: 15232 the name is taken, or the certificate is there already, 15208 no such file, or not what
                it should be, 15465 wrong password, 15151 no such login, 15247, 402.
        """
        key = None
        if file is None:
            now, own = self.clock(), await self._administer(transport_certificates.myself())
            before = transport_certificates.shown(own.endpoint, own.certificates, now)
            predecessor = None if before is None else await self._private_key(before)
            facts, key = make(
                name if subject is None else subject, now, days, instance=own.instance, predecessor=predecessor
            )
        else:
            facts = read(await in_thread(read_file, file))
            if private_key_file is not None:
                key = read_key(await in_thread(read_file, private_key_file), decryption_password, facts)
        if key is None:
            steps = transport_certificates.add_certificate(name, facts, is_own=False, login=authorization)
            await self._administer(steps)
            return facts.thumbprint
        if authorization is not None:
            raise BrokerError(402, "AUTHORIZATION", "given for a certificate of this instance", "left out")
        folder = await self.key_folder()
        await in_thread(folder.write, facts.thumbprint, key_pem(key) + as_pem(facts.der))
        try:
            await self._administer(transport_certificates.add_certificate(name, facts, is_own=True))
        except BaseException:
            folder.remove(facts.thumbprint)
            raise
        return facts.thumbprint

    async def _private_key(self, certificate: Certificate) -> PrivateKey | None:
        """The key of one of our certificates, when it is here and nobody else's."""
        with suppress(InstanceError, BrokerError):
            file = (await self.key_folder()).find(certificate.facts.thumbprint)
            return None if file is None else read_key(await in_thread(read_file, file), None, certificate.facts)
        return None

    async def accept_certificate(self, name: str) -> Accepted:
        """Believe what the peer with that certificate claims to be, and its owner's other certificates with it.

        It is about instances that somebody else claims too, and about addresses at which somebody else has answered
        before. From then on the others are not believed to be that.

        Returns:
            The instances and the addresses; neither, when nobody claims anything of it.

        Raises:
            BrokerError: 15151 no such certificate of a peer, 15247.
        """
        return await self._administer(peers.accept(name, self.clock()))

    async def backup_certificate(self, name: str, file: File) -> None:
        """BACKUP CERTIFICATE name TO FILE: without its key, for others to import.

        Raises:
            BrokerError: 15151 no such certificate, 15240 the file is there already or cannot be written, 15247.
        """
        found = await self._administer(transport_certificates.find_certificate("find", name))
        await in_thread(write_file, file, as_pem(found.facts.der))

    async def drop_certificate(self, name: str) -> None:
        """DROP CERTIFICATE: of a peer, it is let in no more; of this instance, its key is removed too.

        Raises:
            BrokerError: 15151 no such certificate, 3716 the endpoint names it, 15247.
        """
        dropped = await self._administer(transport_certificates.drop_certificate(name))
        if dropped.is_own:
            (await self.key_folder()).remove(dropped.facts.thumbprint)

    async def _administer(self, steps: Steps[T]) -> T:
        """DDL of the instance, one at a time."""

        def checked() -> Steps[T]:
            yield from logins.demand_administrator()
            yield lock_catalog()
            return (yield from steps)

        async with self.connection() as connection:
            return await run_alone(connection, checked())
