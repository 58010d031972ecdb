# Metergate. `make help` lists the targets. Nothing is needed beforehand but Python 3.11 or newer.
.DEFAULT_GOAL := help
.PHONY: help run compile test check format bench venv dev clean

PYTHON ?=
HOST   ?=
PORT   ?=
CONFIG ?=
ARGS   ?=
BIN    := .venv/bin

help:  ## this list
	@awk 'BEGIN { FS = ":.*## " } /^[a-z]+:.*## / { printf "  make %-8s %s\n", $$1, $$2 }' Makefile

run: venv  ## install what is missing, then serve on 127.0.0.1:8000 (PORT=…, HOST=…, CONFIG=… to change)
	@exec $(BIN)/metergate serve $(if $(CONFIG),--config "$(CONFIG)") $(if $(HOST),--host "$(HOST)") $(if $(PORT),--port "$(PORT)")

compile: venv  ## compile the path of a request: the same answers for less CPU (a C compiler is needed; one to three minutes, once)
	@$(BIN)/python -c "import mypyc, setuptools" 2>/dev/null || \
		$(BIN)/python -m pip install --quiet --disable-pip-version-check --constraint constraints.txt --editable ".[compile]"
	@$(BIN)/metergate compile

test: dev  ## the whole test suite, with real PostgreSQL and Valkey (ARGS="tests/billing -x" for a part; ARGS="-n 0 …" in one process)
	@$(BIN)/python -m pytest -n logical --maxprocesses 4 --dist loadfile $(ARGS)

check: dev  ## format, lint, types, import contracts, house rules
	$(BIN)/ruff format --check
	$(BIN)/ruff check
	$(BIN)/mypy
	$(BIN)/lint-imports --no-logo
	$(BIN)/python -m tests.house

format: dev  ## put the code into its one format
	$(BIN)/ruff check --fix
	$(BIN)/ruff format

bench: dev  ## the benchmarks; results land in bench/results/ (ARGS="gateway --quick" for one of them)
	@$(BIN)/python -m bench $(ARGS)

venv:
	@PYTHON="$(PYTHON)" sh .ci/venv.sh run

dev:
	@PYTHON="$(PYTHON)" sh .ci/venv.sh dev

clean:  ## remove .venv and every cache; the state in var/ stays
	rm -rf .venv gateway/__compiled__ .mypy_cache .ruff_cache .pytest_cache .import_linter_cache .hypothesis build dist ./*.egg-info
