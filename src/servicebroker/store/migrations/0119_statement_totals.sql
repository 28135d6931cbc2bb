-- How often the processes of an instance have run which of our statements, and how long those took, added up.
create table servicebroker.statement_totals (
    name text primary key,
    calls bigint not null,
    microseconds bigint not null
) with (fillfactor = 50);
