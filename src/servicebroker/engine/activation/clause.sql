-- The statements of clause.py.

-- name: principal
select principal_id from servicebroker.principals
where database_id = $1 and lower(name) = lower($2) and not is_role
