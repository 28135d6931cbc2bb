-- The statements of budgets.py.

-- name: find_amounts
select owner, resource, amount from servicebroker.peer_budgets

-- name: set_budget.delete_amounts
delete from servicebroker.peer_budgets where owner = $1

-- name: set_budget.save_amounts
insert into servicebroker.peer_budgets (owner, resource, amount) select $1, * from unnest($2::text[], $3::bigint[])
on conflict (owner, resource) do update set amount = excluded.amount
