# Every target installs what it needs by itself: Python 3.11 or newer, git and make are enough.

PYTHON ?= python3
SEEDS  ?= 3000
MINUTES ?= 10
SUITE  ?=
RUNS   ?=
STORE  ?=

UV     := $(shell command -v uv 2>/dev/null)
BIN    := .venv/bin
READY  := .venv/.ready
LOCKED := requirements/dev.txt
# What running needs, and what builds the package; the development set holds all of it in the same versions.
RUN_READY  := .venv/.run-ready
WEB_READY  := .venv/.web-ready
RUN_LOCKED := requirements/run.txt requirements/build.txt
PYTHONS    ?= 3.11 3.12 3.13 3.14
CORE       := unit/kernel unit/expressions unit/stores unit/engine conformance

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run examples pictures test test-web web-pictures test-long test-pythons check sim chaos guards leaks bench bench-peers bench-million bench-recovery web web-types serve load docs format lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with the locked tools and this package

NEW_ENOUGH = $(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidemill needs Python 3.11 or newer")'

# $(call install,PYTHON,FOLDER,LOCKS,sync): a virtual environment with locked packages and this one; with `sync`, uv
# removes all others.
ifneq ($(UV),)
define install
@$(UV) venv --quiet --allow-existing --python $(1) $(2)
@$(UV) pip $(if $(4),sync $(3),install $(addprefix --requirement ,$(3))) --quiet --python $(2)/bin/python --require-hashes
@$(UV) pip install --quiet --python $(2)/bin/python --no-deps --no-build-isolation --editable .
endef
else
define install
@$(1) -m venv $(2)
@$(2)/bin/python -m pip install --quiet --disable-pip-version-check --no-compile --require-hashes $(addprefix --requirement ,$(3))
@$(2)/bin/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
endef
endif

$(READY): pyproject.toml $(LOCKED)
	@$(NEW_ENOUGH)
	$(call install,$(PYTHON),.venv,$(LOCKED),sync)
	@touch $(RUN_READY) $@

$(RUN_READY): pyproject.toml $(RUN_LOCKED)
	@$(NEW_ENOUGH)
	$(call install,$(PYTHON),.venv,$(RUN_LOCKED))
	@touch $@

run: $(RUN_READY) ## Run the showcase workflow
	@$(BIN)/tidemill run examples/showcase.yaml

examples: setup ## Run every example with the commands in its own header
	@$(BIN)/python -m tests.examples

# Workflows whose graphs the documentation shows, and a store for the run whose picture README shows.
FIGURES = approval branches children errors etl files invoices leads ledger loops map payment-retry polling quotes triage trial
FIGURE_STORE = sqlite:///.cache/pictures.db

pictures: setup ## Draw the pictures of README and the documentation
	@rm -rf .cache/pictures.db* && mkdir -p .cache docs/assets
	@for name in $(FIGURES); do $(BIN)/tidemill graph examples/$$name.yaml -o docs/assets/$$name.svg || exit 1; done
	@$(BIN)/tidemill publish examples/showcase.yaml --store $(FIGURE_STORE) >/dev/null
	@$(BIN)/tidemill start order-fulfilment --key order-1001 --store $(FIGURE_STORE) >/dev/null
	@$(BIN)/tidemill run examples/showcase.yaml --resume order-1001 --quiet --store $(FIGURE_STORE) >/dev/null
	@$(BIN)/tidemill runs graph order-1001 -o docs/assets/run.svg --store $(FIGURE_STORE)
	@$(BIN)/tidemill runs graph order-1001 --timeline -o docs/assets/timeline.svg --store $(FIGURE_STORE)
	@$(BIN)/tidemill publish examples/saga.yaml --store $(FIGURE_STORE) >/dev/null
	@$(BIN)/tidemill start saga --key trip-7 --store $(FIGURE_STORE) >/dev/null
	@$(BIN)/tidemill run examples/saga.yaml --resume trip-7 --quiet --store $(FIGURE_STORE) 2>/dev/null || true # it fails, and is rolled back
	@$(BIN)/tidemill runs graph trip-7 -o docs/assets/rollback.svg --store $(FIGURE_STORE)
	@$(BIN)/tidemill publish examples/approval.yaml --store $(FIGURE_STORE) >/dev/null
	@$(BIN)/tidemill start approval --key payment-9 -i amount=900 --store $(FIGURE_STORE) >/dev/null
	@$(BIN)/tidemill run examples/approval.yaml --resume payment-9 --quiet --store $(FIGURE_STORE) 2>/dev/null & sleep 3; kill $$! # it waits
	@$(BIN)/tidemill runs graph payment-9 -o docs/assets/waiting.svg --store $(FIGURE_STORE)

test: setup web ## Run every suite (SUITE=kernel for one)
	@$(BIN)/python tests/run.py $(SUITE)

$(WEB_READY): $(READY) requirements/web.txt
	@$(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --disable-pip-version-check) \
		--require-hashes --requirement requirements/web.txt
	@touch $@

test-web: $(WEB_READY) web ## Test the page in a Chromium (CHROME=path, else the one of the system)
	@$(BIN)/python tests/run.py --web

web-pictures: $(WEB_READY) web ## Photograph the screens of the page for the documentation, in a Chromium
	@$(BIN)/python -m tests.web.pictures

.venv-%/.ready: pyproject.toml $(LOCKED)
	$(call install,$(PYTHON),.venv-$*,$(LOCKED),sync)
	@touch $@

test-long: setup ## Run what takes longer: the long suites, every guard broken once, 1,000 simulated histories
	@$(BIN)/python tests/run.py --long
	@$(BIN)/python -m tests.guards
	@$(BIN)/python -m tests.simulation --seeds 1000

test-pythons: ## Run the core suites with every Python of PYTHONS that is installed
	@for version in $(PYTHONS); do \
		found=; \
		for python in python$$version $(HOME)/.pyenv/versions/$$version.*/bin/python; do \
			if $$python -c '' 2>/dev/null; then found=$$python; break; fi; \
		done; \
		if [ -z "$$found" ]; then echo "== Python $$version is not installed"; continue; fi; \
		echo "== Python $$version"; \
		$(MAKE) --no-print-directory .venv-$$version/.ready PYTHON=$$found && \
			.venv-$$version/bin/python -m pytest --quiet -n 2 $(addprefix tests/,$(or $(SUITE),$(CORE))) || exit 1; \
	done

check: setup ## Check format, lint, types, import contracts and the house rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict src
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest --quiet tests/house

sim: setup ## Simulate SEEDS=n random histories with faults
	@$(BIN)/python -m tests.simulation --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

chaos: setup ## Kill and stop real processes for MINUTES=n, or until KILLS=n died
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(CLOCKS),--clocks) $(if $(STORE),--store $(STORE))

