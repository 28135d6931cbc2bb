# make install   a .venv in this folder with the package and all that the other commands need
# make demo      install what it needs, then run the main job            (make demo INPUT=file)
# make test      install, then a sample of the tests in ten minutes; random tests with the seed 1 (another: SEED=7), on the
#                embedded PostgreSQL 18 (another: POSTGRES=/usr/lib/postgresql/15/bin)
# make test-all  every test and every case
# make lint      format, imports, generated code, docstrings, names (tools/prose.py), commit subjects
# make check     the loop to live in: lint, types, import contracts, unit tests
# make sync      the blocking form of the API from the asyncio form (see CONTRIBUTING.md)
# make coverage  every test, and which lines none of them reaches; takes twice as long
# make coverage-of-simulation  which lines of broker/ 1,000 seeds of the simulator alone reach
# make conformance  every test, and docs/conformance.md from those that passed
# make simulate  hours of the same: 100,000 seeds of the simulator (SEEDS=0:1000000), 500,000 random steps of engine
#                and double, 50,000 in T-SQL, 1,000,000 conversations that leave nothing, a cut at every exchange,
#                50,000 random T-SQL texts of each kind, an hour of random bodies for the pipeline's decoders, of scripts, of
#                frames, of requests, of clients of SQL Server
# make soak      200,000 messages each way between two instances, under faults; ten minutes of 32 on one queue; 1,000,000
#                open dialogs; 50 kills of a pipeline; ten times a million through one queue
# make chaos     an hour of everything that goes wrong, one fault after the other, under load (docs/reliability.md)
# make mutants   plant COUNT=100 small faults, drawn by SEED, in a copy of the tree; list those that no test finds; the
#                first time it runs each test file once under coverage, for two hours; it continues where it stopped
# make upgrades  10,000 messages each way between two instances, each upgraded in turn from the version in the checkout OLD
# make lock      constraints.txt, the versions of all dependencies, from what is installed
# make audit     look up constraints.txt among known vulnerabilities; says so where there is no pip-audit or no database
# make bench     every benchmark, written to docs/benchmarks.md

PYTHON ?= python3
VENV := .venv
BIN := $(VENV)/bin
INPUT ?=
OUT ?= demo-data
SEEDS ?= 0:100000
# a change is judged by the same random cases each time; simulate and soak look for new ones
SEED ?= 1
# of mutants that are judged, with those of earlier runs
COUNT ?= 100
# the programs of another PostgreSQL for the tests' server
POSTGRES ?=
# a checkout of an older version
OLD ?= ../landed
ON_POSTGRES := $(if $(POSTGRES),--postgres $(POSTGRES))
# test files go to four processes, each with a server of its own: tests wait more than half of their time
PYTEST := $(BIN)/python -m pytest -n 4 --dist loadfile --no-loadscope-reorder --seed $(SEED) $(ON_POSTGRES)

# where it is set, each of the hundreds of processes that tests start would compile the package anew
unexport PYTHONDONTWRITEBYTECODE

.DEFAULT_GOAL := help
.PHONY: help install demo test test-all coverage coverage-of-simulation check sync lint types modules unit conformance simulate soak chaos mutants upgrades lock audit bench docs clean

help:
	@sed '/^$$/q; s/^# //' Makefile

install: $(VENV)/installed

# the demo needs neither what tests nor what checks, builds the docs or is measured against; nor twice what is there
$(VENV)/for-the-demo: EXTRAS := spark
$(VENV)/installed: EXTRAS := spark,bench,dashboard,docs,dev

# of 14,000 files a third is ever imported: those are compiled at their first import
$(VENV)/for-the-demo $(VENV)/installed: pyproject.toml
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "servicebroker needs Python 3.11 or newer; this is " + sys.version.split()[0] + ". Name one with: make PYTHON=python3.12")'
	@echo "Installing into $(VENV) (once; a minute or two) ..."
	@$(PYTHON) -m venv $(VENV)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-compile --editable '.[$(EXTRAS)]'
	@touch $@

demo: $(if $(wildcard $(VENV)/installed),install,$(VENV)/for-the-demo)
	@$(BIN)/servicebroker demo --out $(OUT) $(if $(INPUT),--input '$(INPUT)')

# compare what single messages take with and without an attacker: other tests beside them would be the harm
ALONE := tests/integration/security/test_fence.py::test_a_ledger_of_others_stays_exact_meanwhile \
    tests/integration/between_instances/test_hostile.py::test_a_hostile_peer_reads_acknowledges_and_delays_nothing

# one in some thousand tests loses a race on a busy machine: it is told, with why, and run once more (decision 136)
test: install $(VENV)/spark.jsa
	$(PYTEST) --reruns 1 $(ALONE:%=--deselect %)
	$(BIN)/python -m pytest --seed $(SEED) $(ON_POSTGRES) --reruns 1 $(ALONE)

# Java spends half of Spark's start on loading classes: the tests start it some 30 times
$(VENV)/spark.jsa: $(VENV)/installed
	@$(BIN)/python tools/spark_classes.py $@ >/dev/null 2>&1 || true  # without Java the tests of Spark are skipped

# test modules are compiled at their first import: here once, and not by all processes of `test` at the same time
modules:
	-@$(BIN)/python -m pytest --collect-only -q -n 0 >/dev/null

