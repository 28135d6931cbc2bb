-- XML without a library: the server may have been built without libxml. A text becomes a tree in jsonb, and a path of
-- XQuery (translation/xml_paths.py) a path of jsonpath over it. A node is
--   {"k": "d", "c": [...]}                                 a document or fragment
--   {"k": "e", "n": name, "q": as written, "p": position among its namesakes, "i": among elements, "a": {"@name": value},
--    "r": {"@name": as written}, "s": namespaces in scope, "c": [...], "v": text of an element that holds only text}
--   {"k": "t", "v": text, "p": position}                   text; {"k": "c" or "i", "v": ...} comment or instruction
-- where a name is local, or {namespace}local.

create or replace function tsql.xml_refuse(number integer, said text, tokens text[], place integer) returns void
language plpgsql immutable as $$
declare
    before text := array_to_string(tokens[1:place - 1], '');
begin
    perform tsql.refuse(number, format('XML parsing: line %s, character %s, %s',
        length(before) - length(replace(before, E'\n', '')) + 1, length(before) - coalesce(length(substring(before from '^.*\n')), 0) + 1, said));
end $$;

-- U+0000 stands in no XML: 9420 where it is read, 6841 where FOR XML writes it.
create or replace function tsql.refuse_zero(number integer, said text) returns text language plpgsql immutable parallel safe as $$
begin
    perform tsql.refuse(number, case number when 9420 then 'XML parsing: illegal xml character'
        else 'FOR XML could not serialize the data because it contains a character (0x0000) which is not allowed in XML. '
             'To retrieve this data using FOR XML, convert it to binary, varbinary or image data type and use the BINARY BASE64 directive.' end);
    return said;  -- by which it is no constant, that the planner would compute
end $$;

-- The character that a reference means: its number, or behind an x its hexadecimal one.
create or replace function tsql.xml_character(reference text) returns text language plpgsql immutable strict parallel safe as $$
declare
    code text := case when left(reference, 1) = 'x' then ('x' || lpad(substr(reference, 2), 8, '0'))::bit(32)::integer::text
                      else reference end;
begin
    if code::numeric not between 9 and 1114110 or code::integer between 55296 and 57343 then
        perform tsql.refuse(9420, 'XML parsing: illegal xml character');
    end if;
    return chr(code::integer);
end $$;

create or replace function tsql.xml_unescaped(said text) returns text language plpgsql immutable strict parallel safe as $$
begin
    if strpos(said, '&') = 0 then return said; end if;
    if said ~ '&(?!(lt|gt|amp|quot|apos|#[0-9]+|#x[0-9A-Fa-f]+);)' then
        perform tsql.refuse(9448, 'XML parsing: well formed check: undeclared entity');
    end if;
    return (
        select string_agg(case when left(piece, 2) = '&#' then tsql.xml_character(substr(piece, 3, length(piece) - 3))
                               when left(piece, 1) <> '&' then piece
                               else case piece when '&lt;' then '<' when '&gt;' then '>' when '&quot;' then '"'
                                               when '&apos;' then '''' else '&' end end, '' order by place)
          from regexp_matches(said, '&[^;]+;|[^&]+', 'g') with ordinality as pieces (piece_of, place)
         cross join lateral (select piece_of[1] as piece) one);
end $$;

create or replace function tsql.xml_name(written text, scope jsonb, is_attribute boolean) returns text
language plpgsql immutable parallel safe as $$
declare
    prefix text := case when strpos(written, ':') > 0 then split_part(written, ':', 1) else '' end;
    uri text;
begin
    if prefix = 'xml' then return '{http://www.w3.org/XML/1998/namespace}' || split_part(written, ':', 2); end if;
    if prefix = '' and is_attribute then return written; end if;
    uri := scope ->> prefix;
    if prefix <> '' and uri is null then
        perform tsql.refuse(9459, format('XML parsing: undeclared prefix ''%s''', prefix));
    end if;
    return case when coalesce(uri, '') = '' then written else '{' || uri || '}' || regexp_replace(written, '^.*:', '') end;
end $$;

