-- The statements of owner_verbs.py.

-- name: register_reader.delete_readers
delete from servicebroker.waiting_readers where pid = pg_backend_pid()

-- name: register_reader.insert_readers
with deleted as (delete from servicebroker.waiting_readers where pid = pg_backend_pid()
and queue_id <> all ($1::int[]) or pid <> all (select pid from pg_stat_activity))
insert into servicebroker.waiting_readers (queue_id, pid)
select queue_id, pg_backend_pid() from unnest($1::int[]) as queue_id on conflict do nothing
