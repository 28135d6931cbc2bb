-- T-SQL: what stands in schemas, and the capture of changed rows for triggers.

-- Procedures, triggers, functions and synonyms: their text, which a process parses at its first call. Functions are
-- functions of PostgreSQL too. The text of a synonym is the name that it stands for.
create table servicebroker.tsql_modules (
    module_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases on delete cascade,
    schema_name text not null,
    name text not null,
    kind text not null check (kind in ('P', 'TR', 'FN', 'IF', 'TF', 'SN')),  -- as in sys.objects
    definition text not null,
    execute_as text,        -- CALLER, SELF, OWNER or a user; null is CALLER
    creator text not null,  -- the user that SELF and OWNER stand for
    parent_table text,      -- of a trigger: its table's quoted PostgreSQL name
    version bigint not null default nextval('servicebroker.catalog_versions'),
    create_date timestamptz not null default clock_timestamp(),
    modify_date timestamptz not null default clock_timestamp(),
    is_disabled boolean not null default false,  -- DISABLE TRIGGER
    parameters jsonb  -- [name, type, is output, has a default] of each; a scalar function's result is first, unnamed
);
create unique index tsql_modules_name on servicebroker.tsql_modules (database_id, lower(schema_name), lower(name));
create index tsql_modules_table on servicebroker.tsql_modules (parent_table) where kind = 'TR';

-- ADD SIGNATURE: the modules that certificates have signed.
create table servicebroker.module_signatures (
    module_id integer not null references servicebroker.tsql_modules on delete cascade,
    thumbprint bytea not null,
    is_counter boolean not null,
    signature bytea not null,
    primary key (module_id, thumbprint, is_counter)
);

-- CREATE SCHEMA. The schema dbo exists always and has no row; its number is 1.
create table servicebroker.tsql_schemas (
    database_id integer not null references servicebroker.databases on delete cascade,
    name text not null,
    postgres_schema text not null,
    schema_id integer not null default nextval('servicebroker.object_ids')
);
create unique index tsql_schemas_name on servicebroker.tsql_schemas (database_id, lower(name));

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

-- Tables, views, sequences, procedures and functions that permissions name: major_id of class 1001 is object_id. They
-- are found by name, because PostgreSQL's numbers differ in a copy of the database.
create table servicebroker.tsql_objects (
    object_id integer primary key default nextval('servicebroker.object_ids'),
    database_id integer not null references servicebroker.databases on delete cascade,
    postgres_schema text not null,
    postgres_name text not null,
    unique (database_id, postgres_schema, postgres_name)
);

-- Copy the rows that a statement has inserted and deleted into temporary tables, which a trigger of T-SQL sees as
-- `inserted` and `deleted`. A T-SQL session asks for copies by the setting servicebroker.tsql_level, and finds them by
-- servicebroker.tsql_captured: "table operation" for each, separated by semicolons. For other sessions it does nothing.
-- The names are quoted, because every session can write the settings that they are made of.
create function servicebroker.tsql_capture() returns trigger language plpgsql as $$
declare
    level text := current_setting('servicebroker.tsql_level', true);
    captured text := coalesce(current_setting('servicebroker.tsql_captured', true), '');
    place text;
begin
    if coalesce(level, '') = '' then
        return null;
    end if;
    place := format('%s_%s', level, coalesce(array_length(string_to_array(captured, ';'), 1), 0) + 1);
    if tg_op = 'DELETE' then
        execute format('create temporary table %I as select * from %s with no data', 'tsql_inserted_' || place, tg_relid::regclass);
    else
        execute format('create temporary table %I as select * from inserted_rows', 'tsql_inserted_' || place);
    end if;
    if tg_op = 'INSERT' then
        execute format('create temporary table %I as select * from %s with no data', 'tsql_deleted_' || place, tg_relid::regclass);
    else
        execute format('create temporary table %I as select * from deleted_rows', 'tsql_deleted_' || place);
    end if;
    perform set_config('servicebroker.tsql_captured', concat_ws(';', nullif(captured, ''), tg_relid || ' ' || tg_op), false);
    return null;
end $$;
