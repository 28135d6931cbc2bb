-- BEGIN DIALOG and its first SENDs in one statement: hold_way in store/verbs.sql, begin_and_send in store/fence.sql.
-- own_queue and begin_conversation have another parameter, so that the old ones have to go.
drop function if exists servicebroker.own_queue(integer, integer, integer);
drop function if exists servicebroker.begin_conversation(
    integer, text, text, text, integer, text, uuid, uuid, boolean, integer[], boolean);
