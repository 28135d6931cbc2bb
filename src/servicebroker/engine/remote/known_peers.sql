-- The statements of known_peers.py.

-- name: find_answers
select address, owner, instance_id from servicebroker.peers order by since

-- name: save_answers.insert_peers
insert into servicebroker.peers (address, owner, instance_id, since)
select address, owner, instance, $4 from unnest($1::text[], $2::text[], $3::uuid[])
  a (address, owner, instance) where owner in (select owner from servicebroker.transport_certificates)
on conflict (address) do update set owner = excluded.owner, instance_id = excluded.instance_id,
since = excluded.since

-- name: save_false_claims
insert into servicebroker.mistrusted as m (owner, claim, subject, times, last_time, last_detail)
select owner, claim, subject, times, $6, detail
from unnest($1::text[], $2::text[], $3::text[], $4::bigint[], $5::text[])
  n (owner, claim, subject, times, detail)
on conflict (owner, claim, subject) do update set times = m.times + excluded.times,
last_time = excluded.last_time, last_detail = excluded.last_detail

-- name: accept.insert_accepted_peers
with claims as (select owner, instance_id from servicebroker.transport_certificates
where instance_id is not null and not is_own
union select owner, instance_id from servicebroker.peers
union select owner, instance_id from servicebroker.accepted_peers
union select owner, subject::uuid from servicebroker.mistrusted where claim = $2 and subject <> '')
insert into servicebroker.accepted_peers (instance_id, owner) select instance_id, $1 from claims
group by instance_id having bool_or(owner = $1) and bool_or(owner <> $1)
on conflict (instance_id) do update set owner = excluded.owner returning instance_id

-- name: accept.delete_other_owners
delete from servicebroker.peers where owner <> $1 and instance_id = any ($2)

-- name: accept.delete_former_owners
with left_it as (delete from servicebroker.peers p using servicebroker.mistrusted m where m.owner = $1
and m.claim = $2 and m.subject = p.address and p.owner <> $1 returning p.address) select address from left_it

-- name: accept.delete_mistrusted
delete from servicebroker.mistrusted where owner = $1 and claim in ($2, $3)

-- name: accept.update_certificates
update servicebroker.transport_certificates set accepted = $2 where owner = $1
