-- How the broker's own tables, views, functions and triggers are defined, as `store/expected_objects.py` has recorded it: a hash, and
-- of what each queue has (of_queue) the text; its functions for RETENTION on and off.
create table servicebroker.made (
    kind text not null,
    name text not null,
    definition text not null,
    of_queue boolean not null default false,
    retention boolean,
    server integer not null,
    unique nulls not distinct (kind, name, of_queue, retention)
);
