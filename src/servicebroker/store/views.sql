-- The catalog views, with the names and columns of Service Broker. They show one broker database, which the setting
-- servicebroker.database names, or all if it is unset. The last column is the name of the row's broker database.
-- Each view runs with the rights of its reader (security_invoker). Without rights on the tables, a query fails.
-- Every migration recreates the views (store/migrations/catalog_views.py), also with other columns. Grants on a view, and
-- views of others that read it, survive that. A new column stands before the last one.

-- Messages from other instances that cannot be received yet: fragments are missing (then the body is null), or an
-- earlier message is. The view of each queue reads this one; as part of those views it would double the time to create
-- a queue.
create or replace view servicebroker.incomplete_messages with (security_invoker = true) as
select e.queue_id, e.priority, e.conversation_group_id, f.conversation_handle, f.message_sequence_number, e.service_id,
       e.service_contract_id, t.message_type_id, t.validation, min(f.enqueue_time) as message_enqueue_time,
       case when count(*) = min(f.fragments)
            then string_agg(f.message_body, ''::bytea order by f.fragment) end as message_body
  from servicebroker.conversation_endpoints e
  join servicebroker.arrivals a on a.conversation_handle = e.conversation_handle
  join servicebroker.arrived_fragments f
    on f.conversation_handle = e.conversation_handle and f.message_sequence_number >= a.receive_sequence
  left join servicebroker.message_types t on t.database_id = e.database_id and t.name = f.message_type_name
 group by e.conversation_handle, f.conversation_handle, f.message_sequence_number, t.database_id, t.message_type_id;

-- The rows of an unlogged table; none on a standby, where PostgreSQL refuses to read such tables.
create or replace function servicebroker.rows_here(kind anyelement) returns setof anyelement
language plpgsql stable as $$
begin
    if not pg_is_in_recovery() then
        return query execute format('select * from %s', pg_typeof(kind));
    end if;
end $$;

-- The sessions that wait in a RECEIVE, and queue monitors. A killed program leaves its row in the table for a while, so
-- rows without a session are left out.
create or replace function servicebroker.readers_here() returns setof servicebroker.waiting_readers
language sql stable as $$
    select * from servicebroker.rows_here(null::servicebroker.waiting_readers)
     where pid in (select pid from pg_catalog.pg_stat_activity)
$$;

create or replace view servicebroker.shown_databases with (security_invoker = true) as
select database_id, name as broker_database
  from servicebroker.databases
 where coalesce(lower(name) = lower(nullif(current_setting('servicebroker.database', true), '')), true);

-- The id that sys.schemas or sys.objects shows for a schema, table or module with a grant. Null if the object was
-- dropped, or if the role may not read the tables of T-SQL objects. Ids of other classes are returned unchanged.
create or replace function servicebroker.shown_number(class smallint, id integer) returns integer
language plpgsql stable as $$
begin
    if class = 3 and id <> 1 then
        return (select to_regnamespace(quote_ident(s.postgres_schema))::oid::bigint::integer
                  from servicebroker.tsql_schemas s where s.schema_id = id);
    elsif class = 1001 then
        return (select coalesce(
                    (select m.module_id from servicebroker.tsql_modules m
                      where m.database_id = o.database_id and lower(m.name) = o.postgres_name
                        and lower(d.name || '_' || m.schema_name) = o.postgres_schema limit 1),
                    to_regclass(format('%I.%I', o.postgres_schema, o.postgres_name))::oid::bigint::integer)
                  from servicebroker.tsql_objects o join servicebroker.databases d using (database_id)
                 where o.object_id = id);
    end if;
    return id;
exception when insufficient_privilege then
    return null;
end $$;

-- The number of messages of a queue by PostgreSQL's statistics, at the same cost for one message and for ten million.
-- It lags by about a second, and restarts from 0 after a crash of PostgreSQL.
create or replace function servicebroker.approximate_count(queue_id integer) returns bigint language sql stable
return pg_stat_get_live_tuples(to_regclass(format('servicebroker.queue_%s', queue_id)));

-- The database_id that views show: 1 to 4 for the system databases, as in SQL Server, and from 5 for the others.
create or replace function sys.shown_database_id(id integer, name text) returns integer language sql stable parallel safe
return case lower(name) when 'master' then 1 when 'tempdb' then 2 when 'model' then 3 when 'msdb' then 4
            else id + 4 - (select count(*)::integer from servicebroker.databases d where lower(d.name) = 'msdb' and d.database_id < id) end;

