-- The statements of sign_in.py.

-- name: write_audit
insert into servicebroker.audit (principal, face, program, address, act, broker_database, subject, after)
values ($1, 'TDS', $2, $3, $4, $5, $1, case when $6 <> '' then jsonb_build_object('reason', $6) end)
