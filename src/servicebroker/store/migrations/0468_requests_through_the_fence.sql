-- The fence has functions for requests (decision 467), which every migration makes anew. own_queues tells more of each
-- queue, so that the old one has to go.
drop function if exists servicebroker_fence.own_queues(integer, uuid);
