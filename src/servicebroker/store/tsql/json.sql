-- JSON functions. A path becomes an array of steps for PostgreSQL's #>. If a path finds nothing, lax gives null and
-- strict an error. The type is json and not jsonb, so that order, numbers and blanks stay as they were written.

-- Replace \u0000, which PostgreSQL refuses, by tsql.zero(). A text with the character U+0000 itself is invalid JSON, so
-- it keeps its \u0000 and is refused.
create or replace function tsql.json_zeros(said text) returns text language sql immutable strict parallel safe
return case when strpos(said, '\u0000') = 0 then case when strpos(said, tsql.zero()) = 0 then said else '\u0000' end
            when strpos(said, tsql.zero()) > 0 then said
            else regexp_replace(said, '(?<!\\)((?:\\\\)*)\\u0000', '\1' || tsql.zero(), 'g') end;
-- Undo json_zeros in a document or a part of one.
create or replace function tsql.json_escaped(said text) returns text language sql immutable parallel safe
return replace(said, tsql.zero(), '\u0000');

create or replace function tsql.isjson(said text, kind text) returns integer language plpgsql immutable parallel safe as $$
declare
    found text;
begin
    if said is null then return null; end if;
    found := jsonb_typeof(tsql.json_zeros(said)::jsonb);
    return case kind when 'value' then true when 'array' then found = 'array' when 'object' then found = 'object'
                     when 'scalar' then found in ('string', 'number') else found in ('object', 'array') end::integer;
exception when others then return 0;
end $$;

create or replace function tsql.isjson(said text) returns integer language sql immutable parallel safe return tsql.isjson(said, 'document');

create or replace function tsql.json_document(said text) returns json language plpgsql immutable strict parallel safe as $$
begin
    said := tsql.json_zeros(said);
    perform said::jsonb;  -- which refuses what has no character in PostgreSQL, too
    return said::json;
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
    found json := tsql.json_document(said) #> tsql.json_steps(path);
begin
    if found is null and path ~ '^\s*strict' then perform tsql.refuse(13608, 'Property cannot be found on the specified JSON path.'); end if;
    if json_typeof(found) in ('object', 'array') then
        if path ~ '^\s*strict' then perform tsql.refuse(13623, 'Scalar value cannot be found in the specified JSON path.'); end if;
        return null;
    end if;
    return found #>> '{}';
end $$;

create or replace function tsql.json_path_exists(said text, path text) returns integer language sql immutable strict parallel safe
return (tsql.json_document(said) #> tsql.json_steps(path) is not null)::integer;

create or replace function tsql.json_query(said text, path text default '$') returns text language plpgsql immutable strict parallel safe as $$
declare
    found json := tsql.json_document(said) #> tsql.json_steps(path);
begin
    if json_typeof(found) in ('object', 'array') then return tsql.json_escaped(found::text); end if;
    if path ~ '^\s*strict' then
        perform tsql.refuse(case when found is null then 13608 else 13624 end, 'Object or array cannot be found in the specified JSON path.');
    end if;
    return null;
end $$;

-- The text after an action at these steps: 'set' replaces the value by `new` or adds it, 'delete' removes a key of an
-- object or puts null into an array, 'append' adds `new` to the array there.
create or replace function tsql.json_changed(whole json, steps text[], action text, new text) returns text
language plpgsql immutable parallel safe as $$
declare
    members text[];
    is_there boolean;
    is_last boolean := cardinality(steps) = 1;
begin
    if steps = '{}' then
        if action <> 'append' then return new; end if;
        if json_typeof(whole) <> 'array' then return whole::text; end if;
        select array_agg(each::text) into members from json_array_elements(whole) each;
        return '[' || array_to_string(members || new, ',') || ']';
    elsif json_typeof(whole) = 'object' then
        select array_agg(to_json(key)::text || ':' || case when key = steps[1] then tsql.json_changed(value, steps[2:], action, new) else value::text end
                         order by place) filter (where not (is_last and action = 'delete' and key = steps[1])), coalesce(bool_or(key = steps[1]), false)
          into members, is_there from json_each(whole) with ordinality own(key, value, place);
        if is_last and not is_there and action <> 'delete' then
            members := members || (to_json(steps[1])::text || ':' || case action when 'append' then '[' || new || ']' else new end);
        end if;
        return '{' || coalesce(array_to_string(members, ','), '') || '}';
    elsif json_typeof(whole) = 'array' and steps[1] ~ '^\d{1,9}$' then
        select array_agg(case when place - 1 = steps[1]::integer then case when is_last and action = 'delete' then 'null'
                                   else tsql.json_changed(value, steps[2:], action, new) end else value::text end order by place)
          into members from json_array_elements(whole) with ordinality own(value, place);
        if is_last and action = 'set' and steps[1]::integer >= coalesce(cardinality(members), 0) then members := members || new; end if;
        return '[' || coalesce(array_to_string(members, ','), '') || ']';
    end if;
    return whole::text;
end $$;

create or replace function tsql.json_modify(said text, path text, value json) returns text language plpgsql immutable parallel safe as $$
declare
    whole json := tsql.json_document(said);
    steps text[] := tsql.json_steps(regexp_replace(btrim(path), '^append\s+', ''));
    is_strict boolean := path ~ '^\s*(append\s+)?strict';
begin
    if said is null then return null; end if;
    if is_strict and whole #> steps is null then perform tsql.refuse(13608, 'Property cannot be found on the specified JSON path.'); end if;
    if path ~ '^\s*append' then return tsql.json_escaped(tsql.json_changed(whole, steps, 'append', coalesce(value::text, 'null'))); end if;
    return tsql.json_escaped(tsql.json_changed(whole, steps, case when value is null and not is_strict then 'delete' else 'set' end, coalesce(value::text, 'null')));
end $$;

-- OPENJSON without WITH: rows of key, value, and the number of the value's type.
create or replace function tsql.openjson(said text, path text default '$') returns table (key text, value text, type smallint)
language plpgsql immutable parallel safe rows 10 as $$
declare
    found json := tsql.json_document(said) #> tsql.json_steps(path);
begin
    if json_typeof(found) = 'array' then
        return query select (place - 1)::text, each #>> '{}', tsql.json_type(each)
            from json_array_elements(found) with ordinality as own(each, place);
    elsif json_typeof(found) = 'object' then
        return query select own.key, own.value #>> '{}', tsql.json_type(own.value) from json_each(found) own;
    end if;
end $$;
create or replace function tsql.json_type(value json) returns smallint language sql immutable parallel safe
return case json_typeof(value) when 'null' then 0 when 'string' then 1 when 'number' then 2 when 'boolean' then 3 when 'array' then 4 else 5 end;

-- OPENJSON with WITH: a row for each element of an array, or one row for an object.
create or replace function tsql.json_items(said text, path text default '$') returns setof json language plpgsql immutable parallel safe rows 10 as $$
declare
    found json := tsql.json_document(said) #> tsql.json_steps(path);
begin
    if json_typeof(found) = 'array' then return query select json_array_elements(found);
    elsif found is not null then return next found;
    end if;
end $$;
create or replace function tsql.json_field(found json, path text, whole boolean) returns text language sql immutable parallel safe
return (select case when whole then case when json_typeof(value) in ('object', 'array') then tsql.json_escaped(value::text) end
                    when json_typeof(value) in ('object', 'array') then null
                    else value #>> '{}' end from (select found #> tsql.json_steps(path) as value) own);
