-- Access: logins, the principals of databases, permissions, master keys, certificates, restricted roles of PostgreSQL.

-- Logins: the names of peers in this instance. Nobody opens a session as a login.
create table servicebroker.logins (
    login_id integer primary key default nextval('servicebroker.object_ids'),
    name text not null,
    create_date timestamptz not null default clock_timestamp(),
    is_windows boolean not null default false,   -- DOMAIN\member: a certificate of the domain for that member logs in
    certificate_thumbprint bytea unique,         -- FROM CERTIFICATE
    is_disabled boolean not null default false
);
create unique index logins_name on servicebroker.logins (lower(name));
insert into servicebroker.logins (login_id, name) values (2, 'public');

-- Users and roles of a broker database. The fixed ones have the numbers that Service Broker gives them.
create table servicebroker.principals (
    database_id integer not null references servicebroker.databases,
    principal_id integer not null default nextval('servicebroker.object_ids'),
    name text not null,
    is_role boolean not null,
    postgres_role text,  -- a connection of this role of PostgreSQL works as this principal by default
    create_date timestamptz not null default clock_timestamp(),
    login_id integer references servicebroker.logins,
    certificate_thumbprint bytea,  -- FROM CERTIFICATE
    primary key (database_id, principal_id)
);
create unique index principals_name on servicebroker.principals (database_id, lower(name));
create unique index principals_postgres_role on servicebroker.principals (database_id, postgres_role)
    where postgres_role is not null;
create unique index principals_login on servicebroker.principals (database_id, login_id) where login_id is not null;
create unique index principals_certificate on servicebroker.principals (database_id, certificate_thumbprint);

-- Members of roles.
create table servicebroker.role_members (
    database_id integer not null,
    role_id integer not null,
    member_id integer not null,
    primary key (database_id, member_id, role_id),
    foreign key (database_id, role_id) references servicebroker.principals,
    foreign key (database_id, member_id) references servicebroker.principals on delete cascade
);

-- Permissions in a database; class and state as in sys.database_permissions. The statement that drops an object
-- deletes its permissions.
create table servicebroker.permissions (
    database_id integer not null,
    class smallint not null,
    major_id integer not null,  -- 0: the database itself
    grantee_id integer not null,
    grantor_id integer not null,
    permission text not null,
    state "char" not null check (state in ('G', 'W', 'D')),
    primary key (database_id, grantee_id, class, major_id, permission, grantor_id),
    foreign key (database_id, grantee_id) references servicebroker.principals on delete cascade,
    foreign key (database_id, grantor_id) references servicebroker.principals
);

-- Permissions of logins, but for CONNECT ON ENDPOINT; class and state as in sys.server_permissions.
create table servicebroker.server_permissions (
    class smallint not null,
    major_id integer not null,  -- 0: the instance itself
    grantee_id integer not null references servicebroker.logins (login_id) on delete cascade,
    permission text not null,
    state "char" not null check (state in ('G', 'D')),
    primary key (grantee_id, class, major_id, permission)
);

-- Master keys of databases, always encrypted: by passwords, and by the service master key, a file of the instance.
create table servicebroker.master_keys (
    database_id integer primary key references servicebroker.databases,
    key_guid uuid not null default gen_random_uuid(),
    by_password bytea not null,
    by_service_master_key bytea,  -- null: only a password opens it
    create_date timestamptz not null default clock_timestamp(),
    modify_date timestamptz not null default clock_timestamp(),
    more_passwords bytea[] not null default '{}'  -- the key again, for each further password
);

-- Certificates of databases. Those of the transport are in network.sql.
create table servicebroker.certificates (
    certificate_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases,
    owner_id integer not null,
    name text not null,
    certificate bytea not null,  -- DER
    thumbprint bytea not null,   -- SHA-256 of it
    subject text not null,
    issuer_name text not null,
    serial_number text not null,
    start_date timestamptz not null,
    expiry_date timestamptz not null,
    is_active_for_begin_dialog boolean not null default true,
    private_key bytea,  -- encrypted as key_encryption says: M by the master key, P by a password, N: there is none
    key_encryption "char" not null check (key_encryption in ('N', 'M', 'P')),
    check ((private_key is null) = (key_encryption = 'N')),
    foreign key (database_id, owner_id) references servicebroker.principals
);
create unique index certificates_name on servicebroker.certificates (database_id, lower(name));
create unique index certificates_thumbprint on servicebroker.certificates (database_id, thumbprint);
create index certificates_owner on servicebroker.certificates (database_id, owner_id);

-- Remote service bindings: the user whose certificate secures conversations with a service.
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

-- ---------------------------------------------------------------- restricted roles of PostgreSQL

-- The roles that may call the functions of the fence (store/fence.sql), which ask for permissions.
create table servicebroker.fenced_roles (
    postgres_role text primary key,
    key uuid not null unique default gen_random_uuid()  -- proves the caller in a call; only the role can read it
);

-- The permissions that each statement of the fence asks for, filled from model/security/permissions.py.
create table servicebroker.needs (
    statement text not null,
    place integer not null,
    class smallint not null,
    permission text not null,
    number integer not null,
    brought_by text[] not null,  -- the permissions that imply it, each as "class permission"
    of_roles integer[] not null,  -- the fixed roles that have one of those
    denied_to integer[] not null default '{}',  -- the fixed roles that are denied it
    primary key (statement, place)
);