test-all: install $(VENV)/spark.jsa
	$(PYTEST) --reruns 1 --full $(ALONE:%=--deselect %)
	$(BIN)/python -m pytest --seed $(SEED) $(ON_POSTGRES) --reruns 1 --full $(ALONE)

coverage: install
	$(PYTEST) --full --cov --cov-report=term-missing:skip-covered

coverage-of-simulation: install
	$(BIN)/coverage run --concurrency=multiprocessing -m servicebroker_lab.simulation --seeds 0:1000
	$(BIN)/coverage combine -q
	$(BIN)/coverage report --include='src/servicebroker/broker/*'

check: install lint types unit

sync:
	$(BIN)/python tools/make_sync.py

lint:
	$(BIN)/python tools/make_sync.py --check
	$(BIN)/ruff check src lab tests tools examples
	$(BIN)/ruff format --check src lab tests tools examples
	$(BIN)/lint-imports
	$(BIN)/python tools/prose.py

types:
	$(BIN)/mypy

unit:
	$(PYTEST) -q -m "not slow" tests/unit

conformance: install
	$(PYTEST) --full -q -p conformance --conformance docs/conformance.md

simulate: install
	$(BIN)/python -m servicebroker_lab.simulation --seeds $(SEEDS)
	$(BIN)/python -m servicebroker_lab.simulation --fleet 1000:100000 --seeds 0:20
	$(BIN)/python -m servicebroker_lab.simulation --mirrors --seeds 0:20000
	$(BIN)/python -m pytest -q tests/integration/conversation/test_model.py tests/integration/conversation/test_crossings.py tests/integration/tsql/test_tsql_model.py tests/integration/conversation/test_leaks.py --model-steps 500000 --crossings 100000 --tsql-steps 50000 --leak-conversations 10000 --short-conversations 1000000
	$(PYTEST) -q --full tests/integration/conversation/test_interruptions.py --cuts 1000
	$(BIN)/python -m pytest -q tests/unit/tsql/test_tsql_translation_fuzz.py tests/unit/tsql/test_tsql_script_fuzz.py --fuzz-examples 50000
	$(BIN)/python -m servicebroker_lab.fuzzing --seconds 3600
	$(BIN)/python -m servicebroker_lab.script_fuzzing --seconds 3600
	$(BIN)/python -m servicebroker_lab.frame_fuzzing --seconds 3600
	$(BIN)/python -m servicebroker_lab.http_fuzzing --seconds 3600
	$(BIN)/python -m servicebroker_lab.tds_fuzzing --seconds 3600

soak: install
	$(BIN)/python -m pytest -q tests/integration/conversation/test_contention.py --crowd-seconds 600 --timeout 3600 -k sixteen
	$(BIN)/python -m pytest -q tests/integration/between_instances/test_brokers.py --messages 200000
	$(BIN)/python -m pytest -q tests/integration/between_instances/test_open_dialogs.py --open-dialogs 1000000
	$(BIN)/python -m pytest -q tests/integration/conversation/test_pool.py --pool-messages 100000
	$(BIN)/python -m pytest -q tests/integration/workers/test_poison_policy.py --good-messages 100000 -k among
	$(BIN)/python -m pytest -q tests/integration/pipeline/test_pipeline_faults.py --kills 50
	$(BIN)/python -m pytest -q tests/integration/conversation/test_queue_space.py --space-messages 1000000 -k ten_times
	$(BIN)/python -m pytest -q tests/integration/between_instances/test_hostile.py tests/integration/security/test_fence.py --hostile-seconds 600 --timeout 3600
	$(BIN)/python -m pytest -q tests/integration/tds/test_hostile_clients.py --full --hostile-seconds 600 --timeout 3600 -k "(delay and passwords-gone) or large"
	$(BIN)/python -m pytest -q tests/integration/between_instances/test_strangers_at_the_port.py tests/integration/operations/test_dashboard_connections.py --full --hostile-seconds 600 --timeout 3600 -k cost

chaos: install
	$(BIN)/python -m pytest -q tests/integration/between_instances/test_chaos.py --chaos-seconds 3600 --log-cli-level INFO

mutants: install
	$(BIN)/python -m servicebroker_lab.mutation --seed $(SEED) --count $(COUNT)

upgrades: install
	$(BIN)/python -m servicebroker_lab.upgrades $(OLD)

lock: install
	$(BIN)/python tools/dependencies.py lock

audit: install
	$(BIN)/python tools/dependencies.py audit

bench: install
	$(BIN)/python -m servicebroker_lab.benchmarks all --write docs/benchmarks.md

docs: install
	$(BIN)/python tools/make_pictures.py --check
	$(BIN)/python tools/make_reference.py --check
	$(BIN)/python -m pytest -q --full tests/integration/operations/test_dashboard_in_a_browser.py -k pictures
	$(BIN)/mkdocs build --strict
	$(BIN)/python -m pytest -q --full tests/integration/documentation/test_site_in_a_browser.py tests/integration/documentation/test_pages.py

clean:
	rm -rf $(VENV) .mutants demo-data site .coverage .coverage.* .mypy_cache .ruff_cache .pytest_cache .import_linter_cache
