-- The statements of audit.py.

-- name: record_action
insert into servicebroker.audit (principal, face, act, broker_database, subject, after)
values (coalesce(nullif($1, ''), current_setting('servicebroker.principal', true), ''), $2, $3, $4, $5,
(select jsonb_object_agg(key, value) from unnest($6::text[], $7::text[]) n (key, value)))

-- name: find_records
select audit_id, at, transaction_id, postgres_role, principal, face, program, address, act,
broker_database, subject, before::text, after::text from servicebroker.audit
where at >= coalesce($1::timestamptz, '-infinity')
and ($2 = '' or strpos(lower(postgres_role), lower($2)) > 0 or strpos(lower(principal), lower($2)) > 0)
and ($3 = '' or strpos(lower(concat_ws(' ', act, broker_database, subject, before, after)), lower($3)) > 0)
order by audit_id desc limit $4
