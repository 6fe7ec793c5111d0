# Every target sets up what it needs in .venv; nothing is installed by hand.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2

.PHONY: run test lint bench faults peers screens clean

# The gateway, on your own store; while that is empty, on made-up sessions in the cache folder. PORT=0 takes a free port.
run: .venv/gateway.stamp
	@exec $(BIN)/sessile serve --or-demo $(if $(PORT),--port $(PORT))

test: .venv/dev.stamp .venv/browser.stamp lint
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m "not long and not peers"

lint: .venv/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

faults: .venv/dev.stamp
	@SESSILE_EVERY=1 $(BIN)/python -m pytest -q -n $(WORKERS) -m "not long and not peers" tests/faults
	@$(BIN)/python -m pytest -q -n $(WORKERS) -m long

peers: .venv/dev.stamp
	@$(BIN)/python -m pytest -q -m peers

bench: .venv/dev.stamp
	@$(BIN)/python -m tests.bench

# Pictures of every page, to be looked at: .cache/screens
screens: .venv/dev.stamp .venv/browser.stamp
	@$(BIN)/python tests/screens.py .cache/screens

.venv/bin/python:
	@$(PYTHON) -c 'import sys; sys.exit(sys.version_info < (3, 11))' || { echo "Sessile needs Python 3.11 or newer: make PYTHON=python3.11"; exit 1; }
	@$(PYTHON) -m venv .venv

.venv/gateway.stamp: pyproject.toml | .venv/bin/python
	@echo "Installing Sessile into .venv …" >&2
	@$(BIN)/python -m pip install -q -e '.[gateway]'
	@touch $@

.venv/dev.stamp: pyproject.toml | .venv/bin/python
	@echo "Installing Sessile and its test tools into .venv …" >&2
	@$(BIN)/python -m pip install -q -e '.[dev]'
	@touch $@ .venv/gateway.stamp

# Tests in a browser use the system's chromium; where it cannot be installed they are skipped, and say so.
.venv/browser.stamp: | .venv/bin/python
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  { echo "Installing chromium …" >&2; apt-get install -qq -y chromium fonts-noto-cjk poppler-utils >/dev/null 2>&1 || \
	  { apt-get update -qq >/dev/null 2>&1 && apt-get install -qq -y chromium fonts-noto-cjk poppler-utils >/dev/null 2>&1; }; } || \
	  echo "No chromium: tests in a browser are skipped." >&2; }
	@touch $@

clean:
	@rm -rf .venv .cache
