# The commands of a developer. Everything is installed into .venv; nothing else is changed.
# PYTHON creates .venv (3.10 or newer); ARGS is passed to pytest, as in: make test ARGS="-k demo -x"
# WORKERS processes run the tests in parallel: see tests/README.md.  A test waits for most of its time,
# so there may be more of them than cores.

PYTHON ?= python3
ARGS ?=
WORKERS ?= 4
SOAK_SECONDS ?= 60
QUICK := tests/unit tests/support $(wildcard tests/sql/test_*.py) \
	$(addprefix tests/integration/,documents guard locking)
VENV := .venv
BIN := $(VENV)/bin
SERVERS := $(BIN)/python -m tests.support.servers --for --

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-all soak check bench bench-quick clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/installed-cli ## Show on an SQLite file what goes wrong without locks
	$(BIN)/sa-doclock demo

test-quick: $(VENV)/installed-test ## Test the essentials on SQLite and PostgreSQL, in a minute
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' --databases sqlite,postgresql \
		--own-logic-on sqlite $(QUICK) $(ARGS)

test: $(VENV)/installed-test ## Test on every database that can be had here, less what is slow
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' $(ARGS)

test-all: $(VENV)/installed-test ## Test everything, as CI does
	$(BIN)/python -m pytest -n $(WORKERS) --slow-limit 5 $(ARGS)

soak: $(VENV)/installed-test ## Inject faults for SOAK_SECONDS (60) on each server, and print the results
	$(BIN)/python -m pytest -m soak --soak-seconds $(SOAK_SECONDS) --timeout 1800 -p no:randomly $(ARGS)

check: $(VENV)/installed-dev ## Lint, check types and imports, run the code of the README and the docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/lint-imports
	$(BIN)/python -m pytest tests/docs/test_readme.py

bench: $(VENV)/installed-bench ## Run all benchmarks, in ten minutes; write benchmarks/RESULTS.md
	$(SERVERS) $(BIN)/python -m benchmarks --results benchmarks/RESULTS.md --plot benchmarks/pictures

bench-quick: $(VENV)/installed-bench ## Run the benchmarks in one minute, with less precision; write nothing
	$(BIN)/python -m tests.support.servers postgresql --for -- $(BIN)/python -m benchmarks --quick

clean: ## Remove everything that make, the tests and the tools have created
	rm -rf $(VENV) .servers build dist *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: nothing is installed again until pyproject.toml changes.
$(VENV)/created:
	$(PYTHON) -m venv $(VENV)
	$(BIN)/python -m pip install --quiet --upgrade 'pip>=25.1'  # the first with --group
	touch $@

$(VENV)/installed-cli: $(VENV)/created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[cli]'
	touch $@

$(VENV)/installed-test: $(VENV)/created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group test
	touch $@ $(VENV)/installed-cli

$(VENV)/installed-bench: $(VENV)/created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group test --group bench
	touch $@ $(VENV)/installed-test $(VENV)/installed-cli

$(VENV)/installed-dev: $(VENV)/created pyproject.toml
	$(BIN)/python -m pip install --quiet --editable '.[all]' --group dev
	touch $@ $(VENV)/installed-test $(VENV)/installed-cli
