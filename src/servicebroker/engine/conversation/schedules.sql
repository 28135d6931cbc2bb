-- The statements of schedules.py.

-- name: find_all
select q.schema_name || '.' || q.name, s.name, s.rule, s.time_zone, s.missed, s.next_time, s.conversation_handle
from servicebroker.schedules s join servicebroker.queues q using (queue_id)
where q.database_id = $1 order by s.next_time, s.name

-- name: drop.find
select conversation_handle from servicebroker.schedules where queue_id = $1 and name = $2

-- name: drop.delete
delete from servicebroker.schedules where queue_id = $1 and name = $2 returning conversation_handle
