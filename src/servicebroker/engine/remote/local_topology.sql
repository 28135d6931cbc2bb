-- The statements of local_topology.py.

-- name: find_instance
select instance_id from servicebroker.instance

-- name: find_topology
select d.database_id, d.routes_version, d.service_broker_guid::text, d.is_broker_enabled,
lower(d.name) = 'msdb', array(select r.service_name from servicebroker.route_requests r
  where r.database_id = d.database_id and r.about = 'Route' and r.service_name = any ($1)
  and (r.answered is null or r.answered > $3)),
random(), coalesce(n.ip_address, ''), n.port, n.is_message_forwarding_enabled,
s.name, s.service_id, s.queue_id, s.database_id, q.is_enqueue_enabled,
c.service_contract_id, u.service_id is not null,
exists (select from servicebroker.remote_service_bindings b
  where b.database_id = $4 and b.remote_service_name = s.name), q.catalog_version
from servicebroker.databases d
left join servicebroker.network_endpoints n on n.state <> 1
-- STOPPED
left join (servicebroker.services s join servicebroker.queues q on q.queue_id = s.queue_id)
  on s.database_id = d.database_id and s.name = any ($1)
left join servicebroker.service_contracts c on c.database_id = s.database_id and c.name = $2
left join servicebroker.service_contract_usages u
  on u.service_id = s.service_id and u.service_contract_id = c.service_contract_id
