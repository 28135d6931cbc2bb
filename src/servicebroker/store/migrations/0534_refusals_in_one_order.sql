-- SEND of store/verbs.sql judges the delay last; two first starts of a schedule agree. own_conversation in store/fence.sql
-- tells a delay too, so that the old one has to go.
drop function if exists servicebroker_fence.own_conversation(integer, uuid, integer, uuid);
