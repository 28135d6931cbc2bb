-- The statements of master_keys.py.

-- name: create_master_key
insert into servicebroker.master_keys (database_id, by_password, by_service_master_key) values ($1, $2, $3)
on conflict do nothing returning 1

-- name: find_master_key
select by_password, by_service_master_key, more_passwords from servicebroker.master_keys
where database_id = $1

-- name: set_service_encryption
update servicebroker.master_keys set by_service_master_key = $2, modify_date = clock_timestamp()
where database_id = $1

-- name: set_password_encryption
update servicebroker.master_keys set by_password = $2, more_passwords = $3, modify_date = clock_timestamp()
where database_id = $1

-- name: regenerate_master_key.update_master_keys
update servicebroker.master_keys set by_password = $2, by_service_master_key = $3, more_passwords = '{}',
key_guid = gen_random_uuid(), modify_date = clock_timestamp() where database_id = $1

-- name: regenerate_master_key.find_certificates
select certificate_id, private_key from servicebroker.certificates
where database_id = $1 and key_encryption = 'M' for update

-- name: regenerate_master_key.update_certificates
update servicebroker.certificates set private_key = $2,
key_encryption = case when $2::bytea is null then 'N' else 'M' end where certificate_id = $1

-- name: renew_session_keys.find_keys
select k.conversation_handle, k.first_key, k.second_key from servicebroker.conversation_keys k
join servicebroker.conversation_endpoints e using (conversation_handle) where e.database_id = $1
for update of k

-- name: renew_session_keys.delete_keys
delete from servicebroker.conversation_keys where conversation_handle = $1

-- name: renew_session_keys.update_keys
update servicebroker.conversation_keys set first_key = $2, second_key = $3
where conversation_handle = $1

-- name: drop_master_key.find_certificates
select name from servicebroker.certificates where database_id = $1 and key_encryption = 'M' limit 1

-- name: drop_master_key.delete_master_keys
delete from servicebroker.master_keys where database_id = $1 returning 1
