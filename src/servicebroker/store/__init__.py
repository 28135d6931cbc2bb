"""PostgreSQL: the embedded server, connections, the schema and how statements run."""
