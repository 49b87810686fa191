# `make` lists the commands. Requires Python 3.11 or newer; `make interop` also requires Java 17 and Maven.
# `make interop-languages` requires Node.js and Go, too.

SHELL := /bin/bash
.SHELLFLAGS := -euo pipefail -c
.DEFAULT_GOAL := help
.DELETE_ON_ERROR:

VENV := .venv
BIN := $(VENV)/bin
READY := $(VENV)/.ready
SPARK_READY := interop/target/venv/.complete
OLDEST_SPARK := 4.0.0
OLDEST_SPARK_READY := interop/target/venv-$(OLDEST_SPARK)/.complete
RECIPES_READY := target/recipes-venv/.ready
SOURCES := kwire simulation interop bench tests docs/site recipes
# The benchmarks run only on Linux.
MACOS_SOURCES := $(filter-out bench,$(SOURCES))
MKDOCS := env NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict
PIP_INSTALL := -m pip install --quiet --disable-pip-version-check
COMPILE := $(BIN)/uv pip compile --quiet --universal --python-version 3.11 --generate-hashes \
	--no-header --no-annotate --no-emit-index-url --no-emit-find-links

# `make serve ARGS="--set num.partitions=12"`, `make test ARGS="-k fetch"`
ARGS ?=
# `make interop-cluster KAFKA=4.4.0` starts Apache Kafka's nodes in this version.
KAFKA ?=
SEEDS ?= 1000
# One worker per core. Tests of one file run in order, in one worker.
PARALLEL := -n auto --dist loadfile

.PHONY: help
help: ## list the commands
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "  make %-17s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

.PHONY: setup
setup: $(READY) ## build .venv with kwire, the test tools and the Python clients

# $(VENV)/oldest has the oldest version of a client that tests also use in its newest version. Python does not find
# it there unless a test adds the directory to PYTHONPATH.
$(READY): pyproject.toml requirements/dev.lock requirements/oldest.lock hatch_build.py kwire/wire/_record_scan.c
	@python=""; \
	for candidate in $(PYTHON) python3 python3.14 python3.13 python3.12 python3.11; do \
		if $$candidate -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; \
		then python=$$candidate; break; fi; \
	done; \
	if [ -z "$$python" ]; then echo "kwire needs Python 3.11 or newer on the PATH." >&2; exit 1; fi; \
	[ -x $(BIN)/python ] || $$python -m venv $(VENV) || { \
		rm -rf $(VENV); \
		echo "$$python cannot make virtual environments (Debian: apt-get install python3-venv)." >&2; exit 1; }
	@echo "Installing into $(VENV). This is done once."
	@$(BIN)/python $(PIP_INSTALL) --require-hashes -r requirements/dev.lock
	@$(BIN)/python $(PIP_INSTALL) --require-hashes --no-deps --upgrade --target $(VENV)/oldest -r requirements/oldest.lock
	@$(BIN)/python $(PIP_INSTALL) --no-deps --no-build-isolation --editable .
	@touch $@

.PHONY: serve
serve: $(READY) ## run one broker on 127.0.0.1:9092
	@exec $(BIN)/kwire serve $(ARGS)

.PHONY: test
test: $(READY) ## run the tests, which need only Python
	$(BIN)/python -m pytest $(PARALLEL) tests/ $(ARGS)

# Each package has a process of its own, because kwire's modules and the test doubles in them stay imported.
PORTABLE := $(filter-out %__pycache__/,$(wildcard tests/broker/*/) $(filter-out \
	$(addprefix tests/,broker/ docker/ interop/ portable/),$(wildcard tests/*/)))
.PHONY: test-portable
test-portable: $(READY) ## run the tests on an imitation of macOS, package by package
	@failed=""; \
	for package in $(PORTABLE); do \
		echo "== $$package"; \
		$(BIN)/python -m pytest --quiet -rs -p tests.portable.plugin $$package $(ARGS) || failed="$$failed $$package"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

# pytest-forked does not work with the newest pytest, so its tests run only here.
OLDER_PYTEST := 7.4.4 8.4.2
PYTEST_PLUGINS := pytest-asyncio pytest-forked pytest-randomly pytest-repeat pytest-rerunfailures pytest-trio pytest-xdist
.PHONY: test-older-pytest
test-older-pytest: $(READY) ## run the tests of the pytest plugin with older versions of pytest
	@failed=""; \
	for version in $(OLDER_PYTEST); do \
		echo "== pytest $$version"; \
		$(BIN)/uv pip install --quiet --python $(BIN)/python --target target/pytest-$$version \
			pytest==$$version $(PYTEST_PLUGINS); \
		PYTHONPATH=$(CURDIR)/target/pytest-$$version $(BIN)/python -m pytest --quiet $(PARALLEL) \
			$(addprefix tests/testing/,test_runs.py test_debugged_runs.py test_plugin.py test_failure_report.py) \
			$(ARGS) || failed="$$failed $$version"; \
	done; \
	if [ -n "$$failed" ]; then echo "failed:$$failed" >&2; exit 1; fi

