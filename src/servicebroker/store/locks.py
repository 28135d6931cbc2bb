"""The classes of the advisory locks. The class is the first key of a lock; the second key identifies the lock."""

CONVERSATION_GROUP = 0x53420001  # a conversation group; second: uuid_hash(conversation_group_id)
SCHEMA_MIGRATION = 0x53420002
PIPELINE_QUEUE = 0x53420003  # a queue owned by a pipeline; second: queue_id
SERVICE_NAME = 0x53420005  # creates a service, or parks messages for it (transmission queue); second: hashtext(name)
DIALOG_BEGIN = 0x53420006  # shared: BEGIN DIALOG with a service or contract; exclusive: that changes; second: its id
DATABASE_BEGIN = 0x53420007  # shared: BEGIN DIALOG in a database; exclusive: that changes; second: its id
PARKED_DELIVERY = 0x53420010  # shared: may park a message; exclusive: delivers parked messages; second: 0
CATALOG_CHANGE = 0x53420011  # DDL, one statement at a time in an instance; second: 0
CONVERSATION_MOVE = 0x53420012  # a conversation being moved; second: uuid_hash(conversation_handle)
TSQL_KEY = 0x53420020  # a key of a table that T-SQL reads with HOLDLOCK; second: hashtext of both
BROKER_DAEMON = 0x53420013  # the daemon that serves the instance; second: 0
QUEUE_ACTIVATION = 0x53420014  # runs the monitor of a queue; second: queue_id
QUEUE_SLOT = 0x53420015  # a handler slot: limits the concurrent handlers of a queue; second: queue and slot (verbs.sql)
ROUTE_REQUEST = 0x53420019  # asks the dynamic routing service; second: hashtext(service), see missing_routes.py
TSQL_APPLICATION = 0x53420022  # sp_getapplock; second: hashtext of the database's id and the name
TSQL_IDENTITY = 0x53420023  # sets the sequence of an IDENTITY to an inserted number; second: its oid
TSQL_SESSION = 0x53420021  # a T-SQL session; second: its @@SPID
