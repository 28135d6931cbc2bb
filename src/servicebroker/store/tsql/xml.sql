-- XML without a library, since PostgreSQL may have been built without libxml. A document is parsed into a tree in
-- jsonb, and an XQuery path becomes a jsonpath over the tree (translation/xml_paths.py). A node is one of
--   {"k": "d", "c": [...]}                                 a document or fragment
--   {"k": "e", "n": name, "q": as written, "p": position among its namesakes, "i": among elements,
--    "a": {"@name": value}, "r": {"@name": as written}, "s": namespaces in scope, "c": [...],
--    "v": text of an element that holds only text}
--   {"k": "t", "v": text, "p": position}                   text; {"k": "c" or "i", "v": ...} comment or instruction
-- A name is the local name, or {namespace}local.

-- Refuse a text that was split into tokens. The error names the position `ahead` characters after the start of the
-- token `place`, at most that of the last character. Rules, numbers and texts are those of model/xml_problems.py.
create or replace function tsql.xml_refuse(number integer, tokens text[], place integer, ahead integer) returns void
language plpgsql immutable parallel safe as $$
declare
    whole text := array_to_string(tokens, '');
    before text := left(whole, greatest(0, least(length(array_to_string(tokens[1:place - 1], '')) + ahead, length(whole) - 1)));
begin
    perform tsql.refuse(number, format('XML parsing: line %s, character %s, %s',
        length(before) - length(replace(before, E'\n', '')) + 1,
        length(before) - coalesce(length(substring(before from '^.*\n')), 0) + 1, tsql.xml_problem(number)));
end $$;
create or replace function tsql.xml_refuse_at_end(number integer, tokens text[]) returns void language sql immutable parallel safe
return tsql.xml_refuse(number, tokens, 1, 1000000000);

-- Refuse the first bad reference of `said`, a part of the token `place`.
create or replace function tsql.xml_refuse_reference(said text, tokens text[], place integer) returns void language plpgsql immutable parallel safe as $$
declare
    bad text := substring(said from '&(?!(?:lt|gt|amp|quot|apos|#[0-9]+|#x[0-9A-Fa-f]+);).*$');
    ahead integer := strpos(tokens[place], said) - 1 + length(said) - length(bad);
    begun text;
begin
    if bad ~ '^&#x' then
        begun := substring(bad from '^&#x[0-9A-Fa-f]*');
        perform tsql.xml_refuse(case begun when '&#x' then 9416 else 9411 end, tokens, place, ahead + length(begun));
    elsif bad ~ '^&#' then
        begun := substring(bad from '^&#[0-9]*');
        perform tsql.xml_refuse(case begun when '&#' then 9417 else 9411 end, tokens, place, ahead + length(begun));
    end if;
    begun := substring(bad from '^&[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*(?::[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*)?');
    if begun is null then perform tsql.xml_refuse(9421, tokens, place, ahead + 1); end if;
    perform tsql.xml_refuse(case substr(bad, length(begun) + 1, 1) when ';' then 9448 else 9411 end, tokens, place, ahead + length(begun));
end $$;

-- Refuse a bad colon after a name that ends `ahead` characters after the start of the tag: a second colon, or one
-- without a local name.
create or replace function tsql.xml_refuse_colon(rest text, name text, tokens text[], place integer, ahead integer) returns void
language plpgsql immutable parallel safe as $$
begin
    if substr(rest, ahead + 1, 1) <> ':' then return; end if;
    if strpos(name, ':') > 0 then perform tsql.xml_refuse(9456, tokens, place, ahead); end if;
    perform tsql.xml_refuse(9455, tokens, place, ahead + 1);
end $$;

-- Refuse a malformed tag. A `<` without its `>` is a token of its own; the rest of the tag is in the next tokens.
create or replace function tsql.xml_refuse_tag(tokens text[], place integer) returns void language plpgsql immutable parallel safe as $$
declare
    qualified constant text := '[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*(?::[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*)?';
    rest text := case when tokens[place] = '<' then left(array_to_string(tokens[place:], ''), 65536) else tokens[place] end;
    opening text := substring(rest from '^</?');
    good text := substring(rest from '^</?' || qualified);
    behind text;
    sign text := substr(rest, 3, 1);
    ahead integer;
