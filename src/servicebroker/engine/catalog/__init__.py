"""What is defined: databases, message types, contracts, queues, services, routes and the like."""