.PHONY: docs
docs: $(READY) ## build the documentation site in target/site
	$(MKDOCS)

.PHONY: format
format: $(READY) ## format the code
	$(BIN)/ruff format .
	$(BIN)/ruff check --fix .

.PHONY: check
check: $(READY) ## run what every change must pass: format, lint, spelling, types, docs, tests
	@failed=""; \
	try() { echo "== $$1"; "$${@:2}" || failed="$$failed, $$1"; }; \
	try format $(BIN)/ruff format --quiet --check .; \
	try lint $(BIN)/ruff check --output-format concise .; \
	try spelling $(BIN)/codespell; \
	try types $(BIN)/mypy --strict $(SOURCES); \
	try 'types on macOS' $(BIN)/mypy --strict --platform darwin $(MACOS_SOURCES); \
	try docs $(MKDOCS) --quiet; \
	try tests $(BIN)/python -m pytest --quiet $(PARALLEL) tests/; \
	if [ -n "$$failed" ]; then echo "failed: $${failed#, }" >&2; exit 1; fi

# The recipe for Spark fetches the Kafka connector from Maven Central, into Spark's own cache.
.PHONY: recipes
recipes: $(READY) ## run all recipes of the documentation, also those that need frameworks (Java 17)
	@command -v java >/dev/null || { \
		echo "make recipes needs Java 17 or newer on the PATH (Debian: apt-get install openjdk-17-jre-headless)." >&2; \
		exit 1; }
	@$(MAKE) --no-print-directory $(RECIPES_READY)
	RECIPES_PYTHON=$(abspath $(RECIPES_READY:.ready=bin/python)) \
		$(BIN)/python -m pytest $(PARALLEL) tests/recipes $(ARGS)

# The frameworks need other versions of the clients than the tests, so they have their own virtual environment.
$(RECIPES_READY): requirements/recipes.lock | $(READY)
	@echo "Installing the frameworks of the recipes into $(@D). This is done once."
	@[ -x $(@D)/bin/python ] || $(BIN)/python -m venv $(@D)
	@$(@D)/bin/python $(PIP_INSTALL) --require-hashes -r $<
	@touch $@

# The version is fixed, because a new one may report more errors.
.PHONY: pyright
pyright: $(READY) ## check the annotations of kwire.testing with pyright (Node.js)
	$(BIN)/uv tool run pyright==1.1.414 --pythonpath $(BIN)/python tests/testing/typed_suite.py

# Long scenarios, and those that need more programs, have targets of their own.
LONG_PIPELINE := interop/pipeline interop/test_pipeline_kills.py
OTHER_INTEROP := $(LONG_PIPELINE) interop/exactly_once interop/cluster interop/languages \
	interop/authorizer
# The pipeline's demonstration on Apache Kafka runs with the long scenarios, too.
PIPELINE_ON_KAFKA := interop/test_pipeline.py::test_every_job_runs_on_either_broker[apache]

# Two workers. The scenarios of a file run in one worker, on the shared brokers of this worker, and mostly wait. Files
# that start their own brokers follow when a worker is free.
.PHONY: interop
interop: interop-ready ## compare kwire with Apache Kafka, its tools and Spark (Java 17, Maven)
	$(BIN)/python -m pytest -c interop/pytest.ini --rootdir . -n 2 --dist loadfile interop $(OTHER_INTEROP:%=--ignore=%) \
		--deselect '$(PIPELINE_ON_KAFKA)' $(ARGS)

.PHONY: interop-pipeline
interop-pipeline: interop-ready ## run the pipeline's long scenarios: mirrors, restores, kills (half an hour)
	$(BIN)/python -m pytest -c interop/pytest.ini --rootdir . $(LONG_PIPELINE) '$(PIPELINE_ON_KAFKA)' $(ARGS)

.PHONY: interop-judge
interop-judge: interop-ready ## check that the exactly-once checker finds planted faults (ten minutes)
	$(BIN)/python -m pytest -c interop/pytest.ini --rootdir . interop/exactly_once $(ARGS)

