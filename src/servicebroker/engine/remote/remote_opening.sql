-- The statements of remote_opening.py.

-- name: lock_service
select pg_try_advisory_xact_lock_shared($1, 0)
and pg_try_advisory_xact_lock_shared($2, hashtext($3))
