-- The statements of disk_usage.py.

-- name: find_disk_usage.tables
with sizes as materialized (
  select c.relname, pg_total_relation_size(c.oid) as bytes, greatest(c.reltuples, 0)::bigint as rows
  from pg_class c where c.relnamespace = 'servicebroker'::regnamespace and c.relkind = 'r'),
used as (
  select substring(relname from '^[a-z]+_([0-9]+)$')::int as queue_id,
    case when relname !~ '^[a-z]+_[0-9]+$' then relname else '' end as other, sum(bytes)::bigint as bytes,
    sum(rows)::bigint as rows
  from sizes group by 1, 2)
select coalesce(d.name || '.' || q.schema_name || '.' || q.name, ''), u.other::text,
coalesce((select p.name from servicebroker.principals p
  where p.database_id = q.database_id and p.principal_id = q.owner_id), ''), u.bytes, u.rows
from used u left join servicebroker.queues q using (queue_id) left join servicebroker.databases d using (database_id)
where u.queue_id is null or q.queue_id is not null order by u.bytes desc limit $1

-- name: find_disk_usage.slots
select slot_name::text, active, pg_wal_lsn_diff(case when pg_is_in_recovery() then pg_last_wal_replay_lsn()
  else pg_current_wal_lsn() end, restart_lsn)::bigint
from pg_replication_slots where restart_lsn is not null order by 3 desc limit $1
