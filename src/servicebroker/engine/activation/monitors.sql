-- The statements of monitors.py.

-- name: find_version
select monitor_version from servicebroker.queues where queue_id = $1

-- name: take_lease
select pg_try_advisory_lock($1, $2)

-- name: release_lease
with deleted as (delete from servicebroker.queue_monitors where queue_id = $2 and notified_version is null)
select pg_advisory_unlock($1, $2)

-- name: find_notified
select receives from servicebroker.queue_monitors where queue_id = $1 and notified_version = $2

-- name: listen_for
with deleted as (delete from servicebroker.waiting_readers where pid = pg_backend_pid()
and queue_id <> all ($1::int[]) or pid <> all (select pid from pg_stat_activity))
insert into servicebroker.waiting_readers (queue_id, pid, is_monitor)
select queue_id, pg_backend_pid(), true from unnest($1::int[]) as queue_id on conflict do nothing

-- name: save_states
insert into servicebroker.queue_monitors
select * from unnest($1::int[], $2::text[], $3::timestamptz[], $4::timestamptz[], $5::int[], $6::bigint[], $7::bigint[])
on conflict (queue_id) do update set state = excluded.state,
last_empty_rowset_time = excluded.last_empty_rowset_time,
last_activated_time = excluded.last_activated_time, tasks_waiting = excluded.tasks_waiting,
notified_version = excluded.notified_version, receives = excluded.receives

-- name: leave_task
delete from servicebroker.activated_tasks where spid = pg_backend_pid()

-- name: find_stop_reason
select is_receive_enabled and is_activation_enabled from servicebroker.queues where queue_id = $1
