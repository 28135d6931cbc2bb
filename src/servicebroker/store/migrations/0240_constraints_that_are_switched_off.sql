-- In the place of a constraint that is switched off stands a CHECK that names its columns, and the table that a foreign key refers
-- to, where CHECK (true) had stood; the functions and views are in store/tsql/.
do $$
declare
    known record;
    key text[];
    part constant text := '(?:[^\s"(),.]+|"(?:[^"]|"")+")';
begin
    for known in
        select k.conname, k.conrelid::regclass as place, d.note, regexp_replace(d.note, E'^[^\n]*\n', '') as held
          from pg_constraint k cross join lateral obj_description(k.oid, 'pg_constraint') d (note)
         where k.contype = 'c' and k.conrelid <> 0 and d.note ~ E'\n(CHECK|FOREIGN KEY) \\('
           and pg_get_constraintdef(k.oid) = 'CHECK (true)'
    loop
        key := regexp_match(known.held, '^FOREIGN KEY \((' || part || '(?:, ' || part || ')*)\) REFERENCES (' || part || '(?:\.' || part || ')?)\(');
        begin
            execute format('alter table %s drop constraint %I', known.place, known.conname);
            execute format('alter table %s add constraint %I check (true or %s)', known.place, known.conname,
                           case when key is null then format('(%s)', substring(known.held from '^CHECK (.*)$'))
                                else format('row(%s) is null or %s is null', key[1],
                                            case when key[2]::regclass = known.place then 'tableoid' else format('%L::regclass', key[2]) end) end);
            execute format('comment on constraint %I on %s is %L', known.conname, known.place, known.note);
        exception when others then null;  -- what it names was renamed since: it stays as it is
        end;
    end loop;
end $$;
