-- The statements of old_copies.py.

-- name: note
insert into servicebroker.old_copies as o values ($1, $2, $3, $4, 1, $5, $6)
on conflict (own_broker, far_broker, is_here) do update set times = o.times + 1,
far_service = excluded.far_service, last_time = excluded.last_time, last_detail = excluded.last_detail
