-- Principals of a broker database, what they own, and what was granted and denied to them.

-- names are compared without case; the fixed ones have the numbers that Service Broker gives them
create table servicebroker.principals (
    database_id integer not null references servicebroker.databases,
    principal_id integer not null default nextval('servicebroker.object_ids'),
    name text not null,
    is_role boolean not null,
    postgres_role text,                 -- whoever connects as this role is this principal by default
    create_date timestamptz not null default clock_timestamp(),
    primary key (database_id, principal_id)
);
create unique index principals_name on servicebroker.principals (database_id, lower(name));
create unique index principals_postgres_role on servicebroker.principals (database_id, postgres_role)
    where postgres_role is not null;
insert into servicebroker.principals (database_id, principal_id, name, is_role)
select database_id, fixed.*
  from servicebroker.databases,
       (values (0, 'public', true), (1, 'dbo', false), (2, 'guest', false),
               (16384, 'db_owner', true), (16387, 'db_ddladmin', true)) fixed;

create table servicebroker.role_members (
    database_id integer not null,
    role_id integer not null,
    member_id integer not null,
    primary key (database_id, member_id, role_id),
    foreign key (database_id, role_id) references servicebroker.principals,
    foreign key (database_id, member_id) references servicebroker.principals on delete cascade
);

-- class and state as in sys.database_permissions; a row goes with its object
create table servicebroker.permissions (
    database_id integer not null,
    class smallint not null,
    major_id integer not null,          -- 0 for the database itself
    grantee_id integer not null,
    grantor_id integer not null,
    permission text not null,
    state "char" not null check (state in ('G', 'W', 'D')),
    primary key (database_id, grantee_id, class, major_id, permission, grantor_id),
    foreign key (database_id, grantee_id) references servicebroker.principals on delete cascade,
    foreign key (database_id, grantor_id) references servicebroker.principals
);

-- 1 is dbo
alter table servicebroker.message_types add column owner_id integer not null default 1;
alter table servicebroker.service_contracts add column owner_id integer not null default 1;
alter table servicebroker.queues add column owner_id integer not null default 1;
alter table servicebroker.services add column owner_id integer not null default 1;
-- where routes were there before: 0010 makes them with their owner
alter table if exists servicebroker.routes add column if not exists owner_id integer not null default 1;
