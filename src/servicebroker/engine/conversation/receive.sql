-- The statements of receive.py.

-- name: service_changes
select service_changes from servicebroker.queues where queue_id = $1

-- name: check
select q.is_receive_enabled,
exists (select from servicebroker.conversation_endpoints where conversation_handle = $2 and queue_id = $1),
exists (select from servicebroker.conversation_groups g join servicebroker.services s using (service_id)
        where g.conversation_group_id = $3 and s.queue_id = $1),
exists (select from pg_locks l where l.locktype = 'advisory' and l.granted and l.mode = 'ExclusiveLock'
        and l.classid = $4 and l.objid = $1 and l.objsubid = 2
        and l.database = (select oid from pg_database where datname = current_database()))
from servicebroker.queues q where q.queue_id = $1

-- name: keep_off_pipelines
select pg_try_advisory_xact_lock_shared($1, $2), name from servicebroker.queues where queue_id = $2
