-- The statements of remote_opening.py.

-- name: find_place
select pg_try_advisory_xact_lock_shared($1, 0)
and pg_try_advisory_xact_lock_shared($2, hashtext($3))