create or replace view sys.databases with (security_invoker = true) as
select d.name,
       sys.shown_database_id(d.database_id, d.name) as database_id,
       d.service_broker_guid,
       (d.is_broker_enabled or d.is_read_only and d.broker_when_writable)::integer::smallint as is_broker_enabled,
       d.is_honor_broker_priority_on::integer::smallint as is_honor_broker_priority_on,
       shown.broker_database
  from servicebroker.databases d
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.service_message_types with (security_invoker = true) as
select t.name,
       t.message_type_id,
       t.owner_id as principal_id,
       t.validation::text as validation,
       case t.validation when 'N' then 'NONE' when 'X' then 'XML' when 'E' then 'EMPTY' end as validation_desc,
       t.xml_collection_id,
       shown.broker_database
  from servicebroker.message_types t
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.message_type_xml_schema_collection_usages with (security_invoker = true) as
select t.message_type_id,
       t.xml_collection_id,
       shown.broker_database
  from servicebroker.message_types t
  join servicebroker.shown_databases shown using (database_id)
 where t.xml_collection_id is not null;

create or replace view sys.xml_schema_collections with (security_invoker = true) as
select c.xml_collection_id,
       space.oid::integer as schema_id,  -- null while there is no queue in that schema
       null::integer as principal_id,    -- null: owned by the schema's owner
       c.name,
       c.create_date,
       c.modify_date,
       shown.broker_database
  from servicebroker.xml_schema_collections c
  join servicebroker.shown_databases shown using (database_id)
  left join pg_namespace space on space.nspname = c.postgres_schema;

create or replace view sys.service_contracts with (security_invoker = true) as
select c.name,
       c.service_contract_id,
       c.owner_id as principal_id,
       shown.broker_database
  from servicebroker.service_contracts c
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.service_contract_message_usages with (security_invoker = true) as
select u.service_contract_id,
       u.message_type_id,
       u.is_sent_by_initiator::integer::smallint as is_sent_by_initiator,
       u.is_sent_by_target::integer::smallint as is_sent_by_target,
       shown.broker_database
  from servicebroker.service_contract_message_usages u
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.service_queues with (security_invoker = true) as
select q.name,
       q.queue_id as object_id,
       nullif(q.owner_id, 1) as principal_id,      -- null: dbo, as owner of the schema
       space.oid::integer as schema_id,            -- of the PostgreSQL schema where the queue can be read
       0 as parent_object_id,
       'SQ'::text as type,
       'SERVICE_QUEUE'::text as type_desc,
       q.create_date,
       q.modify_date,
       (q.queue_id < 65536)::integer::smallint as is_ms_shipped,
       0::smallint as is_published,
       0::smallint as is_schema_published,
       q.max_readers,
       q.activation_procedure,
       q.execute_as_principal_id,
       q.is_activation_enabled::integer::smallint as is_activation_enabled,
       q.is_receive_enabled::integer::smallint as is_receive_enabled,
       q.is_enqueue_enabled::integer::smallint as is_enqueue_enabled,
       q.is_retention_enabled::integer::smallint as is_retention_enabled,
       q.is_poison_message_handling_enabled::integer::smallint as is_poison_message_handling_enabled,
       shown.broker_database
  from servicebroker.queues q
  join servicebroker.shown_databases shown using (database_id)
  left join pg_namespace space on space.nspname = q.postgres_schema;

