-- The statements of session_keys.py.

-- name: find_undecided
select e.conversation_handle, e.database_id, d.name, e.encryption, b.is_anonymous_on, s.owner_id,
b.remote_principal_id, m.by_password, m.by_service_master_key
from servicebroker.conversation_endpoints e join servicebroker.services s using (service_id)
join servicebroker.databases d on d.database_id = e.database_id
left join servicebroker.remote_service_bindings b
  on b.database_id = e.database_id and b.remote_service_name = e.far_service
left join servicebroker.master_keys m on m.database_id = e.database_id
where e.conversation_handle = any ($1) and e.is_initiator and e.security is null

-- name: save_keys
insert into servicebroker.conversation_keys select * from unnest($1::uuid[], $2::int[], $3::int[],
$4::uuid[], $5::bytea[], $6::uuid[], $7::bytea[], $8::bytea[]) on conflict do nothing

-- name: save_exchange
update servicebroker.conversation_keys set exchange = $2 where conversation_handle = $1

-- name: save_second_keys
update servicebroker.conversation_keys k set second_key_id = n.key_id, second_key = n.key
from unnest($1::uuid[], $2::uuid[], $3::bytea[]) n (handle, key_id, key)
where k.conversation_handle = n.handle and k.second_key is null
