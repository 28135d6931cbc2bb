-- The statements of refusals.py.

-- name: save_refusals
insert into servicebroker.refusals as r (is_ours, peer, number, times, first_time, last_time, last_text)
select is_ours, peer, number, times, $6, $6, text
from unnest($1::boolean[], $2::text[], $3::int[], $4::bigint[], $5::text[])
  as reported (is_ours, peer, number, times, text)
on conflict (is_ours, peer, number) do update set times = r.times + excluded.times,
last_time = excluded.last_time, last_text = excluded.last_text

-- name: find_refusals
-- Refusals of a peer that is named by its certificate or login count only while a certificate of it is imported.
select is_ours, peer, number, times, first_time, last_time, last_text from servicebroker.refusals
where last_time >= $1 and (peer !~ '^(certificate|login) ' or exists (select
from servicebroker.transport_certificates where owner = peer and not is_own))
order by last_time desc, peer, number
