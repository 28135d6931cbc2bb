-- The statement of session_end.py. The session is chosen before anything ends: in one WHERE, PostgreSQL might end others first.

-- name: end_session
with chosen as materialized (select pid, usename::text as role, application_name as application
  from pg_stat_activity where pid = $1 and datname = current_database() and backend_type = 'client backend'
  and pid <> pg_backend_pid())
select role, application from chosen where pg_terminate_backend(pid)
