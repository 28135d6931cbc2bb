-- The collation of T-SQL strings without one of their own. A _CI_ collation ignores case; comparisons are translated so.
alter table servicebroker.databases add column collation_name text not null default 'Latin1_General_BIN2';
