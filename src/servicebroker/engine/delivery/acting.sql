-- The statements of acting.py.

-- name: open
select instance_id from servicebroker.instance