begin
    if rest ~ '^<!' then
        perform tsql.xml_refuse(case sign when '-' then 9424 when '[' then 9423 else 9422 end, tokens, place,
                                case when sign in ('-', '[') then 3 else 2 end);
    end if;
    if good is null then
        perform tsql.xml_refuse(case rest when opening then 9400 else 9455 end, tokens, place, length(opening));
    end if;
    perform tsql.xml_refuse_colon(rest, good, tokens, place, length(good));
    ahead := length(good) + length(substring(substr(rest, length(good) + 1) from '^\s*'));
    if opening = '</' then perform tsql.xml_refuse(9412, tokens, place, ahead); end if;
    good := substring(rest from '^<' || qualified || '(?:\s+' || qualified || '\s*=\s*(?:"[^"<]*"|''[^''<]*''))*');
    ahead := length(good) + length(substring(substr(rest, length(good) + 1) from '^\s*'));
    sign := substr(rest, ahead + 1, 1);
    if sign = '' then perform tsql.xml_refuse_at_end(9400, tokens); end if;
    if sign = '/' then perform tsql.xml_refuse(9412, tokens, place, ahead + 1); end if;
    if ahead = length(good) then
        perform tsql.xml_refuse(case when strpos(good, '=') > 0 then 9410 else 9455 end, tokens, place, ahead);
    end if;
    good := substring(substr(rest, ahead + 1) from '^' || qualified);
    if good is null then perform tsql.xml_refuse(9455, tokens, place, ahead); end if;
    ahead := ahead + length(good);
    perform tsql.xml_refuse_colon(rest, good, tokens, place, ahead);
    ahead := ahead + length(substring(substr(rest, ahead + 1) from '^\s*'));
    if substr(rest, ahead + 1, 1) <> '=' then perform tsql.xml_refuse(9414, tokens, place, ahead); end if;
    ahead := ahead + 1 + length(substring(substr(rest, ahead + 2) from '^\s*'));
    sign := substr(rest, ahead + 1, 1);
    if sign not in ('"', '''') then perform tsql.xml_refuse(9413, tokens, place, ahead); end if;
    behind := substr(rest, ahead + 2);
    if strpos(behind, '<') > 0 and (strpos(behind, sign) = 0 or strpos(behind, '<') < strpos(behind, sign)) then
        perform tsql.xml_refuse(9415, tokens, place, ahead + strpos(behind, '<'));
    end if;
    perform tsql.xml_refuse_at_end(9400, tokens);
end $$;

-- Refuse an end tag that does not match.
create or replace function tsql.xml_refuse_end(tokens text[], place integer) returns void language plpgsql immutable parallel safe as $$
begin
    if tokens[place] !~ '^</[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*(?::[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*)?\s*>$' then
        perform tsql.xml_refuse_tag(tokens, place);
    end if;
    perform tsql.xml_refuse(9436, tokens, place, length(tokens[place]) - 1);
end $$;

-- The content of a processing instruction or comment; '' for the XML declaration. A malformed one is refused.
create or replace function tsql.xml_instruction(tokens text[], place integer) returns text language plpgsql immutable parallel safe as $$
declare
    token text := tokens[place];
    name text := substring(token from '^<\?[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*(?::[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*)?');
begin
    if name is null then perform tsql.xml_refuse(case token when '<?' then 9400 else 9421 end, tokens, place, 2); end if;
    if name = '<?xml' then
        if place > 1 then perform tsql.xml_refuse(9438, tokens, place, 5); end if;
        if right(token, 2) <> '?>' then perform tsql.xml_refuse_at_end(9400, tokens); end if;
        if token !~ '^<\?xml\s+version\s*=\s*(?:"1\.0"|''1\.0'')(?:\s+encoding\s*=\s*(?:"[^"<>]*"|''[^''<>]*''))?(?:\s+standalone\s*=\s*(?:"(?:yes|no)"|''(?:yes|no)''))?\s*\?>$' then
            perform tsql.xml_refuse(9441, tokens, place, length(token) - 1);
        end if;
        return '';
    end if;
    if substr(token, length(name) + 1) !~ '^(?:\?|\s|$)' then perform tsql.xml_refuse(9421, tokens, place, length(name)); end if;
    if right(token, 2) <> '?>' then perform tsql.xml_refuse_at_end(9451, tokens); end if;
    return substr(token, 3, length(token) - 4);
end $$;
create or replace function tsql.xml_comment(tokens text[], place integer) returns text language plpgsql immutable parallel safe as $$
declare
    inside text := substr(tokens[place], 5);
    dashes integer := strpos(inside, '--');
begin
    if dashes = 0 then perform tsql.xml_refuse_at_end(9424, tokens); end if;
    if substr(inside, dashes + 2, 1) <> '>' then perform tsql.xml_refuse(9412, tokens, place, dashes + 5); end if;
    return left(inside, dashes - 1);
end $$;

-- A regular expression for characters that XML forbids: control characters, and tsql.zero(), which stands for U+0000.
create or replace function tsql.xml_illegal() returns text language sql immutable parallel safe
return '[\u0001-\u0008\u000b\u000c\u000e-\u001f\ufffe\uffff' || tsql.zero() || ']';

-- Refuse a value for a document because of a forbidden character (9420).
create or replace function tsql.xml_refuse_character(said text) returns text language plpgsql immutable parallel safe as $$
begin
    perform tsql.refuse(9420, 'XML parsing: illegal xml character');
    return said;  -- depends on the argument, so that the planner does not evaluate the call as a constant
end $$;

-- The document of FOR XML. As text it may have references to control characters, like SQL Server's. As xml, or with
-- U+0000, it is refused.
create or replace function tsql.xml_document(said text, is_typed boolean) returns text language plpgsql immutable parallel safe as $$
declare
    sign text := substring(said from tsql.xml_illegal());
begin
    if is_typed and strpos(said, '></') > 0 then
        said := regexp_replace(said, '<([^\s<>/!?]+)((?: [^\s<>=]+="[^"]*")*)></\1>', '<\1\2/>', 'g');
    end if;
    if sign is null then return said; end if;
    if strpos(said, tsql.zero()) > 0 then sign := tsql.zero(); end if;
    if is_typed or sign = tsql.zero() then
        perform tsql.refuse(6841, format(
            'FOR XML could not serialize the data for node ''%s'' because it contains a character (0x%s) which is not allowed in XML. '
            'To retrieve this data using FOR XML, convert it to binary, varbinary or image data type and use the BINARY BASE64 directive.',
            -- the last attribute or start tag before the character
            coalesce(substring(split_part(said, sign, 1) from '\s([^\s=<>"]+)="[^"<>]*$'),
                     substring(split_part(said, sign, 1) from '<([^\s/>!?]+)[^<>]*>[^<]*$'), 'NoName'),
            case when sign = tsql.zero() then '0000' else lpad(upper(to_hex(ascii(sign))), 4, '0') end));
    end if;
    for sign in select distinct m[1] from regexp_matches(said, tsql.xml_illegal(), 'g') m loop
        said := replace(said, sign, '&#x' || lpad(upper(to_hex(ascii(sign))), 2, '0') || ';');
    end loop;
    return said;
end $$;

-- For views that were created before migration 0496.
create or replace function tsql.xml_document(said text) returns text language sql immutable parallel safe return tsql.xml_document(said, false);

-- The character of a numeric reference: a decimal number, or a hexadecimal one after x.
create or replace function tsql.xml_character(reference text, tokens text[], place integer) returns text
language plpgsql immutable parallel safe as $$
declare
    digits text := ltrim(ltrim(reference, 'x'), '0');
    code integer := case when length(digits) > 7 or digits = '' then 0
                         when left(reference, 1) = 'x' then ('x' || lpad(digits, 8, '0'))::bit(32)::integer
                         else digits::integer end;
begin
    if code not between 9 and 1114110 or code between 55296 and 57343 or chr(code) ~ '[\u000b\u000c\u000e-\u001f\ufffe\uffff]' then
        perform tsql.xml_refuse(9420, tokens, place, strpos(tokens[place], '&#' || reference || ';') + length(reference) + 1);
    end if;
    return chr(code);
end $$;

-- A text or an attribute value of the token, with its references replaced by characters.
create or replace function tsql.xml_unescaped(said text, tokens text[], place integer) returns text language plpgsql immutable parallel safe as $$
begin
    if strpos(said, '&') = 0 then return said; end if;
    if said ~ '&(?!(lt|gt|amp|quot|apos|#[0-9]+|#x[0-9A-Fa-f]+);)' then perform tsql.xml_refuse_reference(said, tokens, place); end if;
    return (
        select string_agg(case when left(piece, 2) = '&#' then tsql.xml_character(substr(piece, 3, length(piece) - 3), tokens, place)
                               when left(piece, 1) <> '&' then piece
                               else case piece when '&lt;' then '<' when '&gt;' then '>' when '&quot;' then '"'
                                               when '&apos;' then '''' else '&' end end, '' order by at)
          from regexp_matches(said, '&[^;]+;|[^&]+', 'g') with ordinality as pieces (piece_of, at)
         cross join lateral (select piece_of[1] as piece) one);
