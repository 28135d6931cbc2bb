-- The built-in service answers on the contract ServiceEcho, and is told when a message comes for it.
insert into servicebroker.service_contract_usages (database_id, service_id, service_contract_id)
select s.database_id, s.service_id, c.service_contract_id
  from servicebroker.services s
  join servicebroker.service_contracts c on c.database_id = s.database_id
 where s.name = 'http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker' and s.service_id < 65536
   and c.name = 'http://schemas.microsoft.com/SQL/ServiceBroker/ServiceEcho'
on conflict do nothing;

create function servicebroker.ring_delivery() returns trigger language plpgsql as $$
begin
    perform pg_notify('servicebroker_delivery', '');
    return null;
end $$;

do $$
declare
    number integer;
begin
    for number in
        select queue_id from servicebroker.services
         where name = 'http://schemas.microsoft.com/SQL/ServiceBroker/ServiceBroker' and service_id < 65536
    loop
        execute format('create trigger arrival after insert on servicebroker.queue_%s '
                       'for each statement execute function servicebroker.ring_delivery()', number);
    end loop;
end $$;
