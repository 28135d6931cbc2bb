"""What runs between instances: rounds of database work over the sans-IO protocol, and the sockets beside them."""
