-- The statements of fenced_verbs.py.

-- name: sent_with_trace
select

-- name: send_batch
select
