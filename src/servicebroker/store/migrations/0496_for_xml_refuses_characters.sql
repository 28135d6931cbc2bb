-- FOR XML writes control characters as references, and refuses them as xml (store/tsql/xml.sql).
drop function if exists tsql.xml_document(text);
drop function if exists tsql.refuse_zero(integer, text);
