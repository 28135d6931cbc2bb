-- The schema of what translated T-SQL calls (store/tsql).

create schema tsql;
grant usage on schema tsql to public;
