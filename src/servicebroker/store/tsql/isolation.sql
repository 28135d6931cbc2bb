-- What the isolation levels REPEATABLE READ and SERIALIZABLE hold to the end of the transaction.

-- Nobody else changes the table, or those under the view, and nobody else holds them; whoever only reads goes on.
-- Queues and catalog views hold nothing: the broker goes by what has been committed.
create or replace function tsql.hold(name text) returns void language plpgsql volatile as $$
declare
    held regclass;
begin
    for held in
        with recursive under (oid) as (
            select to_regclass(name)::oid
            union
            select d.refobjid from under
              join pg_rewrite r on r.ev_class = under.oid
              join pg_depend d on d.classid = 'pg_rewrite'::regclass and d.objid = r.oid and d.refclassid = 'pg_class'::regclass
        )
        select c.oid from under join pg_class c using (oid)
         where c.relkind in ('r', 'p') and c.relnamespace <> all ('{servicebroker,sys,tsql,pg_catalog}'::regnamespace[])
         order by c.oid
    loop
        execute format('lock table %s in share row exclusive mode', held);
    end loop;
end $$;
