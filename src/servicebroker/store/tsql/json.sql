-- JSON: paths of T-SQL are paths of PostgreSQL, but for lax and strict: lax gives null where strict is an error.

create or replace function tsql.isjson(said text, kind text) returns integer language plpgsql immutable parallel safe as $$
declare
    found text;
begin
    if said is null then return null; end if;
    found := jsonb_typeof(said::jsonb);
    return case kind when 'value' then true when 'array' then found = 'array' when 'object' then found = 'object'
                     when 'scalar' then found in ('string', 'number') else found in ('object', 'array') end::integer;
exception when others then return 0;
end $$;

create or replace function tsql.isjson(said text) returns integer language sql immutable parallel safe return tsql.isjson(said, 'document');

create or replace function tsql.parsed_json(said text) returns jsonb language plpgsql immutable strict parallel safe as $$
begin
    return said::jsonb;
exception when invalid_text_representation or untranslatable_character then
    perform tsql.refuse(13609, 'JSON text is not properly formatted.');
end $$;

create or replace function tsql.json_steps(path text) returns text[] language plpgsql immutable strict parallel safe as $$
declare
    rest text := regexp_replace(btrim(path), '^(lax|strict)\s+', '');
    steps text[] := '{}';
    found text[];
begin
    if left(rest, 1) <> '$' then perform tsql.refuse(13607, format('JSON path is not properly formatted: ''%s''.', path)); end if;
    rest := substr(rest, 2);
    while rest <> '' loop
        found := regexp_match(rest, '^(?:\.([A-Za-z_$][\w$]*)|\."((?:[^"\\]|\\.)*)"|\[(\d+)\])(.*)$');
        if found is null then perform tsql.refuse(13607, format('JSON path is not properly formatted: ''%s''.', path)); end if;
        steps := steps || coalesce(found[1], replace(found[2], '\"', '"'), found[3]);
        rest := found[4];
    end loop;
    return steps;
end $$;

create or replace function tsql.json_value(said text, path text) returns text language plpgsql immutable strict parallel safe as $$
declare
    found jsonb := tsql.parsed_json(said) #> tsql.json_steps(path);
begin
    if found is null and path ~ '^\s*strict' then perform tsql.refuse(13608, 'Property cannot be found on the specified JSON path.'); end if;
    if jsonb_typeof(found) in ('object', 'array') then
        if path ~ '^\s*strict' then perform tsql.refuse(13623, 'Scalar value cannot be found in the specified JSON path.'); end if;
        return null;
    end if;
    return found #>> '{}';
end $$;

create or replace function tsql.json_path_exists(said text, path text) returns integer language sql immutable strict parallel safe
return (tsql.parsed_json(said) #> tsql.json_steps(path) is not null)::integer;

create or replace function tsql.json_query(said text, path text default '$') returns text language plpgsql immutable strict parallel safe as $$
declare
    found jsonb := tsql.parsed_json(said) #> tsql.json_steps(path);
begin
    if jsonb_typeof(found) in ('object', 'array') then return found::text; end if;
    if path ~ '^\s*strict' then
        perform tsql.refuse(case when found is null then 13608 else 13624 end, 'Object or array cannot be found in the specified JSON path.');
    end if;
    return null;
end $$;

create or replace function tsql.json_modify(said text, path text, value jsonb) returns text language plpgsql immutable parallel safe as $$
declare
    whole jsonb := tsql.parsed_json(said);
    steps text[] := tsql.json_steps(regexp_replace(btrim(path), '^append\s+', ''));
begin
    if said is null then return null; end if;
    if path ~ '^\s*append' then
        if steps = '{}' then return (whole || jsonb_build_array(value))::text; end if;
        return jsonb_set(whole, steps, coalesce(whole #> steps, '[]') || jsonb_build_array(value), true)::text;
    end if;
    if value is null then
        return case when path ~ '^\s*strict' then jsonb_set(whole, steps, 'null') else whole #- steps end::text;
    end if;
    return jsonb_set(whole, steps, value, true)::text;
end $$;

-- What OPENJSON returns without WITH: key, value, and the number of the value's type.
create or replace function tsql.openjson(said text, path text default '$') returns table (key text, value text, type smallint)
language plpgsql immutable parallel safe rows 10 as $$
declare
    found jsonb := tsql.parsed_json(said) #> tsql.json_steps(path);
begin
    if jsonb_typeof(found) = 'array' then
        return query select (place - 1)::text, each #>> '{}', tsql.json_type(each)
            from jsonb_array_elements(found) with ordinality as own(each, place);
    elsif jsonb_typeof(found) = 'object' then
        return query select own.key, own.value #>> '{}', tsql.json_type(own.value) from jsonb_each(found) own;
    end if;
end $$;
create or replace function tsql.json_type(value jsonb) returns smallint language sql immutable parallel safe
return case jsonb_typeof(value) when 'null' then 0 when 'string' then 1 when 'number' then 2 when 'boolean' then 3 when 'array' then 4 else 5 end;

-- The rows of OPENJSON with WITH: the members of an array, or one object.
create or replace function tsql.json_rows(said text, path text default '$') returns setof jsonb language plpgsql immutable parallel safe rows 10 as $$
declare
    found jsonb := tsql.parsed_json(said) #> tsql.json_steps(path);
begin
    if jsonb_typeof(found) = 'array' then return query select jsonb_array_elements(found);
    elsif found is not null then return next found;
    end if;
end $$;
create or replace function tsql.json_field(found jsonb, path text, whole boolean) returns text language sql immutable parallel safe
return (select case when whole then case when jsonb_typeof(value) in ('object', 'array') then value::text end
                    when jsonb_typeof(value) in ('object', 'array') then null
                    else value #>> '{}' end from (select found #> tsql.json_steps(path) as value) own);
