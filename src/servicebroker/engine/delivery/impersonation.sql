-- The statements of impersonation.py.

-- name: open
select instance_id from servicebroker.instance
