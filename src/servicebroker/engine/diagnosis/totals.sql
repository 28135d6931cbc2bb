-- The statements of totals.py. Counts wait for no disk and no standby: closing an instance would wait with them.

-- name: add_totals
with unwaited as (select set_config('synchronous_commit', 'off', true))
insert into servicebroker.totals as t
select n.* from unwaited, unnest($1::text[], $2::bigint[]) n (counter, value)
order by 1 on conflict (counter) do update set value = t.value + excluded.value

-- name: add_statements
with unwaited as (select set_config('synchronous_commit', 'off', true))
insert into servicebroker.statement_totals as t
select n.* from unwaited, unnest($1::text[], $2::bigint[], $3::bigint[]) n (name, calls, microseconds)
order by 1 on conflict (name) do update set calls = t.calls + excluded.calls,
microseconds = t.microseconds + excluded.microseconds

-- name: statement_totals
select name, calls, microseconds from servicebroker.statement_totals order by microseconds desc, name
