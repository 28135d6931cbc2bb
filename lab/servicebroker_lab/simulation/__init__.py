"""Simulate daemons, connections and crashes in one seeded event loop, over tables in memory. A seed repeats its run."""
