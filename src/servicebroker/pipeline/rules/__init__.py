"""Tests and infers rules without Spark and without a server: `servicebroker pipeline test` and `pipeline infer`.

**The problem.** Mistakes in a rule appear only when a run puts messages into quarantine. A first rule for nested bodies
is long.

**The flow.** `trial.py` decodes example messages with the rules of a pipeline, and compares the rows with the expected
ones. `inference.py` collects the values of sample bodies by their path, and writes a rule as TOML, with the narrowest
types that hold all values.

**The rules.**

* A trial uses the code of a run (`pipeline/sorting.py`), and connects to nothing but a schema registry.
* An inferred rule can decode every sample: it is tested before it is printed.

Begin with `trial.py`.
"""
