-- FOR XML writes control characters as references, and refuses them as xml (store/tsql/xml.sql). The functions that called
-- refuse_zero are made again after this.
create or replace function tsql.xml_value(said text) returns text language sql immutable parallel safe return said;
create or replace function tsql.xml_document(said text) returns text language sql immutable parallel safe return said;
drop function if exists tsql.refuse_zero(integer, text);
