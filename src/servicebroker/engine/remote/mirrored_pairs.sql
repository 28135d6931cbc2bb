-- The statements of mirrored_pairs.py.

-- name: read_role
select pg_is_in_recovery(), system_identifier::text, case when pg_is_in_recovery()
then greatest((select timeline_id from pg_control_checkpoint()),
(select min_recovery_end_timeline from pg_control_recovery()))::bigint
else ('x' || left(pg_walfile_name(pg_current_wal_lsn()), 8))::bit(32)::bigint end,
current_setting('synchronous_standby_names') <> ''
and current_setting('synchronous_commit') in ('on', 'remote_apply') from pg_control_system()

-- name: write_proof
select pg_logical_emit_message(true, 'servicebroker', 'principal')
