"""Work on rules without Spark and without a server: `servicebroker pipeline test` and `servicebroker pipeline infer`.

`trial.py` lets the rules of a pipeline read example messages, by the code that a run uses (`sorting.py`), and compares
the rows with what the examples expect. `inference.py` derives a first rule from sample bodies: the rule reads them all.
"""
