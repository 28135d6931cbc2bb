"""Work on rules without Spark and without a server: `servicebroker pipeline test` and `servicebroker pipeline infer`.

**The problem.** A rule shows its mistakes when a run puts messages into quarantine. A first rule is long to write for
nested bodies.

**The flow.** `trial.py` lets the rules of a pipeline read example messages, and compares the rows with those that the
examples expect. `inference.py` takes in the values of sample bodies, place by place, and writes the narrowest types
that hold all of them as TOML.

**The rules.**

* A trial runs the code of a run (`pipeline/sorting.py`), and opens nothing but a schema registry.
* An inferred rule reads every sample: it is tried before it is printed.

Begin with `trial.py`.
"""
