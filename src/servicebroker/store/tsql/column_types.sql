-- The T-SQL types of the columns of catalog views, where PostgreSQL's type is less exact. They are stored as comments
-- of the columns, like those of tables. A column is_... needs no row here: it is a bit. The list covers views of sys
-- that T-SQL reads directly, and the views of this schema. '*' means every view with such a column.

do $$
declare
    said record;
begin
    for said in
        select c.oid::regclass::text as view, a.attname, format('%s %s', wanted.type, a.attname) as noted
          from (values
            ('name', 'nvarchar(128)', 'databases sysdatabases objects all_objects tables views system_views procedures triggers schemas types columns all_columns '
                     'sysobjects service_message_types service_contracts services service_queues routes remote_service_bindings conversation_priorities '
                     'certificates symmetric_keys database_principals server_principals endpoints tcp_endpoints service_broker_endpoints '
                     'xml_schema_collections event_notifications sequences internal_tables indexes sql_logins master_files database_files identity_columns login_token user_token time_zone_info'),
            ('type', 'nvarchar(128)', 'login_token user_token'), ('usage', 'nvarchar(128)', 'login_token user_token'),
            ('current_utc_offset', 'nvarchar(6)', 'time_zone_info'),
            ('type', 'char(2)', 'objects all_objects tables views system_views procedures triggers sysobjects service_queues internal_tables sequences'),
            ('start_value', 'sql_variant', 'sequences'), ('increment', 'sql_variant', 'sequences'), ('minimum_value', 'sql_variant', 'sequences'),
            ('maximum_value', 'sql_variant', 'sequences'), ('current_value', 'sql_variant', 'sequences'),
            ('last_used_value', 'sql_variant', 'sequences'), ('system_type_id', 'tinyint', 'sequences'), ('precision', 'tinyint', 'sequences'), ('scale', 'tinyint', 'sequences'),
            ('xtype', 'char(2)', 'sysobjects'), ('xtype', 'tinyint', 'syscolumns systypes'), ('type', 'tinyint', 'syscolumns systypes'),
            ('name', 'nvarchar(128)', 'syscolumns sysindexes systypes sysfiles sysaltfiles syslanguages'), ('groupname', 'nvarchar(128)', '*'),
            ('filename', 'nvarchar(260)', '*'), ('srvname', 'nvarchar(128)', '*'), ('text', 'nvarchar(4000)', 'syscomments'),
            ('type', 'char(1)', 'database_principals server_principals sql_logins'),
            ('type', 'tinyint', 'endpoints tcp_endpoints service_broker_endpoints master_files database_files'),
            ('physical_name', 'nvarchar(260)', 'master_files database_files'),
            ('query_hash', 'binary(8)', '*'), ('query_plan_hash', 'binary(8)', '*'), ('sid', 'varbinary(85)', '*'), ('owner_sid', 'varbinary(85)', '*'),
            ('type_desc', 'nvarchar(60)', '*'), ('state_desc', 'nvarchar(60)', '*'), ('class_desc', 'nvarchar(60)', '*'),
            ('protocol', 'tinyint', '*'), ('protocol_desc', 'nvarchar(60)', '*'),
            ('state', 'tinyint', 'endpoints tcp_endpoints service_broker_endpoints databases master_files database_files'),
            ('connection_auth', 'tinyint', '*'), ('connection_auth_desc', 'nvarchar(60)', '*'),
            ('encryption_algorithm', 'tinyint', 'service_broker_endpoints'), ('encryption_algorithm_desc', 'nvarchar(60)', '*'),
            ('ip_address', 'nvarchar(45)', '*'),
            ('is_initiator', 'tinyint', 'conversation_endpoints'), ('state', 'char(2)', 'conversation_endpoints'), ('far_service', 'nvarchar(256)', '*'),
            ('far_broker_instance', 'nvarchar(128)', '*'), ('last_send_tran_id', 'binary(6)', '*'),
            ('priority', 'tinyint', 'conversation_endpoints conversation_priorities transmission_queue'),
            ('remote_service_name', 'nvarchar(256)', '*'), ('broker_instance', 'nvarchar(128)', '*'), ('address', 'nvarchar(256)', 'routes'),
            ('mirror_address', 'nvarchar(256)', 'routes'),
            ('validation', 'char(2)', '*'), ('validation_desc', 'nvarchar(60)', '*'),
            ('activation_procedure', 'nvarchar(776)', '*'),
            ('to_service_name', 'nvarchar(256)', 'transmission_queue'), ('to_broker_instance', 'nvarchar(128)', 'transmission_queue'),
            ('from_service_name', 'nvarchar(256)', 'transmission_queue'), ('service_contract_name', 'nvarchar(256)', 'transmission_queue'),
            ('message_type_name', 'nvarchar(256)', 'transmission_queue'), ('transmission_status', 'nvarchar(4000)', '*'),
            ('procedure_name', 'nvarchar(650)', '*'), ('database_id', 'smallint', 'dm_broker_activated_tasks'),
            ('authentication_method', 'nvarchar(128)', '*'), ('principal_name', 'nvarchar(128)', '*'), ('remote_user_name', 'nvarchar(128)', '*'),
            ('login_state_desc', 'nvarchar(60)', '*'),
            ('to_service_name', 'nvarchar(512)', 'dm_broker_forwarded_messages'), ('to_broker_instance', 'nvarchar(512)', 'dm_broker_forwarded_messages'),
            ('from_service_name', 'nvarchar(512)', 'dm_broker_forwarded_messages'),
            ('from_broker_instance', 'nvarchar(512)', 'dm_broker_forwarded_messages'),
            ('adjacent_broker_address', 'nvarchar(512)', '*'), ('hops_remaining', 'tinyint', '*'),
            ('state', 'nvarchar(32)', 'dm_broker_queue_monitors'),
            ('service_name', 'nvarchar(256)', 'event_notifications server_event_notifications'),
            ('creator_login', 'nvarchar(128)', '*'), ('parent_class', 'tinyint', '*'), ('parent_class_desc', 'nvarchar(60)', '*'),
            ('compatibility_level', 'tinyint', '*'), ('collation_name', 'nvarchar(128)', '*'), ('user_access', 'tinyint', '*'),
            ('user_access_desc', 'nvarchar(60)', '*'), ('recovery_model', 'tinyint', '*'), ('recovery_model_desc', 'nvarchar(60)', '*'),
            ('system_type_id', 'tinyint', '*'), ('precision', 'tinyint', 'columns all_columns identity_columns'),
            ('scale', 'tinyint', 'columns all_columns identity_columns'),
            ('pvt_key_encryption_type', 'char(2)', '*'), ('pvt_key_encryption_type_desc', 'nvarchar(60)', '*'), ('crypt_type', 'char(4)', '*'),
            ('crypt_type_desc', 'nvarchar(60)', '*'), ('key_algorithm', 'char(2)', '*'), ('algorithm_desc', 'nvarchar(60)', '*'),
            ('class', 'tinyint', 'database_permissions server_permissions extended_properties'), ('permission_name', 'nvarchar(128)', '*'),
            ('internal_type', 'tinyint', '*'), ('internal_type_desc', 'nvarchar(60)', '*'),
            ('host_name', 'nvarchar(128)', '*'), ('program_name', 'nvarchar(128)', '*'), ('login_name', 'nvarchar(128)', '*'), ('status', 'nvarchar(30)', '*'),
            ('original_login_name', 'nvarchar(128)', '*'), ('nt_domain', 'nvarchar(128)', '*'), ('nt_user_name', 'nvarchar(128)', '*'),
            ('client_interface_name', 'nvarchar(32)', '*'), ('context_info', 'varbinary(128)', '*'), ('date_format', 'nvarchar(3)', '*'),
            ('quoted_identifier', 'bit', '*'), ('arithabort', 'bit', '*'), ('ansi_null_dflt_on', 'bit', '*'), ('ansi_defaults', 'bit', '*'),
            ('ansi_warnings', 'bit', '*'), ('ansi_padding', 'bit', '*'), ('ansi_nulls', 'bit', '*'), ('concat_null_yields_null', 'bit', '*'),
            ('request_mode', 'nvarchar(60)', '*'), ('resource_type', 'nvarchar(60)', '*'), ('request_status', 'nvarchar(60)', '*'),
            ('command', 'nvarchar(32)', '*'), ('wait_type', 'nvarchar(60)', '*'), ('last_wait_type', 'nvarchar(60)', '*'),
            ('object_name', 'nchar(128)', '*'), ('counter_name', 'nchar(128)', '*'), ('instance_name', 'nchar(128)', '*')
          ) wanted(name, type, views)
          join pg_class c on c.relkind = 'v' and c.relnamespace in ('sys'::regnamespace, 'tsql'::regnamespace)
           and (wanted.views = '*' or c.relname = any (string_to_array(wanted.views, ' ')))
          join pg_attribute a on a.attrelid = c.oid and a.attname = wanted.name
    loop
        execute format('comment on column %s.%I is %L', said.view, said.attname, said.noted);
    end loop;
end $$;
