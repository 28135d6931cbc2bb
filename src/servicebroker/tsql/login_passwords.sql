-- The statements of login_passwords.py.

-- name: set_password
insert into servicebroker.login_passwords (login_id, hash)
select login_id, $2 from servicebroker.logins where lower(name) = lower($1)
on conflict (login_id) do update set hash = excluded.hash, modify_date = clock_timestamp()
returning login_id

-- name: set_password.set_sa
-- sa has no row among the logins, and a NULL login_id here
insert into servicebroker.login_passwords (login_id, hash) values (null, $1)
on conflict (login_id) do update set hash = excluded.hash, modify_date = clock_timestamp()

-- name: forget_password_of_sa
delete from servicebroker.login_passwords where login_id is null

-- name: find_stored_login.find_sa
select hash from servicebroker.login_passwords where login_id is null

-- name: find_stored_login
select name, login_id, hash, is_disabled from servicebroker.logins
left join servicebroker.login_passwords using (login_id)
where lower(name) = lower($1) and not is_windows and login_id <> $2
