-- The statements of trail.py.

-- name: settings
select is_on, share, services, conversations from servicebroker.trail_settings

-- name: find_conversations
select conversation_handle, conversation_id from servicebroker.conversation_endpoints
where conversation_handle = any ($1) or conversation_id = any ($1)

-- name: save_settings.find_services
select d.name || '.' || s.name from servicebroker.services s
join servicebroker.databases d using (database_id) where d.name || '.' || s.name = any ($1)

-- name: save_settings.update
update servicebroker.trail_settings set is_on = $1, share = $2, services = $3, conversations = $4

-- name: find_trigger_changes
select c.relname, t.tgname from pg_trigger t join pg_class c on c.oid = t.tgrelid
where c.relnamespace = 'servicebroker'::regnamespace and t.tgname like 'trailed\_%'

-- name: with_short_lock_timeout
set local lock_timeout = 100

-- name: trigger_arguments
select array(select s.service_id from servicebroker.services s
  join servicebroker.databases d using (database_id) where d.name || '.' || s.name = any ($1) order by 1),
array(select q.queue_id from servicebroker.queues q where q.queue_id >= $3 and ($4 or exists (  select from servicebroker.services s join servicebroker.databases d using (database_id)
  where s.queue_id = q.queue_id and d.name || '.' || s.name = any ($1)) or exists (  select from servicebroker.conversation_endpoints e where e.queue_id = q.queue_id
  and e.conversation_id = any ($2))) order by 1)

-- name: partitions.find
select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
where i.inhparent = 'servicebroker.trail'::regclass and c.relname like 'trail\_d%'

-- name: partitions.find_times_of_default
select min(at), max(at) from servicebroker.trail_rest

-- name: partitions.forget
delete from servicebroker.trail_rest where at < $1