-- The nodes from a place on up to the end tag that closes them.
create or replace function tsql.xml_content(tokens text[], inout place integer, scope jsonb, depth integer, out nodes jsonb[], out said text, out has_elements boolean)
language plpgsql immutable parallel safe as $$
declare
    token text;
    positions jsonb := '{}';
    elements integer := 0;
    texts integer := 0;
    name text;
    written text;
    own jsonb;
    attributes jsonb;
    spelled jsonb;
    written_order text[];  -- of the attributes: jsonb has one of its own
    names text[];
    texts_of text[];
    below record;
    piece text;
begin
    nodes := '{}'; said := ''; has_elements := false;
    while place <= cardinality(tokens) loop
        token := tokens[place];
        if left(token, 1) <> '<' or left(token, 9) = '<![CDATA[' then
            if left(token, 1) = '<' then piece := substr(token, 10, length(token) - 12);
            elsif strpos(token, ']]>') > 0 then perform tsql.xml_refuse(9420, 'illegal xml character', tokens, place);
            else piece := case when token ~ '^\s*$' then '' else tsql.xml_unescaped(token) end;
            end if;
            if piece <> '' then
                texts := texts + 1;
                said := said || piece;
                nodes := nodes || jsonb_build_object('k', 't', 'v', piece, 'p', texts);
            end if;
            place := place + 1;
        elsif left(token, 2) = '</' then
            return;
        elsif left(token, 4) = '<!--' then
            nodes := nodes || jsonb_build_object('k', 'c', 'v', substr(token, 5, length(token) - 7));
            place := place + 1;
        elsif left(token, 2) = '<?' then
            if token !~* '^<\?xml\s' then nodes := nodes || jsonb_build_object('k', 'i', 'v', substr(token, 3, length(token) - 4)); end if;
            place := place + 1;
        elsif left(token, 2) = '<!' then
            perform tsql.xml_refuse(6359, 'Parsing XML with internal subset DTDs not allowed. Leave the DTD out.', tokens, place);
        else
            if depth > 128 then
                perform tsql.refuse(6335, 'XML datatype instance has too many levels of nested nodes. Maximum allowed depth is 128 levels.');
            end if;
            written := substring(token from '^<([A-Za-z_\u0080-\uffff][\w.\-:\u0080-\uffff]*)');
            if written is null or token !~ '^<[^\s/>]+(\s+[^\s=/>]+\s*=\s*("[^"<]*"|''[^''<]*''))*\s*/?>$' then
                perform tsql.xml_refuse(9455, 'illegal qualified name character', tokens, place);
            end if;
            own := scope; attributes := '{}'; spelled := '{}'; written_order := '{}';
            if strpos(token, '=') > 0 then
                select array_agg(m[1] order by at), array_agg(tsql.xml_unescaped(substr(m[2], 2, length(m[2]) - 2)) order by at)
                  into names, texts_of
                  from regexp_matches(token, '\s([^\s=/>]+)\s*=\s*("[^"]*"|''[^'']*'')', 'g') with ordinality found (m, at);
                select own || coalesce(jsonb_object_agg(substr(a.short, 7), a.content), '{}') into own
                  from unnest(names, texts_of) a (short, content) where a.short = 'xmlns' or left(a.short, 6) = 'xmlns:';
                select coalesce(jsonb_object_agg(f.full_name, a.content), '{}'), coalesce(array_agg(f.full_name order by a.at), '{}'),
                       coalesce(jsonb_object_agg(f.full_name, a.short) filter (where f.full_name <> '@' || a.short), '{}')
                  into attributes, written_order, spelled
                  from unnest(names, texts_of) with ordinality a (short, content, at)
                 cross join lateral (select '@' || tsql.xml_name(a.short, own, true) as full_name) f
                 where a.short <> 'xmlns' and left(a.short, 6) <> 'xmlns:';
                if (select count(distinct w.full_name) from unnest(written_order) w (full_name)) < cardinality(written_order) then
                    perform tsql.xml_refuse(9437, 'duplicate attribute', tokens, place);
                end if;
            end if;
            name := tsql.xml_name(written, own, false);
            positions := positions || jsonb_build_object(name, coalesce((positions ->> name)::integer, 0) + 1);
            elements := elements + 1;
            has_elements := true;
            place := place + 1;
            if right(token, 2) = '/>' then
                below := row(place, '{}'::jsonb[], '', false);
                nodes := nodes || jsonb_build_object('k', 'e', 'n', name, 'q', written, 'p', positions -> name, 'i', elements, 'a', attributes,
                                                     'r', spelled, 's', own, 'c', '[]'::jsonb, 'v', '', 'o', to_jsonb(written_order));
            else
                below := tsql.xml_content(tokens, place, own, depth + 1);
                place := below.place;
                if place > cardinality(tokens) then
                    perform tsql.xml_refuse(9400, 'unexpected end of input', tokens, place);
                elsif tokens[place] !~ ('^</' || regexp_replace(written, '([.\-])', '\\\1', 'g') || '\s*>$') then
                    perform tsql.xml_refuse(9436, 'end tag does not match start tag', tokens, place);
                end if;
                place := place + 1;
                own := jsonb_build_object('k', 'e', 'n', name, 'q', written, 'p', positions -> name, 'i', elements, 'a', attributes,
                                          'r', spelled, 's', own, 'c', to_jsonb(below.nodes), 'o', to_jsonb(written_order));
                if not below.has_elements then own := own || jsonb_build_object('v', below.said); end if;
                nodes := nodes || own;
                said := said || below.said;
            end if;
        end if;
    end loop;
