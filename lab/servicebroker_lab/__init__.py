"""The laboratory: what measures and tests the product, and is not part of it.

`benchmarks` compares the shipped code with what a user would pick instead. `simulation` runs the shipped relay over
simulated links, clocks, tables and crashes in one seeded event loop. Neither is in the wheel; both need a checkout.
Begin with `benchmarks/scenarios.py` (what is measured) and `simulation/run.py` (one run of one seed).
"""
