-- The statements of known_brokers.py.

-- name: find_broker
select capabilities, ahead_until from servicebroker.known_brokers where certificate_id = $1 and broker = $2

-- name: save_broker
insert into servicebroker.known_brokers as known (certificate_id, broker, capabilities, ahead_until)
select c.certificate_id, $2, $3::text[], $4 from servicebroker.certificates c
where c.certificate_id = $1 and (exists (select from servicebroker.known_brokers k
where k.certificate_id = $1 and k.broker = $2) or (select count(*) from servicebroker.known_brokers k
where k.certificate_id = $1) < $5)
on conflict (certificate_id, broker) do update set
capabilities = array(select distinct unnest(known.capabilities || excluded.capabilities) order by 1),
ahead_until = greatest(known.ahead_until, excluded.ahead_until)
