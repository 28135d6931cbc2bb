"""Brokers, links and crashes in one seeded event loop over the protocol: what a seed does, it does again."""