.PHONY: interop-cluster
interop-cluster: interop-ready ## run failover and tools on clusters of kwire, of Apache Kafka and of both
	$(KAFKA:%=INTEROP_KAFKA=%) $(BIN)/python -m pytest -c interop/pytest.ini --rootdir . interop/cluster $(ARGS)

.PHONY: interop-languages
interop-languages: interop-ready ## compare clients in JavaScript and Go on kwire and Apache Kafka (Node.js, Go)
	@for program in node npm go; do \
		command -v $$program >/dev/null || { \
			echo "make interop-languages needs $$program on the PATH (Debian: apt-get install nodejs npm golang-go)." >&2; \
			exit 1; }; \
	done
	$(BIN)/python -m pytest -c interop/pytest.ini --rootdir . interop/languages $(ARGS)

.PHONY: interop-acls
interop-acls: interop-ready ## compare what kwire and Apache Kafka return to clients with different rights (five minutes)
	$(BIN)/python -m pytest -c interop/pytest.ini --rootdir . interop/authorizer $(ARGS)

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

# The scenarios that need no feature of Spark 4.2.
OLDEST_PIPELINE := interop/test_segment_source.py::test_filter_applies_to_one_query_only \
	$(addprefix interop/pipeline/,test_archive_writing.py test_session.py test_values.py test_event_times.py \
	test_mirror.py test_restore.py)

.PHONY: pipeline-oldest
pipeline-oldest: $(READY) ## run scenarios of the pipeline on the oldest Spark that it supports (half an hour)
	@$(MAKE) --no-print-directory $(OLDEST_SPARK_READY)
	INTEROP_SPARK=$(OLDEST_SPARK) $(BIN)/python -m pytest -c interop/pytest.ini --rootdir . --only kwire \
		$(OLDEST_PIPELINE) $(ARGS)

# PySpark is large and only a few scenarios need it, so it has its own virtual environment.
$(SPARK_READY): requirements/spark.lock | $(READY)
$(OLDEST_SPARK_READY): requirements/spark-oldest.lock | $(READY)
$(SPARK_READY) $(OLDEST_SPARK_READY):
	@echo "Installing PySpark into $(@D). This is done once."
	@[ -x $(@D)/bin/python ] || $(BIN)/python -m venv $(@D)
	@$(@D)/bin/python $(PIP_INSTALL) --require-hashes -r $< \
		|| { echo "make interop needs PySpark, which could not be installed." >&2; exit 1; }
	@touch $@

.PHONY: pipeline-demo
pipeline-demo: $(READY) ## run jobs of the pipeline on real data, and show the reports (Java 17, Maven)
	@$(MAKE) --no-print-directory $(SPARK_READY)
	PYTHONPATH=. $(SPARK_READY:.complete=bin/python) -m kwire.pipeline.demo target/pipeline-demo $(ARGS)

.PHONY: simulate
simulate: $(READY) ## simulate storage, a quorum and a cluster under many seeds: `make simulate SEEDS=10000`
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
bench: $(READY) ## measure performance, beside Apache Kafka if Java is installed (docs/performance.md)
	@if command -v java >/dev/null && command -v mvn >/dev/null; then \
		exec $(BIN)/python -c "from interop.reference import kafka_jars; kafka_jars()"; fi
	$(BIN)/python -m bench $(ARGS)

.PHONY: lock
lock: $(READY) ## pin the newest versions that pyproject.toml allows
	$(COMPILE) --upgrade --output-file requirements/runtime.lock pyproject.toml
	$(COMPILE) --upgrade --extra console --output-file requirements/console.lock pyproject.toml
	$(COMPILE) --upgrade --extra dev --output-file requirements/dev.lock pyproject.toml
	$(COMPILE) --upgrade --group build --constraint requirements/dev.lock --output-file requirements/build.lock
	$(COMPILE) --upgrade --group oldest --no-deps --output-file requirements/oldest.lock
	$(COMPILE) --upgrade --extra spark --output-file requirements/spark.lock pyproject.toml
	$(COMPILE) --upgrade --extra spark --group spark-oldest --output-file requirements/spark-oldest.lock pyproject.toml
	$(COMPILE) --upgrade --group recipes --output-file requirements/recipes.lock pyproject.toml
	@! grep -nE '^-|://' requirements/*.lock || { echo "a lock file names an index or a path." >&2; exit 1; }

.PHONY: clean
clean: ## remove everything that make has built, but no data directories
	rm -rf $(VENV) interop/target target build dist .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +
