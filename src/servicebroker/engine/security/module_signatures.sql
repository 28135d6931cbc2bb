-- The statements of module_signatures.py.

-- name: add_signature
insert into servicebroker.module_signatures (module_id, thumbprint, is_counter, signature)
values ($1, $2, $3, $4) on conflict do nothing returning 1

-- name: drop_signature
delete from servicebroker.module_signatures where module_id = $1 and thumbprint = $2 and is_counter = $3
returning 1

-- name: forget_signatures
delete from servicebroker.module_signatures where module_id = $1

-- name: find_certificate_users
select principal_id from servicebroker.principals where database_id = $1
and certificate_thumbprint = any ($2) order by principal_id

-- name: find_logins
select name, login_id from servicebroker.logins where certificate_thumbprint = any ($1) order by login_id
