-- Permissions on users, on logins, on schemas, and on what T-SQL has in them.

-- the fixed roles that every database has; a name of theirs that is taken keeps what it is
insert into servicebroker.principals (database_id, principal_id, name, is_role)
select database_id, fixed.*
  from servicebroker.databases,
       (values (16385, 'db_accessadmin', true), (16386, 'db_securityadmin', true), (16389, 'db_backupoperator', true),
               (16390, 'db_datareader', true), (16391, 'db_datawriter', true),
               (16392, 'db_denydatareader', true), (16393, 'db_denydatawriter', true)) fixed
    on conflict do nothing;

-- everybody may be guest in the databases that T-SQL always has
insert into servicebroker.permissions (database_id, class, major_id, grantee_id, grantor_id, permission, state)
select database_id, 0, 0, 2, 1, 'CONNECT', 'G'
  from servicebroker.databases where lower(name) in ('master', 'tempdb')
    on conflict do nothing;

-- whether somebody who works as a user of the database is, in others, who that user's login is
alter table servicebroker.databases add column is_trustworthy_on boolean not null default false;

-- dbo, which needs no row, is number 1
alter table servicebroker.tsql_schemas add column schema_id integer not null default nextval('servicebroker.object_ids');

-- that of the schema a queue is in; 0 while CREATE SCHEMA has not made it
alter table servicebroker.queues add column schema_id integer not null default 0;
update servicebroker.queues q
   set schema_id = coalesce((select s.schema_id from servicebroker.tsql_schemas s
                              where s.database_id = q.database_id and lower(s.name) = lower(q.schema_name)),
                            (lower(q.schema_name) = 'dbo')::integer);

-- Tables, views, sequences, procedures and functions on which something was granted or denied: permissions of class 1001
-- have their number. They go by name, because PostgreSQL's numbers are others in a copy of the database.
create table servicebroker.tsql_objects (
    object_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases on delete cascade,
    postgres_schema text not null,
    postgres_name text not null,
    unique (database_id, postgres_schema, postgres_name)
);

-- what was granted and denied to logins, but for CONNECT ON ENDPOINT; class and state as in sys.server_permissions,
-- major_id 0 for the instance itself
create table servicebroker.server_permissions (
    class smallint not null,
    major_id integer not null,
    grantee_id integer not null references servicebroker.logins (login_id) on delete cascade,
    permission text not null,
    state "char" not null check (state in ('G', 'D')),
    primary key (grantee_id, class, major_id, permission)
);

-- A trigger works as who its EXECUTE AS says, as a procedure does; ALTER makes its author the creator.