create or replace view sys.services with (security_invoker = true) as
select s.name,
       s.service_id,
       s.owner_id as principal_id,
       s.queue_id as service_queue_id,
       shown.broker_database
  from servicebroker.services s
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.service_queue_usages with (security_invoker = true) as
select s.service_id,
       s.queue_id as service_queue_id,
       shown.broker_database
  from servicebroker.services s
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.service_contract_usages with (security_invoker = true) as
select u.service_id,
       u.service_contract_id,
       shown.broker_database
  from servicebroker.service_contract_usages u
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.conversation_priorities with (security_invoker = true) as
select p.priority_id,
       p.name,
       p.service_contract_id,
       p.local_service_id,
       p.remote_service_name,
       p.priority,
       shown.broker_database
  from servicebroker.broker_priorities p
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.routes with (security_invoker = true) as
select r.name,
       r.route_id,
       r.owner_id as principal_id,
       r.remote_service_name,
       r.broker_instance,
       r.lifetime,
       r.address,
       r.mirror_address,
       shown.broker_database
  from servicebroker.routes r
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.conversation_groups with (security_invoker = true) as
select g.conversation_group_id,
       g.service_id,
       (g.service_id < 65536)::integer::smallint as is_system,
       shown.broker_database
  from servicebroker.conversation_groups g
  join servicebroker.services s using (service_id)
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.conversation_endpoints with (security_invoker = true) as
select e.conversation_handle,
       e.conversation_id,
       e.is_initiator::integer::smallint as is_initiator,
       e.service_contract_id,
       e.conversation_group_id,
       e.service_id,
       e.lifetime,
       e.state,
       case e.state
            when 'SO' then 'STARTED_OUTBOUND'
            when 'SI' then 'STARTED_INBOUND'
            when 'CO' then 'CONVERSING'
            when 'DI' then 'DISCONNECTED_INBOUND'
            when 'DO' then 'DISCONNECTED_OUTBOUND'
            when 'ER' then 'ERROR'
            when 'CD' then 'CLOSED'
       end as state_desc,
       e.far_service,
       e.far_broker_instance,
       coalesce(keys.principal_id, e.principal_id, 0) as principal_id,  -- 0: no certificate is used
       coalesce(keys.far_principal_id, e.far_principal_id, 0) as far_principal_id,
       coalesce(case when e.is_initiator or e.security = 'A' then keys.first_key_id else keys.second_key_id end,
                '00000000-0000-0000-0000-000000000000') as outbound_session_key_identifier,
       coalesce(case when e.is_initiator and e.security = 'F' then keys.second_key_id else keys.first_key_id end,
                '00000000-0000-0000-0000-000000000000') as inbound_session_key_identifier,
       coalesce(e.security_timestamp, '1900-01-01 00:00+00') as security_timestamp,
       coalesce(e.dialog_timer, '1900-01-01 00:00+00') as dialog_timer,
       e.send_sequence,
       substring(xid8send(e.last_stamp) from 3) as last_send_tran_id,
       case e.state  -- an EndDialog is the last message of a side
            when 'DI' then expected.receive_sequence - 1
            when 'DO' then e.send_sequence - 1
            else -1
       end as end_dialog_sequence,
       expected.receive_sequence,
       0 as receive_sequence_frag,
       0::bigint as system_sequence,
       -1::bigint as first_out_of_order_sequence,
       -1::bigint as last_out_of_order_sequence,
       0 as last_out_of_order_frag,
       (e.service_id < 65536)::integer::smallint as is_system,
       e.priority,
       shown.broker_database
  from servicebroker.conversation_endpoints e
  join servicebroker.shown_databases shown using (database_id)
  left join servicebroker.arrivals on arrivals.conversation_handle = e.conversation_handle
  left join servicebroker.conversation_keys keys on keys.conversation_handle = e.conversation_handle
  left join servicebroker.conversation_endpoints peer
    on peer.conversation_id = e.conversation_id and peer.is_initiator = not e.is_initiator
 cross join lateral (
       -- the number of messages that have arrived: for a peer in this instance, those sent without those that still
       -- wait
       select coalesce(
                  arrivals.receive_sequence,
                  (select min(t.message_sequence_number) from servicebroker.transmission_queue t
                    where t.conversation_handle = peer.conversation_handle),
                  peer.send_sequence, e.receive_sequence, 0) as receive_sequence) expected;

create or replace view sys.transmission_queue with (security_invoker = true) as
select t.conversation_handle,
       e.far_service as to_service_name,
       e.far_broker_instance as to_broker_instance,
       s.name as from_service_name,
       c.name as service_contract_name,
       t.enqueue_time,
       t.message_sequence_number,
       t.message_type_name,
       t.is_conversation_error::integer::smallint as is_conversation_error,
       t.is_end_of_dialog::integer::smallint as is_end_of_dialog,
       case when t.is_shared then (select b.body from servicebroker.shared_bodies b
                                     join servicebroker.shared_body_readers r using (body_id)
                                    where r.reader = t.message_body)
            else t.message_body end as message_body,
       t.transmission_status,
       e.priority,
       shown.broker_database
  from servicebroker.transmission_queue t
  join servicebroker.conversation_endpoints e using (conversation_handle)
  join servicebroker.shown_databases shown using (database_id)
  left join servicebroker.services s using (service_id)
  left join servicebroker.service_contracts c
    on c.database_id = e.database_id and c.service_contract_id = e.service_contract_id
 union all  -- messages from other instances for a queue that is off
