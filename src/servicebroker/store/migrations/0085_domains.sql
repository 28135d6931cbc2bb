-- AUTHENTICATION = WINDOWS: how an endpoint knows its peers, logins that name members of a domain, how the instance
-- stands in its own one. Private keys of the transport may lie under a password.

-- by number, as SQL Server has it: 1 NTLM, 2 KERBEROS, 3 NEGOTIATE, 4 CERTIFICATE, 5 to 10 both (model/authentication.py)
alter table servicebroker.network_endpoints add column connection_auth smallint not null default 4;
alter table servicebroker.network_endpoints alter column connection_auth drop default;

-- DOMAIN\member: whoever shows a certificate of the domain for that member
alter table servicebroker.logins add column is_windows boolean not null default false;

-- the file with the private key is encrypted by a password, so that the endpoint cannot use it
alter table servicebroker.transport_certificates add column by_password boolean not null default false;

alter table servicebroker.broker_connections add column authentication text;  -- null: nobody was authenticated

-- written by the daemon; one row, or none while its endpoint does not say WINDOWS. problem: '' when all is well
create table servicebroker.domain_membership (
    account text,                        -- DOMAIN\member; null: it has no certificate yet
    thumbprint bytea,                    -- SHA-256 of that
    start_date timestamptz,
    expiry_date timestamptz,
    problem text not null
);
create unique index domain_membership_once on servicebroker.domain_membership ((true));
