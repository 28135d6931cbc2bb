-- The statements of counters.py.

-- name: depths.now
select extract(epoch from clock_timestamp())::float8

-- name: poison
select d.name, q.schema_name || '.' || q.name, (not q.is_receive_enabled)::int,
(select count(*) from servicebroker.failed_messages f where f.queue_id = q.queue_id),
(select count(*) from servicebroker.set_aside_messages a where a.queue_id = q.queue_id)
from servicebroker.queues q join servicebroker.databases d using (database_id)
where q.queue_id >= $1 order by 1, 2

-- name: activation
select d.name, q.schema_name || '.' || q.name, count(*) from sys.dm_broker_activated_tasks t
join servicebroker.queues q on q.queue_id = t.queue_id
join servicebroker.databases d on d.database_id = q.database_id
group by 1, 2

-- name: certificates
select clock_timestamp()

-- name: transport
select coalesce(remote_user_name, ''), count(*), sum(total_bytes_sent), sum(total_bytes_received),
sum(total_fragments_sent), sum(total_fragments_received) from sys.dm_broker_connections group by 1
