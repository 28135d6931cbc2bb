"""What a queue starts: the clause, the monitors, and the detection of poison."""
