"""The classes of our advisory locks: the first of two integers; the second says which one of its kind."""

GROUP = 0x53420001  # a conversation group; second: uuid_hash(conversation_group_id)
MIGRATION = 0x53420002
PIPELINE = 0x53420003  # a queue owned by a pipeline; second: queue_id
DEMO = 0x53420004
SERVICE = 0x53420005  # a service being made, or messages that wait for it; second: hashtext(name)
MOVE = 0x53420010  # a conversation being moved; second: uuid_hash(conversation_handle)
