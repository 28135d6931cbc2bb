-- A conversation of a restricted role counts until both of its endpoints are closed: messages may wait at either.
-- servicebroker_fence.answered reports a moved conversation only if the caller may read its present queue.
update servicebroker.conversations_of_roles o set conversation_handle = e.conversation_id
  from servicebroker.conversation_endpoints e where e.conversation_handle = o.conversation_handle;
alter table servicebroker.conversations_of_roles rename column conversation_handle to conversation_id;
