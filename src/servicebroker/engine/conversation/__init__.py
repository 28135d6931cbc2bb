"""The verbs of conversations: what each asks of the tables, and what it writes there."""
