-- The instance itself: its schemas, its migrations, its identifier, the recorded definitions of its objects.

create schema if not exists servicebroker;  -- the tables, and what each queue has (store/queue.sql)
create schema sys;                          -- the catalog views (store/views.sql)
create schema servicebroker_fence;          -- the functions that restricted roles of PostgreSQL call (store/fence.sql)
create schema tsql;                         -- the functions and views that translated T-SQL calls (store/tsql/)
grant usage on schema tsql to public;

-- Migrations that were applied.
create table servicebroker.migrations (
    number integer primary key,
    name text not null,
    applied_at timestamptz not null default clock_timestamp()
);

-- The identifier of this instance for others. A copy must get another one.
create table servicebroker.instance (instance_id uuid not null default gen_random_uuid());
create unique index instance_once on servicebroker.instance ((true));  -- one row
insert into servicebroker.instance default values;

-- The definitions of our tables, views, functions and triggers, as store/expected_objects.py has recorded them: a hash.
-- Of the objects that each queue has (of_queue), the text instead.
create table servicebroker.made (
    kind text not null,
    name text not null,
    definition text not null,
    of_queue boolean not null default false,
    retention boolean,  -- of a queue's function: as it is with RETENTION on, or off
    server integer not null,
    unique nulls not distinct (kind, name, of_queue, retention)
);
