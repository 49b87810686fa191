# `make` alone tells what there is. Needed: Python 3.11 or newer; for `make interop` also Java 17 and Maven.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SPARK_READY := interop/target/venv/.complete
SOURCES := kwire simulation interop docs/site
MKDOCS := env NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile pyproject.toml --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links

# `make serve ARGS="--set num.partitions=12"`, `make test ARGS="-k fetch"`
ARGS ?=
SEEDS ?= 1000
# As many tests at once as there are cores; those of a file in their order.
AT_ONCE := -n auto --dist loadfile

.PHONY: help
help: ## this list
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## build .venv with kwire, the test tools and the Python clients

$(READY): pyproject.toml requirements/dev.lock
	@python=""; \
	for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "kwire needs Python 3.11 or newer on the PATH." >&2; exit 1; fi; \
	[ -x $(BIN)/python ] || $$python -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo "$$python cannot make virtual environments (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@echo "installing into $(VENV), this is done once"
	@$(BIN)/python $(PIP_INSTALL) --require-hashes -r requirements/dev.lock
	@$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: serve
serve: $(READY) ## run one broker on 127.0.0.1:9092
	@exec $(BIN)/kwire serve $(ARGS)

.PHONY: test
test: $(READY) ## run the tests; they need Python alone
	$(BIN)/python -m pytest $(AT_ONCE) tests/ $(ARGS)

.PHONY: docs
docs: $(READY) ## the documentation as a site, in target/site
	$(MKDOCS)

.PHONY: format
format: $(READY) ## put the sources into their format
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: check
check: $(READY) ## all that a change must pass: format, lint, types, tests
	@failed=""; \
	try() { echo "== $$1"; "$${@:2}" || failed="$$failed, $$1"; }; \
	try format $(BIN)/ruff format --quiet --check .; \
	try lint $(BIN)/ruff check --output-format concise .; \
	try types $(BIN)/mypy --strict $(SOURCES); \
	try docs $(MKDOCS) --quiet; \
	try tests $(BIN)/python -m pytest --quiet $(AT_ONCE) tests/; \
	if [ -n "$$failed" ]; then echo "failed: $${failed#, }" >&2; exit 1; fi

# What takes long by itself, and is asked for by itself.
LONG_PIPELINE := interop/pipeline interop/test_pipeline_kills.py
LONG_INTEROP := $(LONG_PIPELINE) interop/exactly_once interop/cluster
# Of the pipeline's demonstration: that Apache Kafka has not changed.
PIPELINE_ON_KAFKA := interop/test_pipeline.py::test_every_job_runs_on_either_broker[apache]

# Each half of the scenarios shares two brokers and so a process, which mostly waits; what starts brokers of its own comes
# when one of them is done.
.PHONY: interop
interop: interop-ready ## hold kwire against Apache Kafka, its tools, and Spark (Java 17, Maven)
	$(BIN)/python -m pytest -c interop/pytest.ini --rootdir . -n 2 --dist loadfile interop $(LONG_INTEROP:%=--ignore=%) \
		--deselect '$(PIPELINE_ON_KAFKA)' $(ARGS)

.PHONY: interop-pipeline
interop-pipeline: interop-ready ## the pipeline's longer scenarios: mirrors, restores, kills (half an hour)
	$(BIN)/python -m pytest -c interop/pytest.ini --rootdir . $(LONG_PIPELINE) '$(PIPELINE_ON_KAFKA)' $(ARGS)

.PHONY: interop-judge
interop-judge: interop-ready ## whether what judges exactly once finds planted faults (ten minutes)
	$(BIN)/python -m pytest -c interop/pytest.ini --rootdir . interop/exactly_once $(ARGS)

.PHONY: interop-cluster
interop-cluster: interop-ready ## clusters of three nodes, of kwire, of Apache Kafka and of both: failover, tools
	$(BIN)/python -m pytest -c interop/pytest.ini --rootdir . interop/cluster $(ARGS)

.PHONY: interop-ready
interop-ready: $(READY)
	@java=$$(java -version 2>&1 | sed -n 's/.* version "\([0-9]*\).*/\1/p' || true); \
	if [ "$${java:-0}" -lt 17 ]; then \
		echo "make interop needs Java 17 or newer on the PATH (Debian: apt-get install openjdk-17-jre-headless)." >&2; \
		exit 1; fi
	@command -v mvn >/dev/null || { \
		echo "make interop needs Maven (mvn) on the PATH to fetch Apache Kafka (Debian: apt-get install maven)." >&2; \
		exit 1; }
	@$(MAKE) --no-print-directory $(SPARK_READY)

# PySpark is large and only a few scenarios want it, so it has an environment of its own.
$(SPARK_READY): requirements/pipeline.lock | $(READY)
	@echo "installing PySpark into $(@D), this is done once"
	@[ -x $(@D)/bin/python ] || $(BIN)/python -m venv $(@D)
	@$(@D)/bin/python $(PIP_INSTALL) --require-hashes -r requirements/pipeline.lock \
		|| { echo "make interop needs PySpark, which could not be installed." >&2; exit 1; }
	@touch $@

.PHONY: pipeline-demo
pipeline-demo: $(READY) ## run every job of the pipeline on real data, and show the reports (Java 17, Maven)
	@$(MAKE) --no-print-directory $(SPARK_READY)
	PYTHONPATH=. $(SPARK_READY:.complete=bin/python) -m kwire.pipeline.demo target/pipeline-demo $(ARGS)

.PHONY: simulate
simulate: $(READY) ## run storage, a quorum and a cluster in simulated worlds: `make simulate SEEDS=10000`
	$(BIN)/python -m simulation.storage --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m simulation.quorum --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m simulation.cluster --seeds $(SEEDS) $(ARGS)
	$(BIN)/python -m simulation.cluster.elected --seeds $(SEEDS) $(ARGS)

.PHONY: pipeline-kills
pipeline-kills: SEEDS := 20
pipeline-kills: $(READY) ## kill the pipeline's jobs: `make pipeline-kills SEEDS=5 JOB=archive VICTIM=broker`
	@$(MAKE) --no-print-directory $(SPARK_READY)
	$(BIN)/python -m interop.pipeline_kills --seeds $(SEEDS) $(JOB:%=--job %) $(VICTIM:%=--victim %) $(ARGS)

.PHONY: bench
bench: $(READY) ## measure, beside Apache Kafka if there is Java; see docs/performance.md
	@if command -v java >/dev/null && command -v mvn >/dev/null; then \
		$(BIN)/python -c "from interop.reference import kafka_jars; kafka_jars()"; fi
	$(BIN)/python -m bench $(ARGS)

.PHONY: lock
lock: $(READY) ## pin the newest versions that pyproject.toml allows
	$(COMPILE) --upgrade --output-file requirements/runtime.lock
	$(COMPILE) --upgrade --extra console --output-file requirements/console.lock
	$(COMPILE) --upgrade --extra dev --output-file requirements/dev.lock
	$(COMPILE) --upgrade --extra pipeline --output-file requirements/pipeline.lock
	@! grep -nE '^-|://' requirements/*.lock || { echo "a lock file names an index or a path." >&2; exit 1; }

.PHONY: clean
clean: ## remove what make has built; data directories stay
	rm -rf $(VENV) interop/target target build dist .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
