"""SELECT, its clauses and its sources."""
