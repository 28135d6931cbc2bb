"""The main job: the lines of a file become messages, the messages a warehouse table, exactly once, in order."""