end $$;

create or replace function tsql.xml_tree(value text) returns jsonb language plpgsql immutable strict parallel safe as $$
declare
    tokens text[];
    found record;
begin
    value := ltrim(value, chr(65279));
    if strpos(value, tsql.zero()) > 0 then perform tsql.refuse_zero(9420, ''); end if;
    if value ~* '^\s*(<\?.*?\?>\s*)?<!DOCTYPE' then
        perform tsql.refuse(6359, 'Parsing XML with internal subset DTDs not allowed. Leave the DTD out.');
    end if;
    tokens := array(select m[1] from regexp_matches(value,
        '(<!--(?:(?!-->).)*(?:-->|$)|<!\[CDATA\[(?:(?!\]\]>).)*(?:\]\]>|$)|<\?(?:(?!\?>).)*(?:\?>|$)|<(?:[^<>"'']|"[^"]*"|''[^'']*'')*>|[^<]+)', 'g') m);
    -- what is not closed goes to the end: otherwise the rest would be passed again for each one
    if length(array_to_string(tokens, '')) <> length(value)
       or tokens[cardinality(tokens)] ~ '^<!--' and tokens[cardinality(tokens)] !~ '^<!--.*-->$'
       or tokens[cardinality(tokens)] ~ '^<!\[CDATA\[' and tokens[cardinality(tokens)] !~ '\]\]>$'
       or tokens[cardinality(tokens)] ~ '^<\?' and tokens[cardinality(tokens)] !~ '^<\?.*\?>$' then
        perform tsql.refuse(9400, 'XML parsing: line 1, character 1, unexpected end of input');
    end if;
    found := tsql.xml_content(tokens, 1, '{}', 1);
    if found.place <= cardinality(tokens) then
        perform tsql.xml_refuse(9436, 'end tag does not match start tag', tokens, found.place);
    end if;
    return jsonb_build_object('k', 'd', 'c', to_jsonb(found.nodes));
end $$;
create or replace function tsql.xml_tree(node jsonb) returns jsonb language sql immutable parallel safe return node;

create or replace function tsql.to_xml(value text) returns text language sql immutable strict parallel safe
return (select case when tsql.xml_tree(value) is not null then regexp_replace(ltrim(value, chr(65279)), '^\s*<\?xml\s(?:(?!\?>).)*\?>\s*', '') end);
create or replace function tsql.to_xml(value text, style integer) returns text language sql immutable strict parallel safe return tsql.to_xml(value);

