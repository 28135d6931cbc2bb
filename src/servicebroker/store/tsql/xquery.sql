-- Functions for XQuery beyond paths. A sequence is a jsonb array. Its items are nodes of tsql.xml_tree, strings (also
-- attributes and untyped values), numbers and booleans.

create or replace function tsql.xq_of(value anyelement) returns jsonb language sql immutable parallel safe as
$$ select case when value is null then '[]' else jsonb_build_array(value) end $$;

create or replace function tsql.xq_flat(sequences jsonb) returns jsonb language sql immutable parallel safe
return (select coalesce(jsonb_agg(i.item order by s.place, i.place), '[]')
          from jsonb_array_elements(sequences) with ordinality s(items, place),
               jsonb_array_elements(s.items) with ordinality i(item, place));

-- The items that a path finds from each of the items.
create or replace function tsql.xq_steps(items jsonb, path text, variables jsonb default '{}') returns jsonb
language sql immutable parallel safe
return (select coalesce(jsonb_agg(f.found order by i.place, f.place), '[]')
          from jsonb_array_elements(items) with ordinality i(item, place),
               jsonb_path_query(i.item, path::jsonpath, variables, true) with ordinality f(found, place));

-- Remove duplicate nodes, and sort by document order. A numbered node is identified by its number and parents; items
-- without a number all stay, at the end.
create or replace function tsql.xq_once(items jsonb) returns jsonb language sql immutable parallel safe
return (select coalesce(jsonb_agg(item order by (item ->> '#')::integer nulls last, place), '[]')
          from (select item, min(place) place from jsonb_array_elements(items) with ordinality i(item, place)
                 group by item, case when item ->> '#' is null then place end) once);

create or replace function tsql.xq_parents(items jsonb) returns jsonb language sql immutable parallel safe
return tsql.xq_once((select coalesce(jsonb_agg(i.item -> 'u' order by i.place), '[]')
                       from jsonb_array_elements(items) with ordinality i(item, place) where jsonb_typeof(i.item -> 'u') = 'object'));

-- The items of a path, each with its chain of parents under `u`, which `..` needs. A tree that is numbered already
-- keeps its numbers.
create or replace function tsql.xml_climbing_items(tree jsonb, path text, variables jsonb default '{}') returns setof jsonb
language plpgsql immutable strict parallel safe rows 5 as $$
declare
    root jsonb := case when tree ? '#' then tree - 'u' else (tsql.xml_numbered(tree - 'u', 0)).numbered end;
    found jsonb;
    above jsonb;
    below jsonb;
begin
    for found in select f from jsonb_path_query(root, path::jsonpath, variables, true) f loop
        above := case when tree ? 'u' then root || jsonb_build_object('u', tree -> 'u') else root end;
        if jsonb_typeof(found) <> 'object' or found -> '#' = root -> '#' then
            return next found;
            continue;
        end if;
        loop
            select c into below from jsonb_array_elements(above -> 'c') c where c -> '#' <= found -> '#' order by c -> '#' desc limit 1;
            exit when below -> '#' = found -> '#';
            above := below || jsonb_build_object('u', above);
        end loop;
        return next found || jsonb_build_object('u', above);
    end loop;
end $$;

-- The place of the only node of a sequence in its document, null for an empty one.
create or replace function tsql.xq_node_number(items jsonb) returns integer language plpgsql immutable strict parallel safe as $$
begin
    if jsonb_array_length(items) > 1 or jsonb_typeof(items -> 0) <> 'object' then
        perform tsql.refuse(2389, 'XQuery: A comparison of nodes by their place requires a singleton node (or empty sequence), and no attribute.');
    end if;
    return (items -> 0 ->> '#')::integer;
end $$;
-- The document of a node with a chain of parents.
create or replace function tsql.xml_document_of(node jsonb) returns jsonb language plpgsql immutable strict parallel safe as $$
begin
    while node ? 'u' loop node := node -> 'u'; end loop;
    return node;
end $$;

create or replace function tsql.xq_climbing_steps(items jsonb, path text, variables jsonb default '{}') returns jsonb
language sql immutable parallel safe
return tsql.xq_once((select coalesce(jsonb_agg(f.found order by i.place, f.place), '[]')
                       from jsonb_array_elements(tsql.xq_once(items)) with ordinality i(item, place),
                            tsql.xml_climbing_items(i.item, path, variables) with ordinality f(found, place)
                      where jsonb_typeof(i.item) = 'object'));

create or replace function tsql.xq_atom(item jsonb) returns jsonb language sql immutable parallel safe
return case when jsonb_typeof(item) = 'object' then to_jsonb(tsql.xml_string(item)) else item end;
create or replace function tsql.xq_atoms(items jsonb) returns jsonb language sql immutable parallel safe
return (select coalesce(jsonb_agg(tsql.xq_atom(item) order by place), '[]')
          from jsonb_array_elements(items) with ordinality i(item, place));

