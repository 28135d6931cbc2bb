-- The statements of current_application.py.

-- name: find_application.find_message_types
select t.name, t.validation::text, s.name from servicebroker.message_types t
left join servicebroker.xml_schema_collections s using (xml_collection_id)
where t.database_id = $1 and t.message_type_id >= $2 order by t.name

-- name: find_application.find_contracts
select c.name, t.name, u.is_sent_by_initiator, u.is_sent_by_target from servicebroker.service_contracts c
join servicebroker.service_contract_message_usages u using (database_id, service_contract_id)
join servicebroker.message_types t using (database_id, message_type_id)
where database_id = $1 and service_contract_id >= $2 order by c.name, t.name

-- name: find_application.find_routes
select name, remote_service_name, broker_instance, address, mirror_address from servicebroker.routes
where database_id = $1 and lifetime is null and (name, address) <> ('AutoCreatedLocal', 'LOCAL')
order by name

-- name: find_application.find_users
select p.name, p.postgres_role, l.name from servicebroker.principals p
left join servicebroker.logins l using (login_id)
where database_id = $1 and principal_id >= $2 and not is_role order by p.name

-- name: queues
select case when lower(schema_name) = 'dbo' then q.name else schema_name || '.' || q.name end,
is_receive_enabled, is_retention_enabled, is_poison_message_handling_enabled, activation_procedure,
max_readers, is_activation_enabled, execute_as_principal_id, p.name from servicebroker.queues q
left join servicebroker.principals p on p.database_id = q.database_id
and p.principal_id = q.execute_as_principal_id
where q.database_id = $1 and queue_id >= $2 order by lower(q.name)

-- name: services
select s.name, case when lower(q.schema_name) = 'dbo' then q.name else q.schema_name || '.' || q.name end,
array(select c.name from servicebroker.service_contract_usages u
join servicebroker.service_contracts c using (database_id, service_contract_id)
where u.service_id = s.service_id order by c.name)
from servicebroker.services s join servicebroker.queues q using (queue_id)
where s.database_id = $1 and s.service_id >= $2 order by s.name

-- name: roles
select r.name, array(select p.name from servicebroker.role_members m
join servicebroker.principals p on (p.database_id, p.principal_id) = (m.database_id, m.member_id)
where (m.database_id, m.role_id) = (r.database_id, r.principal_id) order by p.name)
from servicebroker.principals r where r.database_id = $1 and r.principal_id >= $2 and r.is_role
order by r.name

-- name: rights
select g.name, r.class, r.permission, r.state::text, coalesce(s.name, t.name, c.name, o.name,
case when lower(q.schema_name) = 'dbo' then q.name else q.schema_name || '.' || q.name end)
from servicebroker.permissions r
join servicebroker.principals g on (g.database_id, g.principal_id) = (r.database_id, r.grantee_id)
left join servicebroker.services s on r.class = $2 and s.service_id = r.major_id
left join servicebroker.message_types t on r.class = $3
and (t.database_id, t.message_type_id) = (r.database_id, r.major_id)
left join servicebroker.service_contracts c on r.class = $4
and (c.database_id, c.service_contract_id) = (r.database_id, r.major_id)
left join servicebroker.routes o on r.class = $5 and o.route_id = r.major_id
left join servicebroker.queues q on r.class = $6 and q.queue_id = r.major_id
where r.database_id = $1 and r.permission <> 'CONNECT' order by 1, 2, 5, 3