-- The text of XML: its mark says how it is encoded, or a NUL where none can be, or its declaration; else it is UTF-8.
create or replace function tsql.xml_decoded(value bytea) returns text language plpgsql immutable strict parallel safe as $$
declare
    declared text := coalesce(lower(substring(encode(substring(value, 1, 200), 'escape')
                                              from '(?i)^<\?xml\s[^>]*encoding\s*=\s*["'']([\w.-]+)["'']')), 'utf-8');
begin
    if substring(value, 1, 2) = '\xfffe' then return tsql.utf16_decoded(substring(value, 3)); end if;
    if substring(value, 1, 2) = '\xfeff' then return tsql.utf16_decoded(tsql.swapped(substring(value, 3))); end if;
    if substring(value, 2, 1) = '\x00' then return tsql.utf16_decoded(value); end if;
    if substring(value, 1, 1) = '\x00' then return tsql.utf16_decoded(tsql.swapped(value)); end if;
    if position('\x00'::bytea in value) > 0 then perform tsql.refuse_zero(9420, ''); end if;
    if substring(value, 1, 3) = '\xefbbbf' then return convert_from(substring(value, 4), 'UTF8'); end if;
    if declared in ('iso-8859-1', 'windows-1252') then return tsql.single_decoded(value); end if;
    if pg_char_to_encoding(declared) < 0 then
        perform tsql.refuse(9402, 'XML parsing: line 1, character 1, unable to switch the encoding');
    end if;
    return convert_from(value, declared);
end $$;
create or replace function tsql.swapped(bytes bytea) returns bytea language sql immutable strict parallel safe
return decode(regexp_replace(encode(bytes, 'hex'), '(..)(..)', '\2\1', 'g'), 'hex');

create or replace function tsql.to_xml(value bytea) returns text language sql immutable strict parallel safe
return tsql.to_xml(tsql.xml_decoded(value));
create or replace function tsql.to_xml(value bytea, style integer) returns text language sql immutable strict parallel safe return tsql.to_xml(value);

-- --- what is in a node ---

