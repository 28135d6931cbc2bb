-- The password of each login that signs in from a client of SQL Server, as a hash. `login_id` is null for sa.
create table servicebroker.login_passwords (
    password_id integer primary key generated always as identity,
    login_id integer references servicebroker.logins on delete cascade,
    hash text not null,  -- the function, its costs, the salt and the result
    modify_date timestamptz not null default clock_timestamp(),
    unique nulls not distinct (login_id)
);
