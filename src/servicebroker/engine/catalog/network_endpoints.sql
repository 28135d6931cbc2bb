-- The statements of network_endpoints.py.

-- name: create_endpoint.find_certificates
select from servicebroker.transport_certificates where is_own limit 1

-- name: create_endpoint.insert_endpoints
insert into servicebroker.network_endpoints (name, state, ip_address, port, encryption, certificate_id,
is_message_forwarding_enabled, message_forwarding_size, connection_auth)
values ($1, $2, $3, $4, $5, $6, $7, $8, $9)
on conflict do nothing returning endpoint_id

-- name: alter_endpoint.update_endpoints
update servicebroker.network_endpoints set state = $2, ip_address = $3, port = $4, encryption = $5,
certificate_id = $6, is_message_forwarding_enabled = $7, message_forwarding_size = $8, connection_auth = $9
where lower(name) = lower($1)

-- name: drop_endpoint
delete from servicebroker.network_endpoints where lower(name) = lower($1) returning endpoint_id

-- name: checked
select certificate_id, not by_password and start_date <= $2 and $2 < expiry_date
from servicebroker.transport_certificates where lower(name) = lower($1) and is_own
