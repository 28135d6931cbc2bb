-- The statements of sign_in.py.

-- name: write_audit
-- $1 login, $2 program, $3 address, $4 act, $5 database, $6 reason of a refusal
insert into servicebroker.audit (principal, face, program, address, act, broker_database, subject, after)
values ($1, 'TDS', $2, $3, $4, $5, $1, case when $6 <> '' then jsonb_build_object('reason', $6) end)
