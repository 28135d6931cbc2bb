-- DISABLE TRIGGER: the trigger stays, and is not run.
alter table servicebroker.tsql_modules add column is_disabled boolean not null default false;

-- CREATE TYPE: another name of a type, or the columns of table variables and of parameters.
create table servicebroker.tsql_types (
    type_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases on delete cascade,
    schema_name text not null,
    name text not null,
    is_table boolean not null,
    definition text not null,  -- the type that it names, or the columns in their parentheses
    is_nullable boolean not null
);
create unique index tsql_types_name on servicebroker.tsql_types (database_id, lower(schema_name), lower(name));
