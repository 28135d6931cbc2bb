-- The audit: triggers that write each change of a definition into servicebroker.audit. Every definition changes a row
-- of these tables, whether it comes from Python, T-SQL, the command line or plain SQL. A row of the audit has the names
-- of related objects, too, beside their ids.

create or replace function servicebroker.audited(found jsonb) returns jsonb language sql stable
set search_path = pg_catalog, pg_temp as $$
    -- without keys, thumbprints, passwords and internal columns; a text is cut at 4,000 characters
    select jsonb_object_agg(key, case
               when jsonb_typeof(value) <> 'string' then value
               when value #>> '{}' like '\\x%' then '"***"'::jsonb
               else to_jsonb(left(regexp_replace(value #>> '{}', '(password\s*=\s*N?|://[^:/@\s]*:)(''([^'']|'''')*''|[^@\s'']+(?=@))',
                                                 '\1***', 'gi'), 4000)) end)
      from jsonb_each(found) where value <> 'null'::jsonb and key !~ '(version|_changes|_date|^postgres_(schema|name))$'
       and key not in ('is_monitored', 'keeps_retained', 'notifies_activation', 'conversation_handle', 'fingerprint')
$$;

create or replace function servicebroker.audited_names(found jsonb) returns jsonb language sql stable
set search_path = pg_catalog, pg_temp as $$
    select jsonb_strip_nulls(jsonb_build_object(
        'message_type', (select name from servicebroker.message_types
                          where database_id = (found->>'database_id')::integer
                            and message_type_id = (found->>'message_type_id')::integer),
        'contract', (select name from servicebroker.service_contracts
                      where database_id = (found->>'database_id')::integer
                        and service_contract_id = (found->>'service_contract_id')::integer),
        'service', (select name from servicebroker.services
                     where service_id = coalesce(found->>'service_id', found->>'local_service_id')::integer),
        'queue', (select schema_name || '.' || name from servicebroker.queues where queue_id = (found->>'queue_id')::integer),
        'role', (select name from servicebroker.principals
                  where database_id = (found->>'database_id')::integer and principal_id = (found->>'role_id')::integer),
        'member', (select name from servicebroker.principals
                    where database_id = (found->>'database_id')::integer and principal_id = (found->>'member_id')::integer),
        'grantee', case when found ? 'database_id'
                        then (select name from servicebroker.principals where database_id = (found->>'database_id')::integer
                                 and principal_id = (found->>'grantee_id')::integer)
                        else (select name from servicebroker.logins where login_id = (found->>'grantee_id')::integer) end,
        'login', (select name from servicebroker.logins where login_id = (found->>'login_id')::integer),
        'owner', (select name from servicebroker.principals
                   where database_id = (found->>'database_id')::integer and principal_id = (found->>'owner_id')::integer)))
$$;

-- The trigger. First argument: the kind of object in a row of the table. Second: the id column, by which built-in
-- objects, with low ids, are left out.
create or replace function servicebroker.note_definition() returns trigger language plpgsql
security definer set search_path = pg_catalog, pg_temp as $$
declare
    was jsonb := case when tg_op <> 'INSERT' then to_jsonb(old) end;
    becomes jsonb := case when tg_op <> 'DELETE' then to_jsonb(new) end;
    whole jsonb := coalesce(becomes, was);
    names jsonb;
    subject text;
begin
    if tg_nargs > 1 and (whole->>tg_argv[1])::bigint < {first_user_id} then
        return null;
    end if;
    names := servicebroker.audited_names(whole);
    subject := coalesce(whole->>'schema_name' || '.' || (whole->>'name'), whole->>'name',
                        nullif(concat_ws(' ', whole->>'permission', names->>'grantee', names->>'member', names->>'role',
                                         names->>'login', names->>'service', names->>'contract', names->>'message_type',
                                         whole->>'postgres_role', whole->>'owner'), ''), '');
    was := servicebroker.audited(was);
    becomes := servicebroker.audited(becomes);
    if tg_op = 'UPDATE' then
        select jsonb_object_agg(w.key, w.value) filter (where w.value is not null),
               jsonb_object_agg(w.key, w.become) filter (where w.become is not null)
          into was, becomes
          from (select key, o.value, n.value as become from jsonb_each(was) o full join jsonb_each(becomes) n using (key)
                 where o.value is distinct from n.value) w;
        was := coalesce(was, '{}');
        becomes := coalesce(becomes, '{}');
    elsif tg_op = 'INSERT' then
        becomes := becomes || names;
    else
        was := was || names;
    end if;
    insert into servicebroker.audit (principal, face, act, broker_database, subject, before, after)
    values (coalesce(current_setting('servicebroker.principal', true), ''),
            coalesce(current_setting('servicebroker.face', true), ''),
            case tg_op when 'INSERT' then 'CREATE ' when 'UPDATE' then 'ALTER ' else 'DROP ' end || tg_argv[0],
            coalesce(case when tg_argv[0] = 'DATABASE' then whole->>'name' end,
                     (select d.name from servicebroker.databases d where d.database_id = (whole->>'database_id')::integer), ''),
            subject, was, becomes);
    return null;
