"""Reading of T-SQL: syntax checks, syntax trees, and statements split by their keywords."""
