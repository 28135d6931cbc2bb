"""CREATE, ALTER and DROP of tables, views, indexes, sequences and schemas, and the bodies of functions."""
