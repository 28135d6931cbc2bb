-- The statements of event_notifications.py.

-- name: create_event_notification.insert_notifications
insert into servicebroker.event_notifications (database_id, name, queue_id, events, is_fan_in, service_name,
broker_instance, owner_id, is_of_server, creator) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, session_user)
on conflict do nothing returning object_id

-- name: find_notified
select name from servicebroker.queues where queue_id = $1 and is_activation_enabled

-- name: drop_notifications_on
select object_id from servicebroker.event_notifications where queue_id = $1

-- name: post
select pg_backend_pid(), current_database()::text, session_user::text, p.name, d.name, q.schema_name, q.name
from servicebroker.queues q join servicebroker.databases d using (database_id)
join servicebroker.principals p on p.database_id = q.database_id and p.principal_id = q.owner_id
where queue_id = $1

-- name: send_ddl_event
select current_database()::text

-- name: send_pending_events.find_events_to_post
select from servicebroker.events_to_post limit 1

-- name: send_pending_events.take_events
delete from servicebroker.events_to_post where (queue_id, event) in (select queue_id, event
from servicebroker.events_to_post order by queue_id for update skip locked) returning queue_id, event

-- name: send
update servicebroker.event_notifications set conversation_handle = $2 where object_id = $1

-- name: locked
select from servicebroker.event_notifications where object_id = $1 for update

-- name: drop
delete from servicebroker.event_notifications where object_id = $1 returning queue_id, conversation_handle