select f.conversation_handle,
       s.name,
       d.service_broker_guid::text,
       e.far_service,
       c.name,
       min(f.enqueue_time),
       f.message_sequence_number,
       min(f.message_type_name),
       (min(f.content) = 2)::integer::smallint,
       (min(f.content) = 1)::integer::smallint,
       string_agg(f.message_body, ''::bytea order by f.fragment),
       'Target queue is busy; message(s) queued for delivery.',
       e.priority,
       shown.broker_database
  from servicebroker.arrived_fragments f
  join servicebroker.arrivals a on a.conversation_handle = f.conversation_handle
   and f.message_sequence_number < a.receive_sequence
  join servicebroker.conversation_endpoints e on e.conversation_handle = f.conversation_handle
  join servicebroker.databases d on d.database_id = e.database_id
  join servicebroker.shown_databases shown on shown.database_id = e.database_id
  left join servicebroker.services s on s.service_id = e.service_id
  left join servicebroker.service_contracts c
    on c.database_id = e.database_id and c.service_contract_id = e.service_contract_id
 group by f.conversation_handle, f.message_sequence_number, s.name, d.service_broker_guid, e.far_service, c.name,
          e.priority, shown.broker_database;

create or replace view sys.database_principals with (security_invoker = true) as
select p.name,
       p.principal_id,
       case when p.is_role then 'R' when p.certificate_thumbprint is not null then 'C' else 'S' end as type,
       case when p.is_role then 'DATABASE_ROLE' when p.certificate_thumbprint is not null then 'CERTIFICATE_MAPPED_USER'
            else 'SQL_USER' end as type_desc,
       case when not p.is_role then 'dbo' end as default_schema_name,
       p.create_date,
       p.create_date as modify_date,
       case when p.is_role then 1 end as owning_principal_id,
       (p.principal_id between 16384 and 16399)::integer::smallint as is_fixed_role,
       p.postgres_role,
       shown.broker_database
  from servicebroker.principals p
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.crypt_properties with (security_invoker = true) as
select 1::smallint as class,
       'OBJECT_OR_COLUMN'::text as class_desc,
       s.module_id as major_id,
       s.thumbprint,
       case when s.is_counter then 'CPVC' else 'SPVC' end::text as crypt_type,
       case when s.is_counter then 'COUNTER SIGNATURE BY CERTIFICATE' else 'SIGNATURE BY CERTIFICATE' end::text as crypt_type_desc,
       s.signature as crypt_property,
       shown.broker_database
  from servicebroker.module_signatures s
  join servicebroker.tsql_modules m using (module_id)
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.database_role_members with (security_invoker = true) as
select m.role_id as role_principal_id,
       m.member_id as member_principal_id,
       shown.broker_database
  from servicebroker.role_members m
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.database_permissions with (security_invoker = true) as
select case p.class when 1001 then 1 else p.class end::smallint as class,
       case p.class when 0 then 'DATABASE' when 1 then 'OBJECT_OR_COLUMN' when 3 then 'SCHEMA'
                    when 4 then 'DATABASE_PRINCIPAL' when 15 then 'MESSAGE_TYPE'
                    when 16 then 'SERVICE_CONTRACT' when 17 then 'SERVICE'
                    when 18 then 'REMOTE_SERVICE_BINDING' when 19 then 'ROUTE' when 25 then 'CERTIFICATE'
                    when 1001 then 'OBJECT_OR_COLUMN' end as class_desc,
       servicebroker.shown_number(p.class, p.major_id) as major_id,
       0 as minor_id,
       p.grantee_id as grantee_principal_id,
       p.grantor_id as grantor_principal_id,
       case p.permission
            when 'ALTER' then 'AL' when 'CONTROL' then 'CL' when 'CONNECT' then 'CO' when 'RECEIVE' then 'RC'
            when 'REFERENCES' then 'RF' when 'SEND' then 'SN' when 'TAKE OWNERSHIP' then 'TO'
            when 'VIEW DEFINITION' then 'VW' when 'IMPERSONATE' then 'IM'
            when 'SELECT' then 'SL' when 'INSERT' then 'IN' when 'UPDATE' then 'UP' when 'DELETE' then 'DL'
            when 'EXECUTE' then 'EX'
            when 'ALTER ANY CERTIFICATE' then 'ALCF' when 'ALTER ANY REMOTE SERVICE BINDING' then 'ALSB'
            when 'CREATE CERTIFICATE' then 'CRCF' when 'CREATE REMOTE SERVICE BINDING' then 'CRSB'
            when 'ALTER ANY CONTRACT' then 'ALSC' when 'ALTER ANY MESSAGE TYPE' then 'ALMT'
            when 'ALTER ANY ROLE' then 'ALRL' when 'ALTER ANY ROUTE' then 'ALRT'
            when 'ALTER ANY SCHEMA' then 'ALSM'
            when 'ALTER ANY SERVICE' then 'ALSV' when 'ALTER ANY USER' then 'ALUS'
            when 'CREATE CONTRACT' then 'CRSC' when 'CREATE MESSAGE TYPE' then 'CRMT'
            when 'CREATE QUEUE' then 'CRQU' when 'CREATE ROLE' then 'CRRL' when 'CREATE ROUTE' then 'CRRT'
            when 'CREATE SERVICE' then 'CRSV' when 'CREATE SCHEMA' then 'CRSM'
            when 'CREATE XML SCHEMA COLLECTION' then 'CRXS' when 'CREATE TABLE' then 'CRTB'
            when 'CREATE VIEW' then 'CRVW' when 'CREATE PROCEDURE' then 'CRPR' when 'CREATE FUNCTION' then 'CRFN'
            when 'CREATE TYPE' then 'CRTY' when 'CREATE SYNONYM' then 'CRSN'
       end as type,
       p.permission as permission_name,
       p.state::text as state,
       case p.state when 'G' then 'GRANT' when 'W' then 'GRANT_WITH_GRANT_OPTION' when 'D' then 'DENY' end as state_desc,
       shown.broker_database
  from servicebroker.permissions p
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.certificates with (security_invoker = true) as
select c.name,
       c.certificate_id,
       c.owner_id as principal_id,
       case c.key_encryption when 'N' then 'NA' when 'M' then 'MK' else 'PW' end as pvt_key_encryption_type,
       case c.key_encryption when 'N' then 'NO_PRIVATE_KEY' when 'M' then 'ENCRYPTED_BY_MASTER_KEY'
                             else 'ENCRYPTED_BY_PASSWORD' end as pvt_key_encryption_type_desc,
       c.is_active_for_begin_dialog::integer::smallint as is_active_for_begin_dialog,
       c.issuer_name,
       c.serial_number as cert_serial_number,
       c.subject,
       c.expiry_date,
       c.start_date,
       c.thumbprint,
       shown.broker_database
  from servicebroker.certificates c
  join servicebroker.shown_databases shown using (database_id)
 union all  -- transport certificates, which T-SQL creates in master; their private keys are files of the instance