end $$;

do $$
declare
    kind record;
begin
    for kind in select * from (values
        ('databases', 'DATABASE', 'name, service_broker_guid, is_broker_enabled, is_honor_broker_priority_on, is_trustworthy_on', null),
        ('message_types', 'MESSAGE TYPE', '', 'message_type_id'),
        ('service_contracts', 'CONTRACT', '', 'service_contract_id'),
        ('service_contract_message_usages', 'MESSAGE TYPE OF CONTRACT', '', 'service_contract_id'),
        -- without columns that the instance itself writes, such as versions and the state of monitors
        ('queues', 'QUEUE', 'schema_name, name, is_receive_enabled, is_enqueue_enabled, is_retention_enabled, '
         'is_poison_message_handling_enabled, is_activation_enabled, activation_procedure, max_readers, '
         'execute_as_principal_id, owner_id', 'queue_id'),
        ('services', 'SERVICE', '', 'service_id'),
        ('service_contract_usages', 'CONTRACT OF SERVICE', '', 'service_id'),
        ('broker_priorities', 'BROKER PRIORITY', '', null),
        ('routes', 'ROUTE', '', null),
        ('remote_service_bindings', 'REMOTE SERVICE BINDING', '', null),
        ('event_notifications', 'EVENT NOTIFICATION', 'name, owner_id', null),
        ('xml_schema_collections', 'XML SCHEMA COLLECTION', 'name, schema_name', null),
        ('xml_schemas', 'XML SCHEMA', '', null),
        ('principals', 'PRINCIPAL', '', 'principal_id'),
        ('role_members', 'ROLE MEMBER', '', null),
        ('permissions', 'PERMISSION', '', null),
        ('logins', 'LOGIN', '', null),
        ('server_permissions', 'SERVER PERMISSION', '', null),
        ('endpoint_permissions', 'ENDPOINT PERMISSION', '', null),
        ('network_endpoints', 'ENDPOINT', '', null),
        ('transport_certificates', 'TRANSPORT CERTIFICATE', 'name, login_id, by_password', null),
        ('accepted_peers', 'ACCEPTED PEER', '', null),
        ('peer_budgets', 'PEER BUDGET', '', null),
        ('certificates', 'CERTIFICATE', '', null),
        ('master_keys', 'MASTER KEY', '', null),
        ('fenced_roles', 'RESTRICTED ROLE', '', null),
        ('tsql_schemas', 'SCHEMA', '', null),
        ('tsql_types', 'TYPE', '', null),
        ('tsql_modules', 'MODULE', '', null)
    ) k (name, word, columns, number) loop
        execute format('create or replace trigger noted after insert or delete or update%s on servicebroker.%I for each row '
                       'execute function servicebroker.note_definition(%L%s)',
                       case when kind.columns <> '' then ' of ' || kind.columns else '' end, kind.name, kind.word,
                       case when kind.number is not null then format(', %L', kind.number) else '' end);
    end loop;
end $$;

create or replace function servicebroker.keep_audit() returns trigger language plpgsql set search_path = pg_catalog, pg_temp as $$
begin
    if tg_op <> 'DELETE' or old.at > clock_timestamp() - {audit_kept} then
        raise exception 'Rows of servicebroker.audit are added, and go by age: nobody changes or removes them.';
    end if;
    return old;
end $$;
create or replace trigger kept before update or delete on servicebroker.audit
    for each row execute function servicebroker.keep_audit();
create or replace trigger kept_whole before truncate on servicebroker.audit
    for each statement execute function servicebroker.keep_audit();
revoke execute on function servicebroker.audited, servicebroker.audited_names, servicebroker.note_definition,
    servicebroker.keep_audit from public;