end $$;

create or replace function tsql.xml_name(written text, scope jsonb, is_attribute boolean, tokens text[], place integer) returns text
language plpgsql immutable parallel safe as $$
declare
    prefix text := case when strpos(written, ':') > 0 then split_part(written, ':', 1) else '' end;
    uri text;
begin
    if prefix = 'xml' then return '{http://www.w3.org/XML/1998/namespace}' || split_part(written, ':', 2); end if;
    if prefix = '' and is_attribute then return written; end if;
    uri := scope ->> prefix;
    if prefix <> '' and uri is null then
        perform tsql.xml_refuse(9459, tokens, place, length(tokens[place]) - 1);
    end if;
    return case when coalesce(uri, '') = '' then written else '{' || uri || '}' || regexp_replace(written, '^.*:', '') end;
end $$;

-- Parse nodes from the token `place` up to the end tag of their parent.
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
    written_order text[];  -- of the attributes, since jsonb has an order of its own
    names text[];
    texts_of text[];
    below record;
    piece text;
    problem integer;
begin
    nodes := '{}'; said := ''; has_elements := false;
    while place <= cardinality(tokens) loop
        token := tokens[place];
        if left(token, 1) <> '<' or left(token, 9) = '<![CDATA[' then
            if left(token, 1) = '<' then
                if right(token, 3) <> ']]>' then perform tsql.xml_refuse_at_end(9423, tokens); end if;
                piece := substr(token, 10, length(token) - 12);
            elsif strpos(token, ']]>') > 0 then perform tsql.xml_refuse(9454, tokens, place, strpos(token, ']]>') - 1);
            else piece := case when token ~ '^\s*$' then '' else tsql.xml_unescaped(token, tokens, place) end;
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
            nodes := nodes || jsonb_build_object('k', 'c', 'v', tsql.xml_comment(tokens, place));
            place := place + 1;
        elsif left(token, 2) = '<?' then
            piece := tsql.xml_instruction(tokens, place);
            if piece <> '' then nodes := nodes || jsonb_build_object('k', 'i', 'v', piece); end if;
            place := place + 1;
        elsif left(token, 2) = '<!' then
            if depth = 1 and left(token, 9) = '<!DOCTYPE' then perform tsql.xml_refuse_dtd(); end if;
            perform tsql.xml_refuse_tag(tokens, place);
        else
            if depth > 128 then
                perform tsql.refuse(6335, 'XML datatype instance has too many levels of nested nodes. Maximum allowed depth is 128 levels.');
            end if;
            written := substring(token from '^<([A-Za-z_\u0080-\uffff][\w.\-:\u0080-\uffff]*)');
            if token !~ '^<[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*(:[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*)?(\s+[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*(:[A-Za-z_\u0080-\uffff][\w.\-\u0080-\uffff]*)?\s*=\s*("[^"<]*"|''[^''<]*''))*\s*/?>$' then
                perform tsql.xml_refuse_tag(tokens, place);
            end if;
            own := scope; attributes := '{}'; spelled := '{}'; written_order := '{}';
            if strpos(token, '=') > 0 then
                select array_agg(m[1] order by at), array_agg(tsql.xml_unescaped(translate(substr(m[2], 2, length(m[2]) - 2), E'\n\t', '  '), tokens, place) order by at)
                  into names, texts_of
                  from regexp_matches(token, '\s([^\s=/>]+)\s*=\s*("[^"]*"|''[^'']*'')', 'g') with ordinality found (m, at);
                select own || coalesce(jsonb_object_agg(substr(a.short, 7), a.content), '{}'),
                       case when bool_or(a.content = '' and a.short <> 'xmlns') then 9460
                            when count(*) > count(distinct a.short) then 9458 end
                  into own, problem
                  from unnest(names, texts_of) a (short, content) where a.short = 'xmlns' or left(a.short, 6) = 'xmlns:';
                if problem is not null then perform tsql.xml_refuse(problem, tokens, place, length(token) - 1); end if;
                select coalesce(jsonb_object_agg(f.full_name, a.content), '{}'), coalesce(array_agg(f.full_name order by a.at), '{}'),
                       coalesce(jsonb_object_agg(f.full_name, a.short) filter (where f.full_name <> '@' || a.short), '{}')
                  into attributes, written_order, spelled
                  from unnest(names, texts_of) with ordinality a (short, content, at)
                 cross join lateral (select '@' || tsql.xml_name(a.short, own, true, tokens, place) as full_name) f
                 where a.short <> 'xmlns' and left(a.short, 6) <> 'xmlns:';
                if (select count(distinct w.full_name) from unnest(written_order) w (full_name)) < cardinality(written_order) then
                    perform tsql.xml_refuse(9437, tokens, place, length(token) - 1);
                end if;
            end if;
            name := tsql.xml_name(written, own, false, tokens, place);
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
                    perform tsql.xml_refuse_at_end(9400, tokens);
                elsif tokens[place] !~ ('^</' || regexp_replace(written, '([.\-])', '\\\1', 'g') || '\s*>$') then
                    perform tsql.xml_refuse_end(tokens, place);
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