create or replace function tsql.xq_said(item jsonb) returns text language sql immutable parallel safe
return case jsonb_typeof(item) when 'number' then trim_scale((item #>> '{}')::numeric)::text else tsql.xml_string(item) end;
-- The text of the first item, or null.
create or replace function tsql.xq_string(items jsonb) returns text language sql immutable parallel safe
return tsql.xq_said(items -> 0);

create or replace function tsql.xq_number(item jsonb) returns numeric language sql immutable parallel safe
return case jsonb_typeof(item) when 'number' then (item #>> '{}')::numeric
                               when 'boolean' then (item = 'true')::integer::numeric
            else case when tsql.xml_string(item) ~ '^\s*[-+]?(\d+(\.\d*)?|\.\d+)([eE][-+]?\d{1,3})?\s*$' then tsql.xml_string(item)::numeric end end;

-- The effective boolean value: an empty sequence is false, a node is true.
create or replace function tsql.xq_true(items jsonb) returns boolean language sql immutable parallel safe
return case when jsonb_array_length(items) = 0 then false
            else case jsonb_typeof(items -> 0) when 'boolean' then (items -> 0)::boolean when 'number' then (items -> 0)::numeric <> 0
                                               when 'string' then items ->> 0 <> '' else true end end;

create or replace function tsql.xq_compare(a jsonb, sign text, b jsonb) returns boolean language plpgsql immutable parallel safe as $$
declare
    x text;
    y text;
    numbers boolean := jsonb_typeof(a) = 'number' or jsonb_typeof(b) = 'number';
    less boolean;
    same boolean;
begin
    if numbers then
        if tsql.xq_number(a) is null or tsql.xq_number(b) is null then return sign = '!='; end if;
        less := tsql.xq_number(a) < tsql.xq_number(b);
        same := tsql.xq_number(a) = tsql.xq_number(b);
    else
        x := tsql.xml_string(a); y := tsql.xml_string(b);
        if jsonb_typeof(a) = 'boolean' or jsonb_typeof(b) = 'boolean' then
            x := case x when '1' then 'true' when '0' then 'false' else x end;
            y := case y when '1' then 'true' when '0' then 'false' else y end;
        end if;
        less := x collate "C" < y collate "C";
        same := x = y;
    end if;
    return case sign when '=' then same when '!=' then not same when '<' then less when '<=' then less or same
                     when '>' then not (less or same) else not less end;
end $$;
create or replace function tsql.xq_compares(a jsonb, sign text, b jsonb) returns boolean language sql immutable parallel safe
return exists (select from jsonb_array_elements(a) x(item), jsonb_array_elements(b) y(item) where tsql.xq_compare(x.item, sign, y.item));

create or replace function tsql.xq_calculated(a jsonb, sign text, b jsonb) returns jsonb language plpgsql immutable parallel safe as $$
declare
    x numeric := tsql.xq_number(a -> 0);
    y numeric := tsql.xq_number(b -> 0);
begin
    if x is null or y is null or (y = 0 and sign in ('div', 'idiv', 'mod')) then return '[]'; end if;
    return jsonb_build_array(trim_scale(case sign when '+' then x + y when '-' then x - y when '*' then x * y
                                                  when 'div' then x / y when 'idiv' then trunc(x / y) else mod(x, y) end));
end $$;

create or replace function tsql.xq_aggregate(kind text, items jsonb) returns jsonb language plpgsql immutable parallel safe as $$
declare
    all_numbers boolean;
begin
    if jsonb_array_length(items) = 0 then return case kind when 'sum' then '[0]' else '[]' end; end if;
    select bool_and(tsql.xq_number(item) is not null) into all_numbers from jsonb_array_elements(items) i(item);
    if not all_numbers then
        if kind in ('sum', 'avg') then return '[]'; end if;
        return (select jsonb_build_array(case kind when 'min' then min(said collate "C") else max(said collate "C") end)
                  from (select tsql.xml_string(item) said from jsonb_array_elements(items) i(item)) texts);
    end if;
    return (select jsonb_build_array(trim_scale(case kind when 'sum' then sum(n) when 'avg' then avg(n) when 'min' then min(n) else max(n) end))
              from (select tsql.xq_number(item) n from jsonb_array_elements(items) i(item)) numbers);
end $$;

create or replace function tsql.xq_distinct(items jsonb) returns jsonb language sql immutable parallel safe
return (select coalesce(jsonb_agg(item order by place), '[]')
          from (select tsql.xq_atom(item) item, min(place) place
                  from jsonb_array_elements(items) with ordinality i(item, place) group by 1) once);

create or replace function tsql.xq_rounded(kind text, items jsonb) returns jsonb language sql immutable parallel safe
return case when tsql.xq_number(items -> 0) is null then '[]'
            else jsonb_build_array(case kind when 'ceiling' then ceil(tsql.xq_number(items -> 0)) when 'floor' then floor(tsql.xq_number(items -> 0))
                                             when 'round' then floor(tsql.xq_number(items -> 0) + 0.5) else abs(tsql.xq_number(items -> 0)) end) end;

-- substring(): positions are rounded, and begin with 1.
create or replace function tsql.xq_substring(said text, start jsonb, length jsonb default '[1000000000]') returns text
language sql immutable parallel safe
return (select case when first + count > 1 then substr(said, greatest(first, 1), first + count - greatest(first, 1)) else '' end
          from (select round(tsql.xq_number(start -> 0))::integer first, round(tsql.xq_number(length -> 0))::integer count) places);

-- The bytes of a text in hexadecimal digits or base64; null if it is not valid.
create or replace function tsql.xq_bytes(said text, coding text) returns bytea language sql immutable parallel safe
return (select case when coding = 'hex' and plain ~ '^([0-9A-Fa-f]{2})*$' or coding = 'base64' and plain ~ '^([A-Za-z0-9+/]{4})*([A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?$'
                    then decode(plain, coding) end
          from (select case coding when 'hex' then btrim(said, E' \t\r\n') else translate(said, E' \t\r\n', '') end as plain) as written);

create or replace function tsql.xq_written(bytes bytea, coding text) returns text language sql immutable parallel safe
return case coding when 'hex' then upper(encode(bytes, 'hex')) else translate(encode(bytes, 'base64'), E'\n', '') end;
create or replace function tsql.xq_rewritten(items jsonb, coding text, wanted text) returns jsonb language sql immutable parallel safe
return (select case when said is null then '[]' else jsonb_build_array(said) end
          from (select tsql.xq_written(tsql.xq_bytes(tsql.xq_string(items), coding), wanted) as said) as made);

-- cast as: the value in another type, or the empty sequence if it cannot be converted.
create or replace function tsql.xq_cast(items jsonb, kind text) returns jsonb language plpgsql immutable parallel safe as $$
declare
    said text := btrim(tsql.xq_string(items), E' \t\r\n');
    number numeric := tsql.xq_number(items -> 0);
begin
    if said is null then return '[]'; end if;
    if kind = 'string' then return jsonb_build_array(tsql.xq_string(items)); end if;
    if kind in ('hexBinary', 'base64Binary') then
        return case when tsql.xq_bytes(said, case kind when 'hexBinary' then 'hex' else 'base64' end) is null then '[]'
                    else jsonb_build_array(case kind when 'hexBinary' then upper(said) else said end) end;
    end if;
    if kind = 'boolean' then
        return case when said in ('true', '1') then '[true]' when said in ('false', '0') then '[false]' when number is not null
                    and jsonb_typeof(items -> 0) = 'number' then jsonb_build_array(number <> 0) else '[]' end;
    end if;
    if kind in ('date', 'time', 'dateTime') then
        return case when said ~ (case kind when 'date' then '^-?\d{4,}-\d\d-\d\d' when 'time' then '^\d\d:\d\d:\d\d' else '^-?\d{4,}-\d\d-\d\dT\d\d:\d\d:\d\d' end
                                 || '(\.\d+)?(Z|[-+]\d\d:\d\d)?$') then jsonb_build_array(said) else '[]' end;
    end if;
    if number is null then return '[]'; end if;
    if kind in ('decimal', 'double', 'float') then return jsonb_build_array(trim_scale(number)); end if;
    return case when number = trunc(number) or jsonb_typeof(items -> 0) = 'number' then jsonb_build_array(trunc(number)) else '[]' end;
end $$;

-- The content of a constructed element: nodes unchanged, adjacent values separated by a blank.
create or replace function tsql.xq_content(items jsonb) returns text language sql immutable parallel safe
return (select coalesce(string_agg(case when is_node then tsql.xml_written(item)
                                        else case when after_value then ' ' else '' end || tsql.xml_escaped(tsql.xq_said(item)) end, '' order by place), '')
          from (select item, place, jsonb_typeof(item) = 'object' is_node,
                       coalesce(lag(jsonb_typeof(item)) over (order by place) <> 'object', false) after_value
                  from jsonb_array_elements(items) with ordinality i(item, place)) pieces);
-- Items as content for modify(): as one text, and as nodes, in which values become text nodes.
create or replace function tsql.xq_joined(items jsonb) returns text language sql immutable parallel safe
return (select coalesce(string_agg(tsql.xq_said(item), ' ' order by place), '')
          from jsonb_array_elements(items) with ordinality i(item, place));
create or replace function tsql.xq_nodes(items jsonb) returns jsonb language sql immutable parallel safe
return (select coalesce(jsonb_agg(case when jsonb_typeof(item) = 'object' then item
                                       else jsonb_build_object('k', 't', 'v', tsql.xq_said(item)) end order by place), '[]')
          from jsonb_array_elements(items) with ordinality i(item, place));
create or replace function tsql.xq_in_attribute(items jsonb) returns text language sql immutable parallel safe
return (select coalesce(string_agg(tsql.xml_attribute(tsql.xq_said(item)), ' ' order by place), '')
          from jsonb_array_elements(items) with ordinality i(item, place));

create or replace function tsql.xq_name(kind text, node jsonb) returns text language sql immutable parallel safe
return case kind when 'local-name' then tsql.xml_local_name(node) else coalesce(substring(node ->> 'n' from '^\{([^}]*)\}'), '') end;
