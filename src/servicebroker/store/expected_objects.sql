-- The statements of expected_objects.py.

-- name: record.delete_made
delete from servicebroker.made

-- name: trust_queues
update servicebroker.queues set fingerprint = case when queue_id <> all ($2::int[])
then servicebroker.fingerprint(queue_id) end where queue_id = any ($1::int[])