create or replace function tsql.xml_refuse_dtd() returns void language sql immutable parallel safe
return tsql.refuse(6359, 'Parsing XML with internal subset DTDs not allowed. Leave the DTD out.');

create or replace function tsql.xml_tree(value text) returns jsonb language plpgsql immutable strict parallel safe as $$
declare
    tokens text[];
    found record;
begin
    value := ltrim(value, chr(65279));
    if strpos(value, E'\r') > 0 then value := replace(replace(value, E'\r\n', E'\n'), E'\r', E'\n'); end if;
    if value ~ tsql.xml_illegal() then
        perform tsql.xml_refuse(9420, array[value], 1, strpos(value, substring(value from tsql.xml_illegal())) - 1);
    end if;
    if value ~* '^\s*(<\?.*?\?>\s*)?<!DOCTYPE' then perform tsql.xml_refuse_dtd(); end if;
    -- an unclosed token extends to the end; otherwise the rest would be scanned again for each one
    tokens := array(select m[1] from regexp_matches(value,
        '(<!--(?:(?!-->).)*(?:-->|$)|<!\[CDATA\[(?:(?!\]\]>).)*(?:\]\]>|$)|<\?(?:(?!\?>).)*(?:\?>|$)|<(?:[^<>"'']|"[^"]*"|''[^'']*'')*>|<|[^<]+)', 'g') m);
    found := tsql.xml_content(tokens, 1, '{}', 1);
    if found.place <= cardinality(tokens) then  -- an end tag, which is no name where nothing came before it
        if array_to_string(tokens[1:found.place - 1], '') ~ '^\s*$' then perform tsql.xml_refuse(9455, tokens, found.place, 1); end if;
        perform tsql.xml_refuse_end(tokens, found.place);
    end if;
    return jsonb_build_object('k', 'd', 'c', to_jsonb(found.nodes));
