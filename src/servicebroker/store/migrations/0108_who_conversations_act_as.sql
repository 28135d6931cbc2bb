-- Who a conversation between two databases of the instance is, where a remote service binding says so (engine/delivery/acting.py):
-- the users whose certificates stand for the two sides, each in the database of its endpoint; null where no binding does.
-- At the target far_principal_id is who the conversation acts as, 0 for public.
alter table servicebroker.conversation_endpoints add column principal_id integer, add column far_principal_id integer;
