-- The statements of worker_limits.py.

-- name: find_worker_limits.table
select case when not pg_is_in_recovery() then to_regclass('servicebroker.worker_limits')::oid end
