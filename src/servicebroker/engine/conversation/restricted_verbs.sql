-- The statements of restricted_verbs.py.

-- name: sent_with_trace
select

-- name: send_batch
select
