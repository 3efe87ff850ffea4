# Every target installs what it needs by itself: Python 3.11 or newer, git and make are enough.

PYTHON ?= python3
SEEDS  ?= 3000
MINUTES ?= 10
SUITE  ?=
RUNS   ?=

UV     := $(shell command -v uv 2>/dev/null)
BIN    := .venv/bin
READY  := .venv/.ready
LOCKED := requirements/dev.txt

.DEFAULT_GOAL := help
.DELETE_ON_ERROR:
.PHONY: help setup run test check sim chaos guards leaks bench bench-million bench-recovery docs format lock clean

help: ## List the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## /{printf "  make %-14s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

setup: $(READY) ## Create .venv with the locked tools and this package

$(READY): pyproject.toml $(LOCKED)
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11) and "Tidemill needs Python 3.11 or newer")'
ifdef UV
	@uv venv --quiet --allow-existing --python $(PYTHON) .venv
	@uv pip sync --quiet --python $(BIN)/python --require-hashes $(LOCKED)
	@uv pip install --quiet --python $(BIN)/python --no-deps --no-build-isolation --editable .
else
	@$(PYTHON) -m venv .venv
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --require-hashes --requirement $(LOCKED)
	@$(BIN)/python -m pip install --quiet --disable-pip-version-check --no-deps --no-build-isolation --editable .
endif
	@touch $@

run: setup ## Run the showcase workflow
	@$(BIN)/tidemill run examples/showcase.yaml

test: setup ## Run every suite within its budget (SUITE=kernel for one)
	@$(BIN)/python tests/run.py $(SUITE)

check: setup ## Check format, lint, types, import contracts and the house rules
	@$(BIN)/ruff format --check .
	@$(BIN)/ruff check .
	@$(BIN)/mypy --strict src
	@$(BIN)/lint-imports --no-logo
	@$(BIN)/python -m pytest --quiet tests/house

sim: setup ## Simulate SEEDS=n random histories with faults
	@$(BIN)/python -m tests.sim --seeds $(SEEDS) $(if $(SEED),--seed $(SEED))

chaos: setup ## Kill and stop real processes for MINUTES=n, or until KILLS=n died
	@$(BIN)/python -m tests.chaos --minutes $(MINUTES) $(if $(KILLS),--kills $(KILLS)) $(if $(SEED),--seed $(SEED)) \
		$(if $(CLOCKS),--clocks)

guards: setup ## Break every safety check once and expect its test to fail
	@$(BIN)/python -m tests.guards

leaks: setup ## Evaluate every kind of expression 10,000 times and see that nothing is kept
	@$(BIN)/python -m tests.attacks.leaks 10000

bench: setup ## Measure the cost rules
	@$(BIN)/python -m benches

bench-million: setup ## Measure lists, searches and claims among a million finished runs (RUNS=n for fewer)
	@RUNS=$(RUNS) $(BIN)/python -m benches million

bench-recovery: setup ## Kill a worker with 10,000 unfinished runs and measure until all go on (RUNS=n for others)
	@RUNS=$(RUNS) $(BIN)/python -m benches recovery

docs: setup ## Build the documentation into site/
	@$(BIN)/zensical build --clean --strict

format: setup ## Rewrite the sources in the house format
	@$(BIN)/ruff format .
	@$(BIN)/ruff check --fix .

lock: ## Write the locked versions anew (needs uv; UPGRADE=--upgrade to move forward)
	@command -v uv >/dev/null || { echo "make lock needs uv: pip install uv"; exit 1; }
	@uv pip compile pyproject.toml --group dev --universal --python-version 3.11 --generate-hashes \
		--no-emit-index-url --exclude-newer 5days --custom-compile-command 'make lock' $(UPGRADE) \
		--quiet --output-file $(LOCKED)

clean: ## Remove everything that can be made again
	@rm -rf .venv .mypy_cache .pytest_cache .ruff_cache .import_linter_cache .hypothesis .bench .cache dist site
	@find . -name __pycache__ -type d -prune -exec rm -rf {} +
