# Every target sets up what it needs in .venv; nothing is installed by hand.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

.PHONY: run test lint bench faults peers clean

run: .venv/run.stamp
	@$(BIN)/python -m sessile

test: .venv/dev.stamp lint
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "not long and not peers"

lint: .venv/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

faults: .venv/dev.stamp
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m long

peers: .venv/dev.stamp
	@$(BIN)/python -m pytest -q -m peers

bench: .venv/dev.stamp
	@$(BIN)/python -m tests.bench

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Sessile needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv .venv

.venv/run.stamp: pyproject.toml | .venv/bin/python
	@echo "Installing Sessile into .venv …" >&2
	@$(BIN)/python -m pip install -q -e .
	@touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	@echo "Installing Sessile and its test tools into .venv …" >&2
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@ .venv/run.stamp

clean:
	@rm -rf .venv .cache