select c.name,
       c.certificate_id,
       1,
       case when c.by_password then 'PW' when c.is_own then 'MK' else 'NA' end,
       case when c.by_password then 'ENCRYPTED_BY_PASSWORD' when c.is_own then 'ENCRYPTED_BY_MASTER_KEY'
            else 'NO_PRIVATE_KEY' end,
       0::smallint,
       c.issuer_name,
       c.serial_number,
       c.subject,
       c.expiry_date,
       c.start_date,
       c.thumbprint,
       shown.broker_database
  from servicebroker.transport_certificates c
  join servicebroker.shown_databases shown on lower(shown.broker_database) = 'master';

create or replace view sys.remote_service_bindings with (security_invoker = true) as
select b.name,
       b.remote_service_binding_id,
       b.owner_id as principal_id,
       b.remote_service_name,
       0 as service_contract_id,  -- every contract
       b.remote_principal_id,
       b.is_anonymous_on::integer::smallint as is_anonymous_on,
       shown.broker_database
  from servicebroker.remote_service_bindings b
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.symmetric_keys with (security_invoker = true) as
select '##MS_DatabaseMasterKey##'::text as name,
       1 as principal_id,
       101 as symmetric_key_id,
       256 as key_length,
       'A3'::text as key_algorithm,
       'AES_256'::text as algorithm_desc,
       k.create_date,
       k.modify_date,
       k.key_guid,
       shown.broker_database
  from servicebroker.master_keys k
  join servicebroker.shown_databases shown using (database_id);

