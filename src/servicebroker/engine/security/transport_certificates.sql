-- The statements of transport_certificates.py.

-- name: add_certificate
insert into servicebroker.transport_certificates (name, is_own, login_id, owner, by_password, instance_id,
certificate, thumbprint, subject, issuer_name, serial_number, start_date, expiry_date) values ($1, $2, $3,
coalesce('login ' || (select l.name from servicebroker.logins l where l.login_id = $3), $4),
$5, $6, $7, $8, $9, $10, $11, $12, $13) on conflict do nothing returning certificate_id

-- name: set_by_password
update servicebroker.transport_certificates set by_password = $2 where certificate_id = $1

-- name: drop_certificate.delete_certificates
delete from servicebroker.transport_certificates c where certificate_id = $1 and not exists (select from servicebroker.network_endpoints e where e.certificate_id = c.certificate_id) returning name

-- name: find_identity
select instance_id from servicebroker.instance
