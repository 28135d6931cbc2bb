-- The statements of tds_clients.py.

-- name: tds_servers
select s.address, s.has_own_certificate, count(c.number)::int, count(c.backend)::int, s.max_clients, s.since
from servicebroker.rows_here(null::servicebroker.tds_servers) s
left join servicebroker.rows_here(null::servicebroker.tds_clients) c using (pid)
where s.pid in (select pid from pg_stat_activity) group by s.pid, 1, 2, 5, 6 order by s.address

-- name: connected_clients
select login, program, host, address, database_name, is_encrypted, backend, connect_time
from servicebroker.rows_here(null::servicebroker.tds_clients)
where pid in (select pid from pg_stat_activity) order by backend is null, connect_time, number limit $1

-- name: tds_refusals
select kind, sum(times)::bigint, max(last_time), (array_agg(last_address order by last_time desc))[1],
(array_agg(last_login order by last_time desc))[1], (array_agg(last_text order by last_time desc))[1]
from servicebroker.rows_here(null::servicebroker.tds_refusals)
where pid in (select pid from pg_stat_activity) group by kind order by 3 desc