create or replace view sys.key_encryptions with (security_invoker = true) as
select 101 as key_id,
       null::bytea as thumbprint,
       encryption.crypt_type,
       encryption.crypt_type_desc,
       shown.broker_database
  from servicebroker.master_keys k
  join servicebroker.shown_databases shown using (database_id)
 cross join (values ('ESKP', 'ENCRYPTION BY PASSWORD'),
                    ('ESKM', 'ENCRYPTION BY MASTER KEY')) encryption (crypt_type, crypt_type_desc)
 where encryption.crypt_type = 'ESKP' or k.by_service_master_key is not null;

-- Objects of the instance, in no broker database.

create or replace view sys.server_principals with (security_invoker = true) as
select l.name,
       l.login_id as principal_id,
       case when l.login_id = 2 then 'R' when l.is_windows then 'U' else 'S' end as type,
       case when l.login_id = 2 then 'SERVER_ROLE' when l.is_windows then 'WINDOWS_LOGIN' else 'SQL_LOGIN' end
           as type_desc,
       l.create_date,
       l.is_disabled
  from servicebroker.logins l;

create or replace view sys.server_permissions with (security_invoker = true) as
select 105::smallint as class,
       'ENDPOINT'::text as class_desc,
       p.endpoint_id as major_id,
       0 as minor_id,
       p.login_id as grantee_principal_id,
       1 as grantor_principal_id,
       'CO'::text as type,
       'CONNECT'::text as permission_name,
       p.state::text as state,
       case p.state when 'G' then 'GRANT' else 'DENY' end as state_desc
  from servicebroker.endpoint_permissions p
 union all
select p.class,
       case p.class when 100 then 'SERVER' else 'SERVER_PRINCIPAL' end,
       p.major_id,
       0,
       p.grantee_id,
       1,
       case p.permission
            when 'ALTER' then 'AL' when 'CONTROL' then 'CL' when 'IMPERSONATE' then 'IM' when 'VIEW DEFINITION' then 'VW'
            when 'CONTROL SERVER' then 'CL' when 'ALTER ANY DATABASE' then 'ALDB' when 'ALTER ANY ENDPOINT' then 'ALHE'
            when 'ALTER ANY LOGIN' then 'ALLG' when 'CREATE ANY DATABASE' then 'CRDB' when 'CREATE ENDPOINT' then 'CRHE'
            when 'IMPERSONATE ANY LOGIN' then 'IAL' end,
       p.permission,
       p.state::text,
       case p.state when 'G' then 'GRANT' else 'DENY' end
  from servicebroker.server_permissions p;

create or replace view sys.endpoints with (security_invoker = true) as
select e.name,
       e.endpoint_id,
       1 as principal_id,
       2::smallint as protocol,
       'TCP'::text as protocol_desc,
       3::smallint as type,
       'SERVICE_BROKER'::text as type_desc,
       e.state,
       (array['STARTED', 'STOPPED', 'DISABLED'])[e.state + 1] as state_desc,
       0::smallint as is_admin_endpoint
  from servicebroker.network_endpoints e;

create or replace view sys.tcp_endpoints with (security_invoker = true) as
select e.*,
       n.port,
       0::smallint as is_dynamic_port,
       n.ip_address  -- null: ALL
  from sys.endpoints e
  join servicebroker.network_endpoints n using (endpoint_id);

create or replace view sys.service_broker_endpoints with (security_invoker = true) as
select e.*,
       n.is_message_forwarding_enabled::integer::smallint as is_message_forwarding_enabled,
       n.message_forwarding_size,
       n.connection_auth,
       (array['NTLM', 'KERBEROS', 'NEGOTIATE', 'CERTIFICATE',
              'NTLM, CERTIFICATE', 'KERBEROS, CERTIFICATE', 'NEGOTIATE, CERTIFICATE',
              'CERTIFICATE, NTLM', 'CERTIFICATE, KERBEROS', 'CERTIFICATE, NEGOTIATE'])[n.connection_auth]
           as connection_auth_desc,
       case when n.connection_auth < 4 then 0  -- no certificate is required
            else coalesce(n.certificate_id, (  -- the oldest own certificate that is valid now
                 select min(c.certificate_id) from servicebroker.transport_certificates c
                  where c.is_own and not c.by_password and c.start_date <= now() and now() < c.expiry_date))
       end as certificate_id,
       case n.encryption when 'DISABLED' then 0 when 'REQUIRED' then 2 else 4 end::smallint as encryption_algorithm,
       case n.encryption when 'DISABLED' then 'NONE' when 'REQUIRED' then 'AES' else 'NONE, AES' end
           as encryption_algorithm_desc
  from sys.endpoints e
  join servicebroker.network_endpoints n using (endpoint_id);

