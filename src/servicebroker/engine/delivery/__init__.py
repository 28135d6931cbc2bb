"""From one service of this instance to another: the target's side, and messages that cannot be delivered yet."""