create or replace function tsql.xml_string(node jsonb) returns text language sql immutable strict parallel safe
return case when jsonb_typeof(node) <> 'object' then node #>> '{}'
            when node ? 'v' then node ->> 'v'
            else (select coalesce(string_agg(piece #>> '{}', '' order by place), '')
                    from jsonb_path_query(node, 'strict $.** ? (@.k == "t").v') with ordinality p(piece, place)) end;

create or replace function tsql.xml_escaped(said text) returns text language sql immutable strict parallel safe
return replace(replace(replace(said, '&', '&amp;'), '<', '&lt;'), '>', '&gt;');
create or replace function tsql.xml_attribute(said text) returns text language sql immutable strict parallel safe
return replace(replace(replace(tsql.xml_escaped(said), '"', '&quot;'), E'\n', '&#xA;'), E'\t', '&#x9;');

create or replace function tsql.xml_written(node jsonb, scope jsonb default '{}') returns text language plpgsql immutable strict parallel safe as $$
declare
    own jsonb := coalesce(node -> 's', scope);
    inside text;
begin
    if jsonb_typeof(node) <> 'object' then return tsql.xml_escaped(node #>> '{}'); end if;
    case node ->> 'k'
        when 't' then return tsql.xml_escaped(node ->> 'v');
        when 'c' then return '<!--' || (node ->> 'v') || '-->';
        when 'i' then return '<?' || (node ->> 'v') || '?>';
        else null;
    end case;
    select coalesce(string_agg(tsql.xml_written(child, own), '' order by place), '') into inside
      from jsonb_array_elements(node -> 'c') with ordinality c(child, place);
    if node ->> 'k' = 'd' then return inside; end if;
    return '<' || (node ->> 'q')
        || coalesce((select string_agg(' xmlns' || case when key = '' then '' else ':' || key end || '="' || tsql.xml_attribute(value) || '"', '' order by key)
                       from jsonb_each_text(own) where scope ->> key is distinct from value), '')
        || coalesce((select string_agg(' ' || coalesce(node -> 'r' ->> key, substr(key, 2)) || '="' || tsql.xml_attribute(value) || '"', ''
                                       order by place nulls last)
                       from jsonb_each_text(node -> 'a')
                       left join jsonb_array_elements_text(node -> 'o') with ordinality o(name, place) on name = key), '')
        || case when inside = '' then '/>' else '>' || inside || '</' || (node ->> 'q') || '>' end;
end $$;

create or replace function tsql.to_xml(node jsonb) returns text language sql immutable strict parallel safe return tsql.xml_written(node, '{}');

-- --- the methods; `variables` are those of sql:variable() and sql:column() ---

create or replace function tsql.xml_items(tree jsonb, path text, variables jsonb default '{}') returns setof jsonb
language sql immutable strict parallel safe rows 5 return jsonb_path_query(tree, path::jsonpath, variables);
create or replace function tsql.xml_item(tree jsonb, path text, place integer, variables jsonb default '{}') returns jsonb
language sql immutable strict parallel safe return jsonb_path_query_array(tree, path::jsonpath, variables) -> place;
create or replace function tsql.xml_exist(tree jsonb, path text, variables jsonb default '{}') returns smallint
language sql immutable strict parallel safe return jsonb_path_exists(tree, path::jsonpath, variables)::integer::smallint;
create or replace function tsql.xml_query(tree jsonb, path text, variables jsonb default '{}') returns text
language sql immutable strict parallel safe
return (select coalesce(string_agg(tsql.xml_written(item), '' order by place), '')
          from jsonb_path_query(tree, path::jsonpath, variables) with ordinality i(item, place));
create or replace function tsql.xml_count(tree jsonb, path text, variables jsonb default '{}') returns integer
language sql immutable strict parallel safe return jsonb_array_length(jsonb_path_query_array(tree, path::jsonpath, variables));
create or replace function tsql.xml_local_name(node jsonb) returns text language sql immutable strict parallel safe
return regexp_replace(regexp_replace(coalesce(node ->> 'n', ''), '^\{[^}]*\}', ''), '^.*:', '');

-- --- FOR XML: a value as it stands in a document ---

-- A document that was put together, and a value that goes into one.
create or replace function tsql.xml_document(said text) returns text language sql immutable parallel safe
return case when strpos(said, tsql.zero()) > 0 then tsql.refuse_zero(6841, said) else said end;
create or replace function tsql.xml_value(said text) returns text language sql immutable parallel safe
return case when strpos(said, tsql.zero()) > 0 then tsql.refuse_zero(9420, said) else said end;
create or replace function tsql.xml_text(said text) returns text language sql immutable parallel safe return said;
create or replace function tsql.xml_text(bytes bytea) returns text language sql immutable parallel safe return replace(encode(bytes, 'base64'), E'\n', '');
create or replace function tsql.xml_text(moment timestamp) returns text language sql immutable parallel safe return tsql.moment_text(moment, 126);
create or replace function tsql.xml_text(moment timestamptz) returns text language sql immutable parallel safe return tsql.moment_text(moment at time zone 'UTC', 126);
do $$
declare
    of text;
begin
    foreach of in array array['smallint', 'integer', 'bigint', 'numeric', 'float8', 'uuid', 'date', 'time'] loop
        execute format('create or replace function tsql.xml_text(value %s) returns text language sql immutable parallel safe return tsql.to_nvarchar(value)', of);
        execute format('create or replace function tsql.json_text(value %s) returns text language sql immutable parallel safe return %s', of,
                       case when of in ('uuid', 'date', 'time') then 'to_json(tsql.to_nvarchar(value))::text' else 'tsql.to_nvarchar(value)' end);
    end loop;
end $$;
create or replace function tsql.xml_text(node jsonb) returns text language sql immutable parallel safe return tsql.xml_string(node);
create or replace function tsql.json_text(said text) returns text language sql immutable parallel safe return to_json(said)::text;
create or replace function tsql.json_text(bytes bytea) returns text language sql immutable parallel safe return to_json(tsql.xml_text(bytes))::text;
create or replace function tsql.json_text(moment timestamp) returns text language sql immutable parallel safe return to_json(tsql.xml_text(moment))::text;
create or replace function tsql.json_text(moment timestamptz) returns text language sql immutable parallel safe return to_json(tsql.xml_text(moment))::text;
