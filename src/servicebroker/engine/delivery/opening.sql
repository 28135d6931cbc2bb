-- The statements of opening.py.

-- name: lock_service
select pg_advisory_xact_lock_shared($1, 0), pg_advisory_xact_lock_shared($2, hashtext($3))
