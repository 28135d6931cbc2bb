-- The statements of history.py.

-- name: record_history_sample.begin
insert into servicebroker.history_samples (slot, at, step)
select floor(extract(epoch from t.now) / 10), t.now,
case when trunc(extract(epoch from t.now) / 600) > trunc(extract(epoch from t.last) / 600) then 600
when trunc(extract(epoch from t.now) / 60) > trunc(extract(epoch from t.last) / 60) then 60 else 10 end
from (select clock_timestamp() as now, coalesce((select at from servicebroker.history_samples
  order by slot desc limit 1), 'epoch') as last) t on conflict do nothing returning at, step

-- name: record_history_sample.forget
with old as (delete from servicebroker.history_samples where at < $2 and step = $1)
delete from servicebroker.history h where h.at < $2 and h.step = $1 and (exists (  select from servicebroker.history n where n.queue_id = h.queue_id and n.at > h.at and n.step >= $1)
or (h.queue_id <> 0 and not exists (  select from servicebroker.queues q where q.queue_id = h.queue_id)))

-- name: find_parts
select distinct floor(extract(epoch from at - $1) / $4)::int from servicebroker.history_samples
where at > $1 and (step >= $2 or at > $3)
