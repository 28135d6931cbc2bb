"""Mutation testing: plant a fault in a copy of the tree, and see whether a test fails (decision 496).

**The problem.** Coverage tells which lines run in tests, not whether a test would fail if they were wrong. A mutant is
the product with one small fault. A mutant that all tests pass shows a missing test, or is equivalent to the product.

**The flow.** `reach.py` runs each test file once and keeps which lines and SQL statements each test reaches
(`recorder.py`). `drawing.py` draws mutants by a seed, in turns from each package. Its candidates come from
`python_operators.py` (those of cosmic-ray and two of our own) and `sql_operators.py`. `trial.py` writes one into a copy
of the tree and runs the tests that reach its line, until one fails. `results.py` keeps a line of JSON for each.

**The rules.**

* Nothing is written into the working tree; all files lie in `.mutants/`, which Git ignores.
* A run continues where the last one stopped: recorded test files and judged mutants are kept.
* A survivor gets a test that kills it, or an entry with the reason in `equivalent.toml`.

Begin with `command.py`.
"""
