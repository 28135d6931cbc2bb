-- The table locks of the isolation levels REPEATABLE READ and SERIALIZABLE, held to the end of the transaction.

-- Lock the table, or the tables of the view, against changes and locks by other sessions; others may still read. Queues
-- and catalog views are not locked: the broker always reads committed rows.
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
