# Every target sets itself up in .venv; nothing is needed beforehand but Python 3.11 or newer, and make.

VENV := .venv
BIN := $(VENV)/bin
PIP := $(BIN)/python -m pip install -q --disable-pip-version-check -c constraints.txt

# The newest of those that are here and work; override with `make PYTHON=/path/to/python3`.
PYTHON ?= $(shell for p in python3.14 python3.13 python3.12 python3.11 python3; do \
	$$p -c 'import sys, venv, ensurepip; sys.exit(sys.version_info < (3, 11))' 2>/dev/null && echo $$p && break; done)

.DEFAULT_GOAL := help
.PHONY: help demo test test-all lint bench soak clean

help: ## list the targets
	@awk -F ':.*## ' '/^[a-z-]+:.*## / {printf "  make %-8s %s\n", $$1, $$2}' $(MAKEFILE_LIST)

demo: $(VENV)/.run ## train a sparse click model on 2 servers with 4 workers, and look at it
	$(BIN)/shoal train examples/demo.toml

# Tests start hundreds of processes: bytecode is kept for them, whatever the shell says. They wait as often as they work, so
# there are two for each core of a small machine; each begins with a stretch of files, so that what a file sets up is set up once.
test test-all soak: export PYTHONDONTWRITEBYTECODE =
test test-all soak: export LC_ALL = C.UTF-8
PYTEST := $(BIN)/python -m pytest -n 4 --dist worksteal --durations 15

test: $(VENV)/.dev ## run the tests of every change: each strategy, launcher, transport and kind of fault at least once
	$(PYTEST) -m "not slow and not soak"

test-all: $(VENV)/.dev ## run all tests but the soak; what must pass before a merge
	$(PYTEST) -m "not soak"

lint: $(VENV)/.dev ## check style and types, and print the size of the package
	$(BIN)/ruff check .
	$(BIN)/ruff format --check .
	$(BIN)/mypy
	-@$(BIN)/python tools/size.py

bench: $(VENV)/.dev ## measure the store, reading, training, copies, failover, checkpoints and modules, with the rivals in the same run
	$(PIP) -e '.[sklearn,torch]'
	$(BIN)/shoal bench store
	$(BIN)/shoal bench reading
	$(BIN)/shoal bench training
	$(BIN)/shoal bench copies
	$(BIN)/shoal bench failover
	$(BIN)/shoal bench checkpoint
	$(BIN)/shoal bench clocks
	$(BIN)/shoal bench torch
	$(BIN)/shoal bench dense
	$(BIN)/shoal bench filters

# Seeds that nobody has run before; `make soak FIRST=0` runs those that everybody has.
soak: FIRST := $(shell date +%s)000
soak: $(VENV)/.dev ## run the long tests, 100,000 simulated schedules (two hours on two cores), then about ten minutes of chaos (F44)
	$(PYTEST) -m soak
	$(BIN)/shoal simulate --of store --seeds 40000 --first $(FIRST)
	$(BIN)/shoal simulate --of moves --seeds 20000 --first $(FIRST)
	$(BIN)/shoal simulate --of training --seeds 15000 --first $(FIRST)
	$(BIN)/shoal simulate --of peers --seeds 15000 --first $(FIRST)
	$(BIN)/shoal simulate --of gossip --seeds 10000 --first $(FIRST)
	$(BIN)/shoal chaos --seconds 300

clean: ## remove what the targets made
	rm -rf $(VENV) dist build .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find . -name __pycache__ -type d -prune -exec rm -rf {} +

$(BIN)/python:
	@test -n "$(PYTHON)" || { echo "no Python 3.11 or newer with venv here: install one, or make PYTHON=..."; exit 1; }
	$(PYTHON) -m venv $(VENV)

$(VENV)/.run: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[view]'
	@touch $@

$(VENV)/.dev: pyproject.toml constraints.txt | $(BIN)/python
	$(PIP) -e '.[dev,view,compress,sklearn,torch,mpi]'
	@touch $@ $(VENV)/.run
