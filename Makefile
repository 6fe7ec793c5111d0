# Every target installs what it needs into .venv.
PYTHON ?= python3
BIN := .venv/bin
WORKERS ?= 2
# Workers take neighbouring tests, so that shared fixtures are made once; an idle worker steals tests from the other.
PYTEST := $(BIN)/python -m pytest -q -n $(WORKERS) --dist worksteal
# Tests start hundreds of processes: compile first, so that none of them writes bytecode while a disk is made to fail.
COMPILE := $(BIN)/python -m compileall -q -j $(WORKERS) src tests

.PHONY: run test lint house newest bench faults mutants peers screens clean

# Start the gateway on your own sessions, or on the demo if there are none. PORT=0 selects a free port.
run: .venv/gateway.stamp
	@exec $(BIN)/sessile serve --or-demo $(if $(PORT),--port $(PORT))

test: .venv/dev.stamp .venv/browser.stamp lint
	@$(COMPILE)
	@$(PYTEST) -m "not long and not peers"

lint: .venv/dev.stamp
	@$(BIN)/ruff check .
	@$(BIN)/ruff format --check .
	@$(BIN)/mypy

# Print figures about the code base.
house: .venv/dev.stamp
	@$(BIN)/python tests/house.py

# Run the unit, contract and property tests on the newest Python of this machine. NEWEST=python3.14 selects one.
NEWEST ?= $(shell for v in 3.14 3.13 3.12; do for p in python$$v $(HOME)/.pyenv/versions/$$v*/bin/python; do $$p -c 'import venv' && echo $$p && exit; done; done 2>/dev/null)
newest: | .venv/bin/python
	@[ -n "$(NEWEST)" ] || { echo "No Python newer than 3.11 was found: make newest NEWEST=/path/to/python"; exit 1; }
	@[ -d .venv/newest ] || { echo "Installing Sessile and its test tools for $(NEWEST) …" >&2; $(NEWEST) -m venv .venv/newest; }
	@.venv/newest/bin/python -m pip install -q -e '.[test]'
	@.venv/newest/bin/python --version
	@.venv/newest/bin/python -m pytest -q -n $(WORKERS) --dist worksteal -m "not long and not peers" tests/unit tests/contract tests/property

# Run the long fault tests. Figures go to .cache/figures; `python tests/promises.py` copies them into the docs. Fuzzing takes
# SESSILE_FUZZ_SECONDS (600) for all targets together, the load on a gateway SESSILE_LOAD_SECONDS (3600).
faults: export SESSILE_FIGURES := $(CURDIR)/.cache/figures
faults: .venv/dev.stamp .venv/fuzz.stamp
	@rm -rf $(SESSILE_FIGURES)
	@$(COMPILE)
	@SESSILE_EVERY=1 $(PYTEST) -m "not long and not peers" tests/faults
	@$(PYTEST) -m long

# Put small faults into the source, one at a time, and report those that no test notices. MODULES="core.lines" selects a module.
mutants: export SESSILE_FIGURES := $(CURDIR)/.cache/figures
mutants: .venv/dev.stamp
	@PYTHONPATH=tests WORKERS=$(WORKERS) $(BIN)/python -m mutation $(MODULES)

peers: .venv/dev.stamp
	@$(BIN)/python -m pytest -q -m peers

bench: .venv/dev.stamp
	@$(BIN)/python -m tests.bench

# Take screenshots of every page: .cache/screens
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

# Fuzzing is coverage-guided where atheris can be installed, and seeded only elsewhere.
.venv/fuzz.stamp: | .venv/bin/python
	@$(BIN)/python -m pip install -q 'atheris>=3' 2>/dev/null || echo "No atheris: fuzzing is not coverage-guided." >&2
	@touch $@

# Browser tests use the system's chromium. They are skipped, with a message, where it cannot be installed.
.venv/browser.stamp: | .venv/bin/python
	@command -v chromium >/dev/null || { command -v apt-get >/dev/null && [ "$$(id -u)" = 0 ] && \
	  { echo "Installing chromium …" >&2; apt-get install -qq -y chromium fonts-noto-cjk poppler-utils >/dev/null 2>&1 || \
	  { apt-get update -qq >/dev/null 2>&1 && apt-get install -qq -y chromium fonts-noto-cjk poppler-utils >/dev/null 2>&1; }; } || \
	  echo "No chromium: browser tests are skipped." >&2; }
	@touch $@

clean:
	@rm -rf .venv .cache
