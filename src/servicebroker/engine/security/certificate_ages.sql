-- The statements of certificate_ages.py.

-- name: find_used_certificates
select distinct on (d.name, p.name) d.name, p.name, c.name, c.private_key is not null, c.expiry_date
from servicebroker.certificates c join servicebroker.databases d using (database_id)
join servicebroker.principals p on p.database_id = c.database_id and p.principal_id = c.owner_id
where exists (select from servicebroker.services s
  where s.database_id = c.database_id and s.owner_id = c.owner_id)
or exists (select from servicebroker.remote_service_bindings b
  where b.database_id = c.database_id and b.remote_principal_id = c.owner_id)
or exists (select from servicebroker.permissions g where g.database_id = c.database_id
  and g.grantee_id = c.owner_id and g.permission in ('SEND', 'CONTROL') and g.state <> 'D')
order by d.name, p.name, c.is_active_for_begin_dialog and c.start_date <= $1 desc, c.expiry_date desc
