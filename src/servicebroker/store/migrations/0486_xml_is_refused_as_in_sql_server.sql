-- Errors of XML have the numbers, texts and places of SQL Server (store/tsql/xml.sql): these functions have other parameters now.
drop function if exists tsql.xml_refuse(integer, text, text[], integer);
drop function if exists tsql.xml_character(text);
drop function if exists tsql.xml_unescaped(text);
drop function if exists tsql.xml_name(text, jsonb, boolean);
