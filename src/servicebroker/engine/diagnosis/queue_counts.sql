-- The statements of queue_counts.py.

-- name: queue_statuses.find_queues
select d.name, q.schema_name || '.' || q.name, q.queue_id,
coalesce((select array_agg(s.name order by s.name) from servicebroker.services s
          where s.queue_id = q.queue_id), '{}'), q.is_receive_enabled
from servicebroker.queues q join servicebroker.databases d using (database_id)
order by d.name, q.schema_name, q.name

-- name: queue_statuses.count_endpoints
select queue_id, state, count(*) from servicebroker.conversation_endpoints group by 1, 2 order by 2

-- name: dead_letters_by_queue
select a.queue_id, d.name, a.queue_name, c.letters, a.set_aside_at, split_part(a.error, E'\n', 1)
from (select max(set_aside_id) as newest, count(*) as letters from (
  select queue_id, set_aside_id from servicebroker.set_aside_messages order by set_aside_id desc limit $1) l
  group by queue_id) c
join servicebroker.set_aside_messages a on a.set_aside_id = c.newest
join servicebroker.databases d using (database_id) order by 2, 3, 1

-- name: is_standby
select pg_is_in_recovery()

-- name: connections
select remote_user_name, is_accept = 1, login_state_desc, principal_name from sys.dm_broker_connections
order by connect_time

-- name: refusals
select number, refused, last_peer, coalesce((select last_text from servicebroker.refusals r
  where r.is_ours and r.number = c.number order by r.last_time desc limit 1), '')
from servicebroker.rows_here(null::servicebroker.refused_connections) c order by number
