-- The statements of worker_limits.py.

-- name: find_worker_limits.table
select to_regclass('servicebroker.worker_limits')::oid
