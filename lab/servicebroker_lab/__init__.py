"""The laboratory: programs that measure and test the product. They need a checkout, and are not in the wheel.

`benchmarks` compares the product with its alternatives. `simulation` runs the relay of the product over simulated
connections, clocks, tables and crashes in one seeded event loop. Begin with `benchmarks/scenarios.py` (the list of
measurements) and `simulation/run.py` (one run of one seed).
"""
