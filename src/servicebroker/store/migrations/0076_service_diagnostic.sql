-- The built-in service answers on the contract ServiceDiagnostic, too.
insert into servicebroker.service_contract_usages (database_id, service_id, service_contract_id)
select s.database_id, s.service_id, c.service_contract_id
  from servicebroker.services s
  join servicebroker.service_contracts c on c.database_id = s.database_id
 where s.name = 'http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker' and s.service_id < 65536
   and c.name = 'http://schemas.microsoft.com/SQL/ServiceBroker/ServiceDiagnostic'
on conflict do nothing;
