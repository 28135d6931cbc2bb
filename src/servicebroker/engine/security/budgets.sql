-- The statements of budgets.py.

-- name: find_amounts
select owner, resource, amount from servicebroker.peer_budgets

-- name: set_budget.delete_amounts
delete from servicebroker.peer_budgets where owner = $1

-- name: set_budget.save_amounts
insert into servicebroker.peer_budgets (owner, resource, amount) select $1, * from unnest($2::text[], $3::bigint[])
on conflict (owner, resource) do update set amount = excluded.amount

-- name: set_role_budget
update servicebroker.fenced_roles set max_conversations = case when $2 then null else coalesce($3, max_conversations) end,
max_messages = case when $2 then null else coalesce($4, max_messages) end,
max_bytes = case when $2 then null else coalesce($5, max_bytes) end
where postgres_role = $1 returning max_conversations, max_messages, max_bytes
