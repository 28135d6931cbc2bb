-- Logins, master keys, the certificates of databases, remote service bindings.

-- who a peer is to this instance; nobody opens a session as one
create table servicebroker.logins (
    login_id integer primary key default nextval('servicebroker.object_ids'),
    name text not null,
    create_date timestamptz not null default clock_timestamp()
);
create unique index logins_name on servicebroker.logins (lower(name));
insert into servicebroker.logins (login_id, name) values (2, 'public');

alter table servicebroker.principals add column login_id integer references servicebroker.logins;
create unique index principals_login on servicebroker.principals (database_id, login_id) where login_id is not null;

-- the login that a peer with this certificate is; null: whoever has imported it lets it in
alter table servicebroker.transport_certificates add column login_id integer references servicebroker.logins;

-- CONNECT ON ENDPOINT
create table servicebroker.endpoint_permissions (
    endpoint_id integer not null references servicebroker.network_endpoints on delete cascade,
    login_id integer not null references servicebroker.logins on delete cascade,
    state "char" not null check (state in ('G', 'D')),
    primary key (endpoint_id, login_id)
);

-- A master key never stands here in clear: it is encrypted by its password, and by the service master key, which is a
-- file of the instance (null: it is not).
create table servicebroker.master_keys (
    database_id integer primary key references servicebroker.databases,
    key_guid uuid not null default gen_random_uuid(),
    by_password bytea not null,
    by_service_master_key bytea,
    create_date timestamptz not null default clock_timestamp(),
    modify_date timestamptz not null default clock_timestamp()
);

-- private_key is encrypted: by the master key (key_encryption M) or a password (P); N: it is not here
create table servicebroker.certificates (
    certificate_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    owner_id integer not null,
    name text not null,
    certificate bytea not null,           -- DER
    thumbprint bytea not null,            -- SHA-256 of it
    subject text not null,
    issuer_name text not null,
    serial_number text not null,
    start_date timestamptz not null,
    expiry_date timestamptz not null,
    is_active_for_begin_dialog boolean not null default true,
    private_key bytea,
    key_encryption "char" not null check (key_encryption in ('N', 'M', 'P')),
    check ((private_key is null) = (key_encryption = 'N')),
    foreign key (database_id, owner_id) references servicebroker.principals
);
create unique index certificates_name on servicebroker.certificates (database_id, lower(name));
create unique index certificates_thumbprint on servicebroker.certificates (database_id, thumbprint);
create index certificates_owner on servicebroker.certificates (database_id, owner_id);

create table servicebroker.remote_service_bindings (
    remote_service_binding_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    owner_id integer not null,
    name text not null,
    remote_service_name text not null,
    remote_principal_id integer not null,
    is_anonymous_on boolean not null,
    foreign key (database_id, owner_id) references servicebroker.principals,
    foreign key (database_id, remote_principal_id) references servicebroker.principals
);
create unique index remote_service_bindings_name on servicebroker.remote_service_bindings (database_id, lower(name));
create unique index remote_service_bindings_service
    on servicebroker.remote_service_bindings (database_id, remote_service_name);
