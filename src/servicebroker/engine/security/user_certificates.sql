-- The statements of user_certificates.py.

-- name: create_certificate
insert into servicebroker.certificates (database_id, owner_id, name, is_active_for_begin_dialog,
key_encryption, private_key, certificate, thumbprint, subject, issuer_name, serial_number, start_date,
expiry_date) values ($1, $2, $3, $4, $5::"char", $6, $7, $8, $9, $10, $11, $12, $13)
on conflict do nothing returning certificate_id

-- name: alter_certificate
update servicebroker.certificates set is_active_for_begin_dialog = $2,
key_encryption = $3::"char", private_key = $4 where certificate_id = $1

-- name: drop_certificate
delete from servicebroker.certificates where certificate_id = $1

-- name: check_unused
select exists (select from servicebroker.principals where database_id = $1 and certificate_thumbprint = $2),
exists (select from servicebroker.module_signatures s join servicebroker.tsql_modules m using (module_id)
where m.database_id = $1 and s.thumbprint = $2)
