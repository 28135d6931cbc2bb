-- The body of a multicast, stored once. A row with is_shared holds in message_body the key of its reader, not the body.

create table servicebroker.shared_bodies (
    body_id bigint generated always as identity primary key,
    body bytea not null
);

-- One row for each message that refers to a body, wherever it lies. Nobody updates a counter, so readers of
-- different conversations never wait for each other.
create table servicebroker.shared_body_readers (
    reader bytea primary key,  -- 16 random bytes
    body_id bigint not null
);
create index shared_body_readers_body on servicebroker.shared_body_readers (body_id);

-- The body goes with its last reader. Two last readers that go at once do not see each other: what they leave is
-- for the background (remove_unread_bodies).
create function servicebroker.remove_unread_body() returns trigger language plpgsql as $$
begin
    delete from servicebroker.shared_bodies b
     where b.body_id = old.body_id
       and not exists (select from servicebroker.shared_body_readers r where r.body_id = old.body_id);
    return null;
end $$;
create trigger remove_unread_body after delete on servicebroker.shared_body_readers
    for each row execute function servicebroker.remove_unread_body();

-- The body for a reader that goes.
create function servicebroker.take_shared_body(reader bytea) returns bytea language sql as $$
    with gone as (delete from servicebroker.shared_body_readers r where r.reader = $1 returning r.body_id)
    select b.body from servicebroker.shared_bodies b join gone using (body_id);
$$;

alter table servicebroker.transmission_queue add column is_shared boolean not null default false;

do $$
declare
    number integer;
begin
    for number in select queue_id from servicebroker.queues loop
        execute format('alter table servicebroker.queue_%s add column is_shared boolean not null default false', number);
    end loop;
end $$;

-- keeps_retained: RETENTION is on, or was once and rows may be left
alter table servicebroker.queues
    add column is_retention_enabled boolean not null default false,
    add column keeps_retained boolean not null default false;
