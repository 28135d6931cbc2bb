-- The statements of wrong_clocks.py.

-- name: note_wrong_clock
insert into servicebroker.wrong_clocks
values (current_setting('application_name'), coalesce(host(inet_client_addr()), ''), $1, $2)
on conflict (program, host) do update set seconds_ahead = excluded.seconds_ahead,
last_time = excluded.last_time

-- name: note_wrong_clock.forget
delete from servicebroker.wrong_clocks where last_time < $1 or last_time > $2