guards: setup ## Break every safety check once and expect its test to fail
	@$(BIN)/python -m tests.guards

leaks: setup ## Evaluate every kind of expression 10,000 times and see that nothing is kept
	@$(BIN)/python -m tests.attacks.leaks 10000

bench: setup ## Measure the cost rules
	@$(BIN)/python -m benches

bench-peers: ## Install LangGraph and DBOS into .venv-peers, so that `make bench` measures them, too
	@$(PYTHON) -m venv .venv-peers
	@.venv-peers/bin/python -m pip install --quiet --disable-pip-version-check --upgrade pip
	@.venv-peers/bin/python -m pip install --quiet --group bench

bench-million: setup ## Measure lists, searches and claims among a million finished runs (RUNS=n, STORE=postgres|redis)
	@RUNS=$(RUNS) STORE=$(STORE) $(BIN)/python -m benches million

bench-recovery: setup ## Kill a worker with 10,000 unfinished runs and measure until all go on (RUNS=n, STORE=redis)
	@RUNS=$(RUNS) STORE=$(STORE) $(BIN)/python -m benches recovery

serve: setup web ## Serve the page with workflows to look at (ARGS="--port 9000", ARGS="--store sqlite:///my.db" without them)
	@$(BIN)/tidemill serve $(if $(findstring --store,$(ARGS)),,--demo) $(ARGS)

NODE := $(if $(shell command -v npm 2>/dev/null),,.venv/.node-ready)

.venv/.node-ready: requirements/node.txt | $(READY)
	@$(if $(UV),$(UV) pip install --quiet --python $(BIN)/python,$(BIN)/python -m pip install --quiet --disable-pip-version-check) \
		--require-hashes --requirement requirements/node.txt
	@touch $@

web: setup $(NODE) ## Build the web page into the package, with npm or the wheel that carries it
	@$(BIN)/python web/build.py

web-types: setup $(NODE) ## Write the page's types of the API from the OpenAPI document
	@$(BIN)/python -m tests.docs.web_types

load: setup ## Offer starts over HTTP to a server of its own, and show how it answers (RATE=n, SECONDS=n)
	@$(BIN)/python -m benches.load $(or $(RATE),300) $(or $(SECONDS),10)

docs: setup ## Make the references of Python and HTTP from the code, and build the documentation into site/
	@$(BIN)/python -m tests.docs.python_api
	@$(BIN)/python -m tests.docs.http_api
	@$(BIN)/zensical build --clean --strict

format: setup ## Rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

COMPILE = uv pip compile --universal --python-version 3.11 --generate-hashes --no-emit-index-url \
	--exclude-newer 5days --custom-compile-command 'make lock' --quiet

lock: ## Write the locked versions anew (needs uv; UPGRADE=--upgrade to move forward)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv"; exit 1; }
	@$(COMPILE) pyproject.toml --group dev $(UPGRADE) --output-file $(LOCKED)
	@$(COMPILE) pyproject.toml --constraint $(LOCKED) $(UPGRADE) --output-file requirements/run.txt
	@$(COMPILE) --group build --constraint $(LOCKED) $(UPGRADE) --output-file requirements/build.txt
	@$(COMPILE) --group node $(UPGRADE) --output-file requirements/node.txt
	@$(COMPILE) --group web --constraint $(LOCKED) $(UPGRADE) --output-file requirements/web.txt

clean: ## Remove everything that can be made again
	@rm -rf .venv .venv-* .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .bench .cache dist site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
