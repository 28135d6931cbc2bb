-- xml.modify(): number all nodes of the tree, find the numbers of the nodes to change by a path, and return the changed
-- tree.

create or replace function tsql.xml_numbered(node jsonb, inout number integer, out numbered jsonb)
language plpgsql immutable strict parallel safe as $$
declare
    child jsonb;
    children jsonb[] := '{}';
begin
    numbered := node || jsonb_build_object('#', number);
    number := number + 1;
    if node ? 'c' then
        for child in select c from jsonb_array_elements(node -> 'c') c loop
            select x.number, x.numbered into number, child from tsql.xml_numbered(child, number) x;
            children := children || child;
        end loop;
        numbered := jsonb_set(numbered, '{c}', to_jsonb(children));
    end if;
end $$;

create or replace function tsql.xml_addressed(tree jsonb, name text) returns jsonb language plpgsql immutable parallel safe as $$
begin
    if tree is null then
        perform tsql.refuse(5302, format('Mutator ''modify()'' on ''%s'' cannot be called on a null value.', name));
    end if;
    return (tsql.xml_numbered(tree, 0)).numbered;
end $$;

create or replace function tsql.xml_numbers(tree jsonb, path text, variables jsonb default '{}') returns jsonb
language sql immutable strict parallel safe
return (select coalesce(jsonb_agg(item -> '#'), '[]') from jsonb_path_query(tree, path::jsonpath, variables) item);

-- Parse a piece of XML with these namespaces in scope, and return its nodes.
create or replace function tsql.xml_nodes(piece text, namespaces jsonb) returns jsonb language sql immutable parallel safe
return tsql.xml_tree('<x' || coalesce((select string_agg(' xmlns' || case when key = '' then '' else ':' || key end || '="'
                                                         || tsql.xml_attribute(value) || '"', '') from jsonb_each_text(namespaces)), '')
                     || '>' || piece || '</x>') -> 'c' -> 0 -> 'c';

-- Apply an action to the nodes with the numbers `wanted`, or to their `attribute`. `action` is delete, replace, first,
-- last, before or after. `content` has nodes, or a text for replace.
create or replace function tsql.xml_changed(node jsonb, wanted jsonb, action text, attribute text, content jsonb) returns jsonb
language plpgsql immutable parallel safe as $$
declare
    is_found boolean := wanted @> (node -> '#');
    child jsonb;
    children jsonb := '[]';
begin
    if is_found and attribute is not null then
        if action = 'last' and node -> 'a' ? attribute then
            perform tsql.refuse(2372, format('XQuery: The attribute ''%s'' is there already.', substr(attribute, 2)));
        end if;
        node := jsonb_set(node, '{a}', case when action = 'delete' then (node -> 'a') - attribute
                                            else (node -> 'a') || jsonb_build_object(attribute, content) end);
    end if;
    if not node ? 'c' then
        return case when is_found and action = 'replace' and attribute is null then node || jsonb_build_object('v', content) else node end;
    end if;
    for child in select c from jsonb_array_elements(node -> 'c') c loop
        if attribute is null and wanted @> (child -> '#') then
            children := case action
                when 'delete' then children
                when 'before' then children || content || jsonb_build_array(child)
                when 'after' then children || jsonb_build_array(child) || content
                else children || jsonb_build_array(tsql.xml_changed(child, wanted, action, attribute, content)) end;
        else
            children := children || jsonb_build_array(tsql.xml_changed(child, wanted, action, attribute, content));
        end if;
    end loop;
    if is_found and attribute is null and action in ('first', 'last') then
        children := case action when 'first' then content || children else children || content end;
    end if;
    return jsonb_set(node, '{c}', children);
end $$;