-- Empty as soon as the daemon that wrote it has lost the lease of the instance (BROKER in store/locks.py).
create or replace view sys.dm_broker_forwarded_messages with (security_invoker = true) as
select m.conversation_id,
       m.is_initiator::integer::smallint as is_initiator,
       m.to_service_name,
       m.to_broker_instance::text as to_broker_instance,
       m.from_service_name,
       m.from_broker_instance::text as from_broker_instance,
       m.adjacent_broker_address,
       m.message_sequence_number,
       m.message_fragment_number,
       m.hops_remaining,
       m.time_to_live,
       m.time_consumed,
       m.message_id
  from servicebroker.rows_here(null::servicebroker.forwarded_messages) m
 where exists (select from pg_locks l
                where l.locktype = 'advisory' and l.granted and l.pid = m.pid
                  and l.classid::bigint = 1396834323 and l.objid::bigint = 0);

create or replace view sys.dm_broker_connections with (security_invoker = true) as
select c.connection_id,
       null::uuid as transport_stream_id,
       c.state,
       (array['NEW', 'CONNECTING', 'CONNECTED', 'LOGGED_IN', 'CLOSED'])[c.state] as state_desc,
       c.connect_time,
       c.login_time,
       c.authentication as authentication_method,
       c.principal_name,
       c.remote_address as remote_user_name,  -- peers have no user name: their address
       c.last_activity_time,
       c.is_accept::integer::smallint as is_accept,
       c.login_state,
       case c.login_state when 0 then 'INITIAL' when 1 then 'WAIT LOGIN NEGOTIATE' when 11 then 'WAIT ARBITRATION'
            when 12 then 'ONLINE' when 13 then 'ERROR' end as login_state_desc,
       c.peer_certificate_id,
       case when c.is_encrypted then 3 else 0 end::smallint as encryption_algorithm,
       case when c.is_encrypted then 'AES' else 'NONE' end as encryption_algorithm_desc,
       1::smallint as receives_posted,
       c.is_receive_flow_controlled::integer::smallint as is_receive_flow_controlled,
       c.is_send_flow_controlled::integer::smallint as sends_posted,
       c.is_send_flow_controlled::integer::smallint as is_send_flow_controlled,
       c.total_bytes_sent,
       c.total_bytes_received,
       c.total_fragments_sent,
       c.total_fragments_received,
       c.total_sends,
       c.total_receives,
       c.peer_arbitration_id
  from servicebroker.rows_here(null::servicebroker.broker_connections) c
 where exists (select from pg_locks l
                where l.locktype = 'advisory' and l.granted and l.pid = c.pid
                  and l.classid::bigint = 1396834323 and l.objid::bigint = 0);

-- Activation. A row exists as long as the session that wrote it, which holds the lease of the queue or runs the task.

create or replace view sys.dm_broker_queue_monitors with (security_invoker = true) as
select sys.shown_database_id(q.database_id, shown.broker_database) as database_id,
       m.queue_id,
       m.state,
       m.last_empty_rowset_time,
       m.last_activated_time,
       m.tasks_waiting,
       shown.broker_database
  from servicebroker.rows_here(null::servicebroker.queue_monitors) m
  join servicebroker.queues q using (queue_id)
  join servicebroker.shown_databases shown using (database_id)
 where exists (select from pg_locks l
                where l.locktype = 'advisory' and l.granted and l.classid::bigint = 1396834324
                  and l.objid::bigint = m.queue_id
                  and l.database = (select oid from pg_database where datname = current_database()));

create or replace view sys.dm_broker_activated_tasks with (security_invoker = true) as
select t.spid,
       sys.shown_database_id(q.database_id, shown.broker_database) as database_id,
       t.queue_id,
       t.procedure_name,
       t.execute_as,
       shown.broker_database
  from servicebroker.rows_here(null::servicebroker.activated_tasks) t
  join servicebroker.queues q using (queue_id)
  join servicebroker.shown_databases shown using (database_id)
 where exists (select from pg_stat_activity a where a.pid = t.spid);

