-- The statements of reporter.py. The tables are unlogged, so no commit waits for a disk.

-- name: begin.delete_servers
delete from servicebroker.tds_servers where pid not in (select pid from pg_stat_activity) or pid = pg_backend_pid()

-- name: begin.delete_clients
delete from servicebroker.tds_clients where pid not in (select pid from pg_stat_activity) or pid = pg_backend_pid()

-- name: begin.delete_refusals
delete from servicebroker.tds_refusals where pid not in (select pid from pg_stat_activity) or pid = pg_backend_pid()

-- name: begin.insert_server
insert into servicebroker.tds_servers (pid, address, has_own_certificate, max_clients)
values (pg_backend_pid(), $1, $2, $3)

-- name: save.delete_clients
delete from servicebroker.tds_clients where pid = pg_backend_pid() and number = any($1::int[])

-- name: save.upsert_clients
insert into servicebroker.tds_clients
(pid, number, login, host, program, library, address, is_encrypted, database_name, backend)
select pg_backend_pid(), n.* from unnest($1::int[], $2::text[], $3::text[], $4::text[], $5::text[], $6::text[],
$7::boolean[], $8::text[], $9::int[]) n
on conflict (pid, number) do update set database_name = excluded.database_name, backend = excluded.backend

-- name: save.upsert_refusals
insert into servicebroker.tds_refusals (pid, kind, times, last_time, last_address, last_login, last_text)
select pg_backend_pid(), n.*
from unnest($1::text[], $2::bigint[], $3::timestamptz[], $4::text[], $5::text[], $6::text[]) n
on conflict (pid, kind) do update set times = excluded.times, last_time = excluded.last_time,
last_address = excluded.last_address, last_login = excluded.last_login, last_text = excluded.last_text
