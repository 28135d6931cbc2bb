"""Daemons, links and crashes in one seeded event loop, over tables in memory: what a seed does, it does again."""
