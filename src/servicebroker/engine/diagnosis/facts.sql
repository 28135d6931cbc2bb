-- The statements of facts.py.

-- name: read_databases
select name from servicebroker.databases where not is_broker_enabled order by name

-- name: read_server
select name, setting from pg_settings where name in ('fsync', 'synchronous_commit', 'full_page_writes', 'default_transaction_read_only')

-- name: read_commits
select current_setting('synchronous_standby_names'), current_setting('synchronous_commit'),
exists (select from pg_stat_replication where sync_state in ('sync', 'quorum') or sync_state is null),
count(*), min(state_change) from pg_stat_activity where datname = current_database() and wait_event = 'SyncRep'

-- name: read_table_locks
select a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), min('servicebroker.' || c.relname),
count(*), a.xact_start
from pg_locks l join pg_stat_activity a using (pid) join pg_class c on c.oid = l.relation
where l.locktype = 'relation' and l.granted and l.mode in ('ShareLock', 'ShareRowExclusiveLock', 'ExclusiveLock', 'AccessExclusiveLock')
and l.database = (select oid from pg_database where datname = current_database())
and c.relnamespace = 'servicebroker'::regnamespace and c.relkind in ('r', 'p') and a.pid <> pg_backend_pid()
group by a.pid, 2, 3, a.xact_start order by a.xact_start limit $1

-- name: read_network
select (select count(*) from servicebroker.routes where address ilike 'tcp://%'), pg_is_in_recovery(),
(select case state when 0 then 'STARTED' when 1 then 'STOPPED' else 'DISABLED' end
from servicebroker.network_endpoints), (select encryption from servicebroker.network_endpoints)

-- name: find_reports
select subject, report, since from servicebroker.rows_here(null::servicebroker.daemon_reports)
where pid = $1 order by since

-- name: find_timeouts
select name, reset_val::bigint from pg_settings where name = any($1::text[])

-- name: neighbours.count_connections
select (sum(count(*)) over ())::int, current_setting('max_connections')::int, usename::text, count(*),
pg_notification_queue_usage()
from pg_stat_activity where backend_type = 'client backend' group by usename order by 4 desc limit 1

-- name: find_hoarders
with room (locks) as (select current_setting('max_locks_per_transaction')::int *
  (current_setting('max_connections')::int + current_setting('max_prepared_transactions')::int))
select a.pid, coalesce(a.usename::text, ''), coalesce(a.application_name, ''), count(*), room.locks
from pg_locks l join pg_stat_activity a using (pid), room where not l.fastpath
group by 1, 2, 3, room.locks having count(*) > room.locks * $1::float order by 4 desc

-- name: gather_conversation.find_failures
select failures, last_error, held_until from servicebroker.failed_messages where conversation_handle = $1

-- name: count_queued.nowhere
select 0, null::timestamptz