create or replace view sys.dm_exec_sessions with (security_invoker = true) as
select a.pid as session_id,
       a.backend_start as login_time,
       a.client_hostname as host_name,
       a.application_name as program_name,
       a.usename::text as login_name,
       case when a.state = 'active' then 'running' else 'sleeping' end as status,
       (t.spid is null)::integer::smallint as is_user_process,
       (a.xact_start is not null)::integer as open_transaction_count
  from pg_stat_activity a
  left join servicebroker.rows_here(null::servicebroker.activated_tasks) t on t.spid = a.pid
 where a.datname = current_database() and a.backend_type = 'client backend';

create or replace view sys.event_notifications with (security_invoker = true) as
select n.name,
       n.object_id,
       (n.queue_id is not null)::integer::smallint as parent_class,
       case when n.queue_id is null then 'DATABASE' else 'OBJECT_OR_COLUMN' end::text as parent_class_desc,
       coalesce(n.queue_id, 0) as parent_id,
       n.create_date,
       n.create_date as modify_date,
       0::smallint as is_ms_shipped,
       n.owner_id as principal_id,
       n.service_name,
       n.broker_instance,
       n.creator as creator_login,
       n.is_fan_in::integer::smallint as is_fan_in,
       shown.broker_database
  from servicebroker.event_notifications n
  join servicebroker.shown_databases shown using (database_id)
 where not n.is_of_server;

create or replace view sys.server_event_notifications with (security_invoker = true) as
select n.name,
       n.object_id,
       100::smallint as parent_class,
       'SERVER'::text as parent_class_desc,
       0 as parent_id,
       n.create_date,
       n.create_date as modify_date,
       n.service_name,
       n.broker_instance,
       n.creator as creator_login,
       n.owner_id as principal_id,
       n.is_fan_in::integer::smallint as is_fan_in
  from servicebroker.event_notifications n
 where n.is_of_server;

create or replace view sys.server_events with (security_invoker = true) as
select n.object_id,
       e.type_desc
  from servicebroker.event_notifications n
 cross join unnest(n.events) as e (type_desc)
 where n.is_of_server;

create or replace view sys.events with (security_invoker = true) as
select n.object_id,
       e.type_desc,
       shown.broker_database
  from servicebroker.event_notifications n
  join servicebroker.shown_databases shown using (database_id)
 cross join unnest(n.events) as e (type_desc)
 where not n.is_of_server;

-- The broker's counters that are in the database; those of a daemon are in its /metrics. cntr_type says whether the
-- value is a gauge, or a total to be compared with an earlier one.

create or replace view sys.dm_os_performance_counters with (security_invoker = true) as
select 'Broker Statistics'::text as object_name,
       c.counter_name,
       ''::text as instance_name,
       (c.sent_in_sql + coalesce((select t.value from servicebroker.totals t where t.counter = c.counter_name), 0))::bigint
           as cntr_value,
       65792 as cntr_type
  from (values ('SQL SEND Total', coalesce(pg_sequence_last_value('servicebroker.sent_in_sql'), 0)),
               ('SQL RECEIVE Total', 0), ('Broker Transaction Rollbacks', 0)) as c (counter_name, sent_in_sql)
union all
select 'Broker Statistics', 'Enqueued P' || p.priority || ' Messages/sec', '',
       coalesce((select t.value from servicebroker.totals t
                  where t.counter = 'Enqueued P' || p.priority || ' Messages Total'), 0), 272696576
  from generate_series(1, 10) as p (priority)
union all
select 'Broker Statistics', 'Enqueued Messages Total', '', coalesce(sum(s.n_tup_ins), 0)::bigint, 65792
  from servicebroker.queues q
  join pg_stat_user_tables s on s.relid = to_regclass('servicebroker.queue_' || q.queue_id)
 where q.queue_id >= 65536
union all
select 'Broker Statistics', c.counter_name, '', c.cntr_value, 272696576
  from pg_stat_user_tables s
 cross join lateral (values ('Enqueued TransmissionQ Msgs/sec', s.n_tup_ins),
                            ('Dequeued TransmissionQ Msgs/sec', s.n_tup_del)) as c (counter_name, cntr_value)
 where s.relid = to_regclass('servicebroker.transmission_queue')
union all
select 'Broker Activation', 'Tasks Running', shown.broker_database, count(t.spid), 65792
  from servicebroker.shown_databases shown
  left join sys.dm_broker_activated_tasks t using (broker_database)
 group by shown.broker_database
union all
select 'Broker/DBM Transport', 'Open Connection Count', '', count(*), 65792
  from sys.dm_broker_connections;
