-- Procedures and triggers of T-SQL: their text, which is parsed at the first call in a process. A name is compared without
-- case, its spelling kept.
create table servicebroker.tsql_modules (
    module_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases on delete cascade,
    schema_name text not null,
    name text not null,
    kind text not null check (kind in ('P', 'TR')),  -- as in sys.objects
    definition text not null,
    execute_as text,         -- CALLER, SELF, OWNER or a user; null is CALLER
    creator text not null,   -- who SELF and OWNER stand for
    parent_table text,       -- of a trigger: its table's quoted PostgreSQL name
    version bigint not null default nextval('servicebroker.catalog_versions'),
    create_date timestamptz not null default clock_timestamp(),
    modify_date timestamptz not null default clock_timestamp()
);
create unique index tsql_modules_name on servicebroker.tsql_modules (database_id, lower(schema_name), lower(name));
create index tsql_modules_table on servicebroker.tsql_modules (parent_table) where kind = 'TR';

-- schemas that CREATE SCHEMA has made; dbo is always there
create table servicebroker.tsql_schemas (
    database_id integer not null references servicebroker.databases on delete cascade,
    name text not null,
    postgres_schema text not null
);
create unique index tsql_schemas_name on servicebroker.tsql_schemas (database_id, lower(name));