end $$;
create or replace function tsql.xml_tree(node jsonb) returns jsonb language sql immutable parallel safe return node;

-- A text in XML. A carriage return, and the last character of white space alone, become references: parsers would
-- change or drop them.
create or replace function tsql.xml_escaped(said text) returns text language sql immutable strict parallel safe
return case when said <> '' and ltrim(said, E' \t\n\r') = ''
            then replace(left(said, -1), E'\r', '&#x0D;') || '&#x' || lpad(upper(to_hex(ascii(right(said, 1)))), 2, '0') || ';'
            else replace(replace(replace(replace(said, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'), E'\r', '&#x0D;') end;
create or replace function tsql.xml_attribute(said text) returns text language sql immutable strict parallel safe
return replace(replace(replace(replace(replace(replace(replace(said, '&', '&amp;'), '<', '&lt;'), '>', '&gt;'),
                                       '"', '&quot;'), E'\r', '&#x0D;'), E'\n', '&#xA;'), E'\t', '&#x9;');

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

-- The text of a value of type xml with all its white space, without byte order mark and declaration.
create or replace function tsql.xml_kept(value text) returns text language sql immutable strict parallel safe
return (select case when tsql.xml_tree(value) is not null then regexp_replace(ltrim(value, chr(65279)), '^<\?xml\s(?:(?!\?>).)*\?>\s*', '') end);

-- Whether tsql.xml_written returns a text as it is: quotes, references, empty elements and white space stand in it as
-- SQL Server writes them. Also true, so that its white space stays, for a text with xml:space.
create or replace function tsql.is_xml_written(said text) returns boolean language sql immutable strict parallel safe
return strpos(said, 'xml:space') > 0
    or said ~ '^(?:<[^\s<>"''=/!?]+(?: [^\s<>"''=/]+="(?:[^"<>&\n\t\r]|&(?:amp|lt|gt|quot);)*")*/?>|</[^\s<>]+>|(?:[^<>&\r]|&(?:amp|lt|gt);)+)*$'
   and said !~ '(?:^|>)\s+(?:<|$)|<[^\s<>/!?]+(?: [^\s<>=]+="[^"]*")*></';

-- The text of a value of type xml, as SQL Server writes it: without text of white space alone.
create or replace function tsql.xml_parsed(value text) returns text language sql immutable strict parallel safe
return (select case when tsql.is_xml_written(said) then said else tsql.xml_written(tsql.xml_tree(said)) end
          from (select tsql.xml_kept(value) as said offset 0) t);

-- The encoding in the XML declaration of a text, in lower case.
create or replace function tsql.xml_encoding(value text) returns text language sql immutable strict parallel safe
return lower(substring(left(ltrim(value, chr(65279)), 400) from '^<\?xml\s[^>]*\sencoding\s*=\s*["'']([^"''>]*)["'']'));
create or replace function tsql.xml_refuse_encoding(value text) returns void language sql immutable strict parallel safe
return tsql.xml_refuse(9402, array[value], 1, strpos(value, '>') - 1);

-- Check the declaration of an nvarchar: only a two-byte encoding is allowed.
create or replace function tsql.xml_checked(value text) returns text language plpgsql immutable strict parallel safe as $$
begin
    if tsql.xml_encoding(value) not in ('utf-16', 'ucs-2', 'iso-10646-ucs-2') then perform tsql.xml_refuse_encoding(value); end if;
    return value;
end $$;

create or replace function tsql.to_xml(value text) returns text language sql immutable strict parallel safe
return tsql.xml_parsed(tsql.xml_checked(value));
create or replace function tsql.to_xml(value text, style integer) returns text language sql immutable strict parallel safe
return case when style & 1 = 1 then tsql.xml_kept(tsql.xml_checked(value)) else tsql.to_xml(value) end;

-- Decode UTF-8. Invalid bytes are refused (9420).
create or replace function tsql.xml_narrow(value bytea) returns text language plpgsql immutable strict parallel safe as $$
declare
    octets text := convert_from(value, 'LATIN1');
    good text;
begin
    if octets ~ '[\u0080-\u00ff]' then
        good := substring(octets from '^(?:[\u0001-\u007f]|[\u00c2-\u00df][\u0080-\u00bf]|\u00e0[\u00a0-\u00bf][\u0080-\u00bf]|[\u00e1-\u00ec\u00ee\u00ef][\u0080-\u00bf]{2}|\u00ed[\u0080-\u009f][\u0080-\u00bf]|\u00f0[\u0090-\u00bf][\u0080-\u00bf]{2}|[\u00f1-\u00f3][\u0080-\u00bf]{3}|\u00f4[\u0080-\u008f][\u0080-\u00bf]{2})*');
        if length(good) < length(octets) then
            good := convert_from(convert_to(good, 'LATIN1'), 'UTF8');
            perform tsql.xml_refuse(9420, array[good || '?'], 1, length(good));
        end if;
    end if;
    return convert_from(value, 'UTF8');
end $$;

-- Decode UTF-16. Half of a surrogate pair is refused (9420).
create or replace function tsql.xml_wide(value bytea) returns text language plpgsql immutable strict parallel safe as $$
declare
    digits text := encode(value, 'hex');
    good text;
begin
    if digits ~ '^(?:....)*..d[89a-f]' then
        good := substring(digits from '^(?:..(?:[^d].|d[0-7])|..d[89ab]..d[c-f])*');
        if length(digits) - length(good) >= 4 then
            good := tsql.utf16_decoded(decode(good, 'hex'));
            perform tsql.xml_refuse(9420, array[good || '?'], 1, length(good));
        end if;
    end if;
    return tsql.xml_checked(tsql.utf16_decoded(value));
end $$;
create or replace function tsql.swapped(bytes bytea) returns bytea language sql immutable strict parallel safe
return decode(regexp_replace(encode(bytes, 'hex'), '(..)(..)', '\2\1', 'g'), 'hex');

-- Decode the bytes of an XML document. The encoding follows from the byte order mark, from a NUL byte, or from the
-- declaration; else it is UTF-8.
create or replace function tsql.xml_decoded(value bytea) returns text language plpgsql immutable strict parallel safe as $$
declare
    declared text;
begin
    if substring(value, 1, 2) = '\xfffe' then return tsql.xml_wide(substring(value, 3)); end if;
    if substring(value, 1, 2) = '\xfeff' then return tsql.xml_wide(tsql.swapped(substring(value, 3))); end if;
    if substring(value, 2, 1) = '\x00' then return tsql.xml_wide(value); end if;
    if substring(value, 1, 1) = '\x00' then return tsql.xml_wide(tsql.swapped(value)); end if;
    if substring(value, 1, 3) = '\xefbbbf' then value := substring(value, 4); end if;
    if position('\x00'::bytea in value) > 0 then
        perform tsql.xml_refuse(9420, array[tsql.single_decoded(value)], 1, position('\x00'::bytea in value) - 1);
    end if;
    declared := coalesce(tsql.xml_encoding(convert_from(substring(value, 1, 400), 'LATIN1')), 'utf-8');
    if declared in ('iso-8859-1', 'windows-1252') then return tsql.single_decoded(value); end if;
    if pg_char_to_encoding(declared) < 0 then perform tsql.xml_refuse_encoding(convert_from(value, 'LATIN1')); end if;
    if declared = 'utf-8' then return tsql.xml_narrow(value); end if;
    return convert_from(value, declared);
end $$;

create or replace function tsql.to_xml(value bytea) returns text language sql immutable strict parallel safe
return tsql.xml_parsed(tsql.xml_decoded(value));
create or replace function tsql.to_xml(value bytea, style integer) returns text language sql immutable strict parallel safe
return case when style & 1 = 1 then tsql.xml_kept(tsql.xml_decoded(value)) else tsql.to_xml(value) end;

-- A varchar as xml: its declared encoding is that of its bytes.
create or replace function tsql.to_xml_single(value text) returns text language sql immutable strict parallel safe
return case when tsql.xml_encoding(value) is null then tsql.xml_parsed(value) else tsql.to_xml(tsql.single_encoded(value)) end;
create or replace function tsql.to_xml_single(value text, style integer) returns text language sql immutable strict parallel safe
return case when style & 1 = 0 then tsql.to_xml_single(value)
            when tsql.xml_encoding(value) is null then tsql.xml_kept(value)
            else tsql.to_xml(tsql.single_encoded(value), style) end;

-- --- the content of a node ---

create or replace function tsql.xml_string(node jsonb) returns text language sql immutable strict parallel safe
return case when jsonb_typeof(node) <> 'object' then node #>> '{}'
            when node ? 'v' then node ->> 'v'
            else (select coalesce(string_agg(piece #>> '{}', '' order by place), '')
                    from jsonb_path_query(node, 'strict $.** ? (@.k == "t").v') with ordinality p(piece, place)) end;

create or replace function tsql.to_xml(node jsonb) returns text language sql immutable strict parallel safe return tsql.xml_written(node, '{}');

-- --- methods of the type xml; `variables` holds the values of sql:variable() and sql:column() ---

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

-- --- FOR XML: a value as text in a document ---

create or replace function tsql.xml_value(said text) returns text language sql immutable parallel safe
return case when said ~ tsql.xml_illegal() then tsql.xml_refuse_character(said) else said end;
create or replace function tsql.xml_text(said text) returns text language sql immutable parallel safe return said;
create or replace function tsql.xml_text(bytes bytea) returns text language sql immutable parallel safe return replace(encode(bytes, 'base64'), E'\n', '');
create or replace function tsql.xml_text(moment timestamp) returns text language sql immutable parallel safe return tsql.moment_text(moment, 126);
create or replace function tsql.xml_text(moment timestamptz) returns text language sql immutable parallel safe return tsql.moment_text(moment at time zone 'UTC', 126) || 'Z';
do $$
declare
    of text;
begin
    foreach of in array array['smallint', 'integer', 'bigint', 'numeric', 'uuid', 'date', 'time'] loop
        execute format('create or replace function tsql.xml_text(value %s) returns text language sql immutable parallel safe return tsql.to_nvarchar(value)', of);
        execute format('create or replace function tsql.json_text(value %s) returns text language sql immutable parallel safe return %s', of,
                       case when of in ('uuid', 'date', 'time') then 'to_json(tsql.to_nvarchar(value))::text' else 'tsql.to_nvarchar(value)' end);
    end loop;
end $$;
-- A float has sixteen digits in XML and JSON.
create or replace function tsql.xml_text(value float8) returns text language sql immutable parallel safe return tsql.float_text(value, 2);
create or replace function tsql.json_text(value float8) returns text language sql immutable parallel safe return tsql.float_text(value, 2);
create or replace function tsql.xml_text(node jsonb) returns text language sql immutable parallel safe return tsql.xml_string(node);
create or replace function tsql.json_text(said text) returns text language sql immutable parallel safe return to_json(said)::text;
create or replace function tsql.json_text(bytes bytea) returns text language sql immutable parallel safe return to_json(tsql.xml_text(bytes))::text;
create or replace function tsql.json_text(moment timestamp) returns text language sql immutable parallel safe return to_json(tsql.xml_text(moment))::text;
create or replace function tsql.json_text(moment timestamptz) returns text language sql immutable parallel safe return to_json(tsql.xml_text(moment))::text;
-- A sql_variant in FOR XML and FOR JSON, as a value of its base type.
create or replace function tsql.variant_in_xml(said text) returns text language plpgsql stable strict parallel safe as $$
declare
    raw constant text := tsql.variant_raw(said);
begin
    return case
        when tsql.variant_base(said) in ('datetime', 'smalldatetime') then tsql.xml_text(raw::timestamp)
        when tsql.variant_base(said) = 'datetime2' then tsql.scaled_style(raw::timestamp, tsql.variant_scale(said), 126)
        when tsql.variant_base(said) = 'datetimeoffset' then tsql.document_moment(raw::timestamptz, tsql.variant_scale(said), 0)
        when tsql.variant_base(said) in ('float', 'real') then tsql.xml_text(raw::float8)
        when tsql.variant_base(said) in ('binary', 'varbinary') then tsql.xml_text(tsql.variant_bytes(said))
        when tsql.variant_rank(said) = 3 then raw
        else tsql.variant_text(said) end;
end $$;
create or replace function tsql.variant_in_json(said text) returns text language plpgsql stable strict parallel safe as $$
begin
    return case when tsql.variant_base(said) = 'bit' then case tsql.variant_raw(said) when '0' then 'false' else 'true' end
                when tsql.variant_rank(said) in (3, 4) then tsql.variant_in_xml(said)
                else tsql.json_text(tsql.variant_in_xml(said)) end;
end $$;
