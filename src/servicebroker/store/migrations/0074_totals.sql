-- Counters that only the processes of applications know, added up; and the SENDs of the server's own function.
create table servicebroker.totals (
    counter text primary key,
    value bigint not null
) with (fillfactor = 50);

create sequence servicebroker.sent_in_sql;
