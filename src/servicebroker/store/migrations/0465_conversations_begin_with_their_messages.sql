-- BEGIN DIALOG and its first SENDs in one statement: hold_way in store/verbs.sql, begin_and_send in store/fence.sql.
-- own_queue has another parameter, so that the old one has to go.
drop function if exists servicebroker.own_queue(integer, integer, integer);
