-- The statements of database_transactions.py.

-- name: find_transactions
-- the holders of a lock on a queue's table that is more than a read, or of the advisory lock of BEGIN DIALOG
select distinct a.pid, a.xact_start from pg_locks l join pg_stat_activity a on a.pid = l.pid
where (l.relation in (select to_regclass('servicebroker.queue_' || queue_id)
from servicebroker.queues where database_id = $1)
or l.locktype = 'advisory' and l.classid = $2::int::oid and l.objid = $1::int::oid and l.objsubid = 2)
and l.granted and l.mode <> 'AccessShareLock' and a.pid <> pg_backend_pid() and a.xact_start is not null
and l.database = (select oid from pg_database where datname = current_database())

-- name: lock_database.lock
select pg_advisory_xact_lock($1, $2)

-- name: lock_database.reset_timeout
set local lock_timeout = 0

-- name: end_transactions
select pg_terminate_backend(a.pid) from pg_stat_activity a
join unnest($1::int[], $2::timestamptz[]) as chosen (pid, xact_start)
on a.pid = chosen.pid and a.xact_start = chosen.xact_start
