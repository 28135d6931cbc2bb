-- The statements of queue_counts.py.

-- name: queue_statuses.find_queues
select d.name, q.schema_name || '.' || q.name, q.queue_id,
coalesce((select array_agg(s.name order by s.name) from servicebroker.services s
          where s.queue_id = q.queue_id), '{}')
from servicebroker.queues q join servicebroker.databases d using (database_id)
order by d.name, q.schema_name, q.name

-- name: queue_statuses.count_endpoints
select queue_id, state, count(*) from servicebroker.conversation_endpoints group by 1, 2 order by 2

-- name: is_standby
select pg_is_in_recovery()

-- name: connections
select remote_user_name, is_accept = 1, login_state_desc, principal_name from sys.dm_broker_connections
order by connect_time

-- name: refusals
select number, refused, last_peer, coalesce((select last_text from servicebroker.refusals r
  where r.is_ours and r.number = c.number order by r.last_time desc limit 1), '')
from servicebroker.rows_here(null::servicebroker.refused_connections) c order by number
